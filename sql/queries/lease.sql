-- name: lease
-- Part of all claims (claim.sql): lease the due rows, and with them the other due recipients of the same messages,
-- so that they share a transaction. A row whose lease ran out is due as well: the outcome of that
-- attempt is unknown, and is logged before the next attempt begins. Unless the row has `once`: no claim
-- takes it, and an upkeep duty settles it (expired_leases.sql). The sums and IS TRUE keep the plan off queue_domain_due (docs/decisions/claim.md).
siblings AS MATERIALIZED (
    SELECT id, message_id, lease_token
    FROM queue
    WHERE message_id = ANY (ARRAY(SELECT DISTINCT message_id FROM due))
        AND status IN ('QUEUED', 'DEFERRED', 'SENDING')
        AND queue.priority + 0 <= %(priority)s
        AND next_attempt + '0s' <= now()
        AND (lease_until IS NULL OR (lease_until < now() AND NOT once))
        AND domain <> ALL (%(busy)b::text[])
        AND id <> ALL (ARRAY(SELECT id FROM due))
        AND ({partition}) AND ({where}) IS TRUE{open_row}
        {rules}
    LIMIT %(siblings)s
    FOR UPDATE SKIP LOCKED
), taken AS MATERIALIZED (
    SELECT id, lease_token FROM due UNION ALL SELECT id, lease_token FROM siblings
), lost AS MATERIALIZED (
    SELECT rows_log(array_agg(id), 'unknown') FROM taken WHERE lease_token IS NOT NULL HAVING count(*) > 0
), claimed AS (
    UPDATE queue
    SET status = 'SENDING', attempts = least(attempts, 2147483646) + 1, lease_owner = %(owner)s, lease_since = now(),
        lease_token = (SELECT nextval('lease_tokens')),
        lease_until = now() + make_interval(secs => %(lease)s)
    WHERE id = ANY (ARRAY(SELECT id FROM taken)) AND status IN ('QUEUED', 'DEFERRED', 'SENDING')
        AND (SELECT count(*) FROM lost) >= 0  -- forces the log to be written first
    RETURNING id, message_id, sender, recipient, domain, attempts, ts, lease_token, priority,
        once, on_failed, tenant, metadata, notify, orcpt
)

-- name: give_back
-- Give back the rows of a claim whose answer was lost: rows under our name that are not in `ids`. Their
-- attempt never began, so it is not counted. Only on this timeline: on another one their outcome may be lost, and not
-- their claim.
UPDATE queue
SET status = 'QUEUED', attempts = greatest(attempts - 1, 0),
    lease_owner = NULL, lease_since = NULL, lease_token = NULL, lease_until = NULL
WHERE status = 'SENDING' AND lease_owner = %(owner)s AND id <> ALL (%(ids)b::bigint[])
    AND (SELECT last_value FROM timelines) = %(timeline)s
RETURNING id

-- name: let_run_out
-- End the leases of these rows: they count as those of a dead worker, and the log gets `unknown`.
UPDATE queue SET lease_until = now()
WHERE status = 'SENDING' AND lease_owner = %(owner)s AND id <> ALL (%(ids)b::bigint[]) AND lease_until > now()
RETURNING id

-- name: renew
-- Renew leases, and return for each row that is still ours whether it was renewed. A row that another
-- transaction has locked is not renewed, or the others would wait for it.
WITH ours AS MATERIALIZED (
    SELECT queue.id, lease_token
    FROM queue, unnest(%(ids)b::bigint[], %(tokens)b::bigint[]) AS ours (id, token)
    WHERE queue.id = ours.id AND status = 'SENDING' AND lease_token = ours.token
), free AS MATERIALIZED (
    SELECT id FROM queue
    WHERE id = ANY (ARRAY(SELECT id FROM ours)) AND status = 'SENDING'
        AND lease_token = ANY (ARRAY(SELECT lease_token FROM ours))
    FOR UPDATE SKIP LOCKED
), prolonged AS (
    UPDATE queue SET lease_until = now() + make_interval(secs => %(lease)s)
    WHERE id = ANY (ARRAY(SELECT id FROM free)) AND status = 'SENDING'
    RETURNING id
)
SELECT id, id = ANY (ARRAY(SELECT id FROM prolonged)) FROM ours

-- name: begin
-- Note that the transactions of rows with `once` begin, and return those that may begin: rows under a lease
-- of ours that lasts. A row that another transaction has locked may not.
WITH free AS MATERIALIZED (
    SELECT id FROM queue
    WHERE id = ANY (%(ids)b::bigint[]) AND status = 'SENDING'
        AND lease_token = ANY (%(tokens)b::bigint[]) AND lease_until > now(){companions}
    FOR UPDATE SKIP LOCKED
)
UPDATE queue SET begun = lease_token
WHERE id = ANY (ARRAY(SELECT id FROM free)) AND status = 'SENDING'
RETURNING id

-- name: withdraw
-- Note that these transactions have not begun. A row that another transaction has locked stays marked.
WITH free AS MATERIALIZED (
    SELECT id FROM queue
    WHERE id = ANY (%(ids)b::bigint[]) AND status = 'SENDING'
        AND lease_token = ANY (%(tokens)b::bigint[]) AND begun = lease_token
    FOR UPDATE SKIP LOCKED
)
UPDATE queue SET begun = NULL
WHERE id = ANY (ARRAY(SELECT id FROM free)) AND status = 'SENDING'
RETURNING id

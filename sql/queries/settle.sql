-- name: settle
-- The outcomes of many attempts in one commit. A delivery is a fact: its row is deleted, whatever its
-- status is by now. Any other outcome counts only under its own lease. If an operator has given the row
-- another status since, that status stays.
WITH outcome AS MATERIALIZED (
    SELECT * FROM unnest(
        %(ids)b::bigint[], %(tokens)b::bigint[], %(events)b::text[], %(statuses)b::text[],
        %(delays)b::float8[], %(message_ids)b::bigint[], %(senders)b::text[],
        %(recipients)b::text[], %(domains)b::text[], %(attempts)b::integer[],
        %(codes)b::smallint[], %(enhanced)b::text[], %(replies)b::text[], %(hosts)b::text[],
        %(commands)b::text[], %(started)b::timestamptz[], %(ended)b::timestamptz[])
        AS o (id, token, event, status, delay, message_id, sender, recipient, domain, attempt,
            code, enhanced, reply, host, command, started_at, ended_at)
), logged AS (
    INSERT INTO attempts (ended_at, started_at, row_id, message_id, lease_token, attempt, code,
        event, sender, recipient, domain, worker, host, command, enhanced, reply)
    SELECT ended_at, started_at, id, message_id, token, attempt, code,
        event, sender, recipient, domain, %(worker)s, host, command, enhanced, reply
    FROM outcome WHERE event <> 'handed back'
        -- written a second time, because the answer to the first commit was lost with its connection
        AND NOT (%(again)s AND EXISTS (
            SELECT FROM attempts AS a
            WHERE a.message_id = outcome.message_id AND a.row_id = outcome.id
                AND a.lease_token = outcome.token AND a.ended_at = outcome.ended_at))
), delivered AS (
    DELETE FROM queue
    WHERE id = ANY (ARRAY(SELECT id FROM outcome WHERE event = 'delivered'))
    RETURNING id
), moved AS (
    -- No join: if a partition was empty when the plan was made, a join later reads all its rows for
    -- each outcome (docs/decisions/0005).
    UPDATE queue
    SET (status, last_reply, next_attempt, attempts, hold_reason, held_by,
            lease_owner, lease_since, lease_token, lease_until) = (
        SELECT CASE WHEN queue.status = 'SENDING' THEN o.status ELSE queue.status END,
            coalesce(nullif(concat_ws(' ', nullif(o.code, 0), nullif(o.reply, '')), ''),
                queue.last_reply),
            CASE WHEN queue.status = 'SENDING' AND o.event IN ('deferred', 'unknown')
                THEN now() + make_interval(secs => o.delay) ELSE queue.next_attempt END,
            greatest(queue.attempts - CASE WHEN o.event = 'handed back' THEN 1 ELSE 0 END, 0),
            CASE WHEN o.event = 'failed' AND queue.status = 'SENDING'
                THEN 'undeliverable' ELSE queue.hold_reason END,
            CASE WHEN o.event = 'failed' AND queue.status = 'SENDING'
                THEN %(worker)s ELSE queue.held_by END,
            NULL::text, NULL::timestamptz, NULL::bigint, NULL::timestamptz
        FROM outcome AS o
        WHERE o.id = queue.id AND o.token = queue.lease_token AND o.event <> 'delivered')
    WHERE id = ANY (ARRAY(SELECT id FROM outcome WHERE event <> 'delivered'))
        AND lease_token = ANY (ARRAY(
            SELECT o.token FROM outcome AS o WHERE o.id = queue.id AND o.event <> 'delivered'))
    RETURNING id
)
SELECT id FROM delivered UNION ALL SELECT id FROM moved

-- name: delivered
-- The same if all were delivered, which is mostly so: half of the cost of a statement is its set-up,
-- and this one is smaller.
WITH outcome AS MATERIALIZED (
    SELECT * FROM unnest(
        %(ids)b::bigint[], %(tokens)b::bigint[], %(message_ids)b::bigint[], %(senders)b::text[],
        %(recipients)b::text[], %(domains)b::text[], %(attempts)b::integer[],
        %(codes)b::smallint[], %(enhanced)b::text[], %(replies)b::text[], %(hosts)b::text[],
        %(commands)b::text[], %(started)b::timestamptz[], %(ended)b::timestamptz[])
        AS o (id, token, message_id, sender, recipient, domain, attempt,
            code, enhanced, reply, host, command, started_at, ended_at)
), logged AS (
    INSERT INTO attempts (ended_at, started_at, row_id, message_id, lease_token, attempt, code,
        event, sender, recipient, domain, worker, host, command, enhanced, reply)
    SELECT ended_at, started_at, id, message_id, token, attempt, code,
        'delivered', sender, recipient, domain, %(worker)s, host, command, enhanced, reply
    FROM outcome
)
DELETE FROM queue WHERE id = ANY (%(ids)b::bigint[]) RETURNING id

-- name: set_aside
-- Put the row of a refused outcome on hold, with the reason, for example of an operator's trigger. A
-- delivery is a fact under any lease: the row must not be sent again.
UPDATE queue
SET status = CASE WHEN status = 'DELETE' THEN status ELSE 'HOLD' END,
    hold_reason = %(reason)s, held_by = %(worker)s, hold_until = NULL,
    lease_owner = NULL, lease_since = NULL, lease_token = NULL, lease_until = NULL
WHERE id = %(id)s AND (lease_token = %(token)s OR %(delivered)s)

-- name: ran_out
-- The next rows by id whose lease ran out and that wait for a claim, so none with `once`.
SELECT id, message_id, lease_token FROM queue
WHERE id > %(after)s AND status IN ('QUEUED', 'DEFERRED', 'SENDING') AND lease_until < now()
    AND NOT once
ORDER BY id LIMIT %(batch)s

-- name: unknown
-- Log that the outcome of one row's last attempt is unknown, as a claim does, and let the row wait.
WITH picked AS MATERIALIZED (
    SELECT id FROM queue
    WHERE id = %(id)s AND lease_token = %(token)s AND lease_until < now()
        AND status IN ('QUEUED', 'DEFERRED', 'SENDING') AND NOT once
    FOR UPDATE
), logged AS MATERIALIZED (
    SELECT rows_log(ARRAY(SELECT id FROM picked), 'unknown') AS rows
)
UPDATE queue
SET status = CASE WHEN status = 'SENDING' THEN 'QUEUED' ELSE status END,
    lease_owner = NULL, lease_since = NULL, lease_token = NULL, lease_until = NULL
WHERE id = ANY (ARRAY(SELECT id FROM picked)) AND lease_token = %(token)s AND (SELECT rows FROM logged) > 0

-- name: hold
-- Put a row whose log entry is refused on hold: else the log could not explain a second delivery.
UPDATE queue
SET status = 'HOLD', hold_reason = %(reason)s, report_kind = 'unknown', held_by = %(who)s, hold_until = NULL,
    lease_owner = NULL, lease_since = NULL, lease_token = NULL, lease_until = NULL
WHERE id = %(id)s AND lease_token = %(token)s AND lease_until < now()
    AND status IN ('QUEUED', 'DEFERRED', 'SENDING')

-- name: final
-- Of the next rows by id with `once`: the last id, how many they are, and those whose lease ran out. A scheduled
-- row has none, and there may be a million of them.
WITH page AS MATERIALIZED (
    SELECT id, status, lease_until FROM queue WHERE once AND status <> 'SCHEDULED' AND id > %(after)s ORDER BY id LIMIT %(page)s
)
SELECT max(id), count(*),
    coalesce(array_agg(id) FILTER (WHERE lease_until < now() AND status <> 'DELETE'), '{}')
FROM page

-- name: settle_final
-- Settle rows with `once` whose lease ran out. If a transaction had begun, the outcome is unknown, and no attempt
-- follows: a row that an operator held or bounced is on hold, and its hold does not end by time. If none had
-- begun, the row is free again, and that attempt is not counted.
WITH picked AS MATERIALIZED (
    SELECT id, status, on_failed, begun IS NOT DISTINCT FROM lease_token AS begun FROM queue
    WHERE id = ANY (%(ids)b::bigint[]) AND once AND lease_until < now() AND status <> 'DELETE'
    FOR UPDATE SKIP LOCKED
), logged AS MATERIALIZED (
    SELECT rows_log(ARRAY(SELECT id FROM picked WHERE begun), 'unknown') AS rows
), gone AS (
    DELETE FROM queue
    WHERE id = ANY (ARRAY(SELECT id FROM picked
        WHERE begun AND on_failed = 'remove' AND status NOT IN ('HOLD', 'REPORT')))
        AND (SELECT rows FROM logged) > 0
), freed AS (
    UPDATE queue
    SET status = CASE WHEN status = 'SENDING' THEN 'QUEUED' ELSE status END, attempts = greatest(attempts - 1, 0),
        lease_owner = NULL, lease_since = NULL, lease_token = NULL, lease_until = NULL
    WHERE id = ANY (ARRAY(SELECT id FROM picked WHERE NOT begun))
), held AS (
    UPDATE queue
    SET status = 'HOLD', held_by = coalesce(held_by, %(who)s), hold_until = NULL, report_kind = 'unknown',
        hold_reason = concat_ws('; ', 'outcome unknown: a release may send a second copy', hold_reason),
        last_reply = 'lease ran out: the worker died or lost the database',
        lease_owner = NULL, lease_since = NULL, lease_token = NULL, lease_until = NULL
    WHERE id = ANY (ARRAY(SELECT id FROM picked
        WHERE begun AND (on_failed <> 'remove' OR status IN ('HOLD', 'REPORT'))))
        AND (SELECT rows FROM logged) > 0
)
SELECT id, begun FROM picked

-- name: hold_final
-- Put a row with `once` on hold if its log entry is refused. So there is no second copy, and the row has the reason.
UPDATE queue
SET status = 'HOLD', hold_reason = concat_ws('; ', %(reason)s::text, hold_reason),
    held_by = coalesce(held_by, %(who)s), hold_until = NULL, report_kind = 'unknown',
    lease_owner = NULL, lease_since = NULL, lease_token = NULL, lease_until = NULL
WHERE id = %(id)s AND once AND lease_until < now() AND status <> 'DELETE'
RETURNING message_id

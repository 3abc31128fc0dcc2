-- name: ran_out
-- The next rows by id whose lease ran out and that wait for a claim.
SELECT id, message_id, lease_token FROM queue
WHERE id > %(after)s AND status IN ('QUEUED', 'DEFERRED', 'SENDING') AND lease_until < now()
ORDER BY id LIMIT %(batch)s

-- name: unknown
-- Log that the outcome of one row's last attempt is unknown, as a claim does, and let the row wait.
WITH picked AS MATERIALIZED (
    SELECT id, message_id, sender, recipient, domain, attempts, lease_owner, lease_token, lease_since
    FROM queue
    WHERE id = %(id)s AND lease_token = %(token)s AND lease_until < now()
        AND status IN ('QUEUED', 'DEFERRED', 'SENDING')
    FOR UPDATE
), freed AS (
    UPDATE queue
    SET status = CASE WHEN status = 'SENDING' THEN 'QUEUED' ELSE status END,
        lease_owner = NULL, lease_since = NULL, lease_token = NULL, lease_until = NULL
    WHERE id = ANY (ARRAY(SELECT id FROM picked)) AND lease_token = %(token)s
)
INSERT INTO attempts (started_at, row_id, message_id, lease_token, attempt, code, event,
    sender, recipient, domain, worker, host, command, enhanced, reply)
SELECT lease_since, id, message_id, lease_token, attempts, 0, 'unknown',
    sender, left(recipient, 600), domain, lease_owner, '', '', '',
    'lease ran out: the worker died or lost the database'
FROM picked

-- name: hold
-- Put a row whose log entry is refused on hold: else the log could not explain a second delivery.
UPDATE queue
SET status = 'HOLD', hold_reason = %(reason)s, held_by = %(who)s, hold_until = NULL,
    lease_owner = NULL, lease_since = NULL, lease_token = NULL, lease_until = NULL
WHERE id = %(id)s AND lease_token = %(token)s AND lease_until < now()
    AND status IN ('QUEUED', 'DEFERRED', 'SENDING')

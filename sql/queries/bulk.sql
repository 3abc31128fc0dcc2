-- name: count
-- Rows that a condition matches.
SELECT count(*) FROM queue WHERE {where}

-- name: batch
-- The next rows that match, in the order of their ids.
SELECT id FROM queue WHERE id > %(after)s AND ({where}) ORDER BY id LIMIT %(batch)s

-- name: tried
-- Of these rows those that match, and those on which the condition fails, with the error.
SELECT id, error FROM queue_test(%(condition)s, %(ids)s::bigint[])

-- name: begin
-- Note in the audit table who begins what.
INSERT INTO audit (who, action, condition, details)
VALUES (%(who)s, %(action)s, %(condition)s, %(details)s::jsonb) RETURNING id

-- name: progress
-- So many more rows are done.
UPDATE audit SET rows = rows + %(rows)s WHERE id = %(audit)s

-- name: finish
-- The command came to its end.
UPDATE audit SET finished_at = now() WHERE id = %(audit)s

-- name: hold
-- Rows of a batch on hold; `errors` tells where the condition fails.
UPDATE queue SET status = 'HOLD', held_by = %(who)s,
    hold_reason = concat_ws(': the condition fails on this row: ', %(reason)s::text,
        %(errors)s::jsonb ->> id::text),
    hold_until = now() + make_interval(secs => %(hold)s::float8)
WHERE id = ANY (%(ids)s) AND status <> 'HOLD' AND ({where})

-- name: quarantine
-- Rows of a batch into a quarantine; held ones as well.
UPDATE queue SET status = 'HOLD', held_by = %(who)s,
    hold_reason = concat_ws(': the condition fails on this row: ', %(reason)s::text,
        %(errors)s::jsonb ->> id::text),
    hold_until = now() + make_interval(secs => %(hold)s::float8),
    metadata = jsonb_set(metadata, '{_quarantineid}', to_jsonb(%(quarantine)s::text))
WHERE id = ANY (%(ids)s) AND ({where})

-- name: release
-- Held rows of a batch back into the queue. The trigger queue_hold_stamp keeps those with a malformed
-- address on hold.
WITH released AS (
    UPDATE queue SET status = 'QUEUED'
    WHERE id = ANY (%(ids)s) AND status = 'HOLD' AND ({where})
    RETURNING status
)
SELECT FROM released WHERE status <> 'HOLD'

-- name: retry
-- Rows of a batch due now.
UPDATE queue SET next_attempt = now()
WHERE id = ANY (%(ids)s) AND status IN ('QUEUED', 'DEFERRED') AND ({where})

-- name: delete
-- Rows of a batch to be deleted by queued.
UPDATE queue SET status = 'DELETE' WHERE id = ANY (%(ids)s) AND status <> 'DELETE' AND ({where})

-- name: set
-- Priority and metadata of rows of a batch.
UPDATE queue SET priority = coalesce(%(priority)s::smallint, priority),
    metadata = (metadata || %(metadata)s::jsonb) - %(unset)s::text[]
WHERE id = ANY (%(ids)s) AND ({where})

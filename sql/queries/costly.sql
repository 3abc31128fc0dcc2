-- name: due
-- Rows on which a condition is tried: of each priority those that have been due the longest.
SELECT pick.id
FROM generate_series(0, 9) AS level (priority) CROSS JOIN LATERAL (
    SELECT id, next_attempt FROM queue
    WHERE status IN ('QUEUED', 'DEFERRED', 'SENDING') AND queue.priority = level.priority
        AND next_attempt AT TIME ZONE 'UTC' <= now() AT TIME ZONE 'UTC'
    ORDER BY next_attempt AT TIME ZONE 'UTC' LIMIT 200
) AS pick

-- name: meeting
-- The rows of these that a condition matches, and those on which it fails; the seconds that this took.
SELECT coalesce(array_agg(id), '{}'), extract(epoch FROM clock_timestamp() - statement_timestamp())::float8
FROM queue_test(%(condition)s, %(ids)b::bigint[])

-- name: rules_aside
-- Of these rules those that are set aside already.
SELECT name FROM rules WHERE 'rule ' || name = ANY (%(owners)s) AND slow_at IS NOT NULL

-- name: rule
-- Set a rule aside; `text` has the condition that was tried.
UPDATE rules SET slow_at = now()
WHERE 'rule ' || name = %(owner)s AND strpos(%(text)s, condition) > 0 AND slow_at IS NULL
RETURNING name

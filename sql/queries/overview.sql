-- name: workers
-- All registered workers, with their last heartbeat.
SELECT name, owner, action, condition, priority, reach, started_at, seen_at, handled,
    seen_at > now() - interval '1 minute' AS alive
FROM workers ORDER BY name, owner

-- name: rules
-- All standing rules.
SELECT name, action, condition, reason, quarantine, hold_seconds, origin, created_by, created_at,
    expires_at, slow_at, id, (SELECT count(*) FROM queue WHERE status = 'HOLD' AND held_under = 'rule ' || rules.id) AS held
FROM rules ORDER BY name

-- name: holding
-- The rules that would hold rows again if these were released.
SELECT name, rows FROM rules_holding(%(where)s)

-- name: matches
-- One scan. For each condition it counts the matching active rows, and how many are due since when. It
-- counts the rows that no delivering worker takes, and the rows that several take.
SELECT {columns} FROM queue WHERE status IN ('QUEUED', 'DEFERRED', 'SENDING')

-- name: verdict
-- Rows of a message that a condition matches, or on which it fails, with the error.
SELECT id, error FROM queue_test(%(condition)s, ARRAY(SELECT id FROM queue WHERE message_id = %(id)s))

-- name: rule
-- Add a standing rule of an operator.
INSERT INTO rules (name, action, condition, reason, quarantine, hold_seconds, origin, created_by,
    expires_at)
VALUES (%(name)s, %(action)s, %(condition)s, %(reason)s, %(quarantine)s, %(release_after)s, 'operator',
    %(who)s, now() + make_interval(secs => %(expire)s::float8))

-- name: unrule
-- Remove a standing rule; return how many rows it leaves on hold.
DELETE FROM rules WHERE name = %(name)s
RETURNING condition, id, (SELECT count(*) FROM queue WHERE status = 'HOLD' AND held_under = 'rule ' || rules.id) AS held

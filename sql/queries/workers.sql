-- name: register
-- Add a worker of this process.
INSERT INTO workers (owner, name, action, condition, reach, priority)
VALUES (%(owner)s, %(name)s, %(action)s, %(condition)s, %(reach)s, %(priority)s)
ON CONFLICT (owner, name) DO UPDATE SET action = excluded.action, condition = excluded.condition,
    reach = excluded.reach, priority = excluded.priority, seen_at = now(), handled = 0,
    in_flight = NULL

-- name: beat
-- Note a heartbeat; `names`, `handled` and `in_flight` are the workers of the process, the rows they have done so far, and those that
-- they have leased now.
UPDATE workers SET seen_at = now(), handled = done.handled, in_flight = done.in_flight
FROM unnest(%(names)b::text[], %(handled)b::bigint[], %(in_flight)b::integer[]) AS done (name, handled, in_flight)
WHERE owner = %(owner)s AND workers.name = done.name
RETURNING workers.name

-- name: places
-- For each worker of this process that delivers: how many claim the same rows, how many of them stand
-- before it, and the time in seconds.
SELECT mine.name, count(*) FILTER (WHERE (peer.owner, peer.name) < (mine.owner, mine.name)), count(*),
    extract(epoch FROM clock_timestamp())::float8
FROM workers AS mine JOIN workers AS peer
    ON peer.action = mine.action AND peer.condition IS NOT DISTINCT FROM mine.condition
        AND peer.priority = mine.priority
WHERE mine.owner = %(owner)s AND mine.action = 'deliver'
    AND (peer.owner = mine.owner OR peer.seen_at > now() - interval '30 seconds')
GROUP BY mine.owner, mine.name

-- name: takers
-- The rows that each living delivery worker takes, and the rows that standing rules keep back. The
-- answer is empty unless this process is the first of the living ones, because one process asks for
-- all. Otherwise it has at least the row `none`.
WITH live AS (SELECT * FROM workers WHERE seen_at > now() - interval '1 minute')
SELECT 'none' AS action, 'false' AS condition, 9::smallint AS priority, 0::bigint AS number
WHERE (SELECT min(owner) FROM live) = %(owner)s
UNION ALL
SELECT action, condition, priority, 0 FROM live WHERE action = 'deliver'
    AND (SELECT min(owner) FROM live) = %(owner)s
UNION ALL
SELECT 'rule', condition, 9::smallint, id FROM rules
WHERE (SELECT min(owner) FROM live) = %(owner)s AND (expires_at IS NULL OR expires_at > now())
    AND slow_at IS NULL

-- name: overdue
-- The rows of each priority that have been due the longest. Rows that no worker takes stay among them,
-- so that a few rows are enough.
SELECT pick.id, pick.message_id, pick.priority
FROM generate_series(0, 9) AS level (priority) CROSS JOIN LATERAL (
    SELECT * FROM queue
    WHERE status IN ('QUEUED', 'DEFERRED', 'SENDING') AND queue.priority = level.priority
        AND next_attempt AT TIME ZONE 'UTC' <= (now() - interval '1 minute') AT TIME ZONE 'UTC'
        AND (lease_until IS NULL OR (lease_until < now() AND NOT once))
    ORDER BY next_attempt AT TIME ZONE 'UTC' LIMIT %(each)s
) AS pick

-- name: tested
-- Of these rows those that a condition matches, and those on which it fails.
SELECT id, error IS NOT NULL FROM queue_test(%(condition)s, %(ids)b::bigint[])


-- name: leave
-- Remove the process, which ends, and processes that have not been seen for a day.
DELETE FROM workers WHERE owner = %(owner)s OR seen_at < now() - interval '1 day'


-- name: rule
-- A standing rule of a worker. An unchanged one is not written, so that its version stays.
INSERT INTO rules (name, action, condition, reason, quarantine, hold_seconds, origin, created_by)
VALUES (%(name)s, %(action)s, %(condition)s, %(reason)s, %(quarantine)s, %(release_after)s, 'worker', %(who)s)
ON CONFLICT (name) DO UPDATE SET action = excluded.action, condition = excluded.condition,
    reason = excluded.reason, quarantine = excluded.quarantine,
    hold_seconds = excluded.hold_seconds, origin = 'worker', created_by = excluded.created_by,
    expires_at = NULL
WHERE (rules.action, rules.condition, rules.reason, rules.quarantine, rules.hold_seconds)
    IS DISTINCT FROM (excluded.action, excluded.condition, excluded.reason, excluded.quarantine,
        excluded.hold_seconds)

-- name: judge
-- Why the condition of a rule may not be evaluated, or null.
SELECT condition_fault(%(condition)s)

-- name: rules
-- The standing rules of operators, with what their holds need.
SELECT name, action, condition, reason, quarantine, hold_seconds, id FROM rules
WHERE origin = 'operator' AND (expires_at IS NULL OR expires_at > now()) AND slow_at IS NULL ORDER BY name

-- name: now
-- The time, how many rows have come in ever, and the last count of the queue.
SELECT now() AS at, (SELECT last_value FROM queue_ids) + (SELECT last_value FROM scheduled_ids) AS accepted,
    counted.at AS counted_at, share, oldest_due
FROM queue_counted AS counted

-- name: events
-- Attempts that ended in the last seconds, by event.
SELECT event, count(*) AS attempts FROM attempts
WHERE ended_at > now() - make_interval(secs => %(seconds)s) AND ended_at <= now() GROUP BY event

-- name: hosts
-- Attempts that ended in the last seconds, by host, else domain: those with the most failures, then the slowest.
WITH parts AS (  -- by hash: mode() would sort all of them
    SELECT coalesce(nullif(host, ''), domain) AS host, class, count(*) AS attempts,
        count(*) FILTER (WHERE event = 'delivered') AS delivered,
        count(*) FILTER (WHERE event = 'deferred') AS deferred,
        sum(extract(epoch FROM ended_at - started_at)::float8) AS seconds
    FROM attempts
    WHERE ended_at > now() - make_interval(secs => %(seconds)s)
        AND event IN ('delivered', 'deferred', 'failed', 'unknown', 'expired')
    GROUP BY 1, 2
)
SELECT host, sum(attempts)::bigint AS attempts, sum(delivered)::bigint AS delivered,
    sum(deferred)::bigint AS deferred, sum(attempts - delivered - deferred)::bigint AS failed,
    sum(seconds) / sum(attempts) AS seconds,
    (array_agg(class ORDER BY attempts DESC, class) FILTER (WHERE class IS NOT NULL))[1] AS class
FROM parts GROUP BY 1 ORDER BY sum(attempts - delivered) DESC, 6 DESC LIMIT %(most)s

-- name: counts
-- The last count of the queue by next hop and status; null: those that have no line.
SELECT next_hop, status, sum(rows)::bigint AS rows, sum(due)::bigint AS due, min(oldest_due) AS oldest_due
FROM queue_counts GROUP BY 1, 2

-- name: workers
-- Workers with a heartbeat in the last quarter of an hour.
SELECT name, owner, action, extract(epoch FROM now() - seen_at)::float8 AS silence, handled, in_flight, seen_at
FROM workers WHERE seen_at > now() - interval '15 minutes' ORDER BY name, owner

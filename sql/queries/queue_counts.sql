-- name: parts
-- The statuses whose partitions have pages, if it is the turn of the caller, and the part of them that a count reads.
-- QUEUED stands for all that share the default partition. Up to `exact` octets are read whole, and of the larger ones
-- `octets` together. The rights of queued are on the whole table, so that a condition chooses the partition.
WITH sizes AS (
    SELECT CASE c.relname WHEN 'queue_hold' THEN 'HOLD' WHEN 'queue_delete' THEN 'DELETE'
            WHEN 'queue_scheduled' THEN 'SCHEDULED' WHEN 'queue_report' THEN 'REPORT' ELSE 'QUEUED' END AS status,
        sum(pg_relation_size(relid)) AS size
    FROM pg_partition_tree('queue') JOIN pg_class AS c ON c.oid = relid WHERE isleaf GROUP BY 1
)
SELECT status, CASE WHEN size <= %(exact)s THEN 1.0
    ELSE least(1.0, %(octets)s::float8 / (SELECT sum(size) FROM sizes WHERE size > %(exact)s)) END::float8
FROM sizes WHERE size > 0 AND EXISTS (
    SELECT FROM queue_counted WHERE at < now() - make_interval(secs => %(least)s) OR at > now() + interval '1 minute')

-- name: count
-- Replace queue_counts, unless another process counts now, or has counted less than `least` seconds ago. The snapshot
-- is read without locks, and nothing that delivery needs is written. The braces have the groups of each partition, and
-- the next hop of a group.
WITH turn AS MATERIALIZED (
    SELECT FROM queue_counted
    WHERE at < now() - make_interval(secs => %(least)s) OR at > now() + interval '1 minute'
    FOR UPDATE SKIP LOCKED
), grouped AS ({parts}
), counted AS (
    SELECT {next_hop} AS next_hop, status, tenant, sum(rows)::bigint AS rows, sum(due)::bigint AS due,
        min(oldest) AS oldest, min(first) FILTER (WHERE first <= now()) AS oldest_due
    FROM grouped GROUP BY 1, 2, 3
), largest AS MATERIALIZED (
    SELECT * FROM counted ORDER BY rows DESC LIMIT %(most)s
), rest AS (
    SELECT c.status, sum(c.rows) - coalesce(sum(l.rows), 0) AS rows, sum(c.due) - coalesce(sum(l.due), 0) AS due,
        min(c.oldest) FILTER (WHERE l.status IS NULL) AS oldest,
        min(c.oldest_due) FILTER (WHERE l.status IS NULL) AS oldest_due
    FROM counted AS c LEFT JOIN largest AS l USING (next_hop, status, tenant)
    GROUP BY c.status HAVING count(*) > count(l.status)
), old AS (
    DELETE FROM queue_counts WHERE EXISTS (SELECT FROM turn)
), new AS (
    INSERT INTO queue_counts (next_hop, status, tenant, rows, due, oldest, oldest_due)
    SELECT next_hop, status, tenant, rows, due, oldest, oldest_due FROM largest
    UNION ALL SELECT NULL, status, NULL, rows, due, oldest, oldest_due FROM rest
    RETURNING 1
)
UPDATE queue_counted SET at = now(), share = %(share)s, seconds = extract(epoch FROM clock_timestamp() - now()),
    oldest_due = (
        SELECT min(first.next_attempt) FROM generate_series(0, 9) AS level (priority) CROSS JOIN LATERAL (
            SELECT next_attempt FROM queue
            WHERE status IN ('QUEUED', 'DEFERRED') AND queue.priority = level.priority
                AND next_attempt AT TIME ZONE 'UTC' <= now() AT TIME ZONE 'UTC'
            ORDER BY next_attempt AT TIME ZONE 'UTC' LIMIT 1) AS first),
    dead_rows = (SELECT coalesce(sum(pg_stat_get_dead_tuples(relid)), 0) FROM pg_partition_tree('queue') WHERE isleaf),
    (horizon_holder, horizon_transactions) = (
        SELECT holder, transactions FROM horizon_holders ORDER BY transactions DESC LIMIT 1)
WHERE EXISTS (SELECT FROM turn) AND (SELECT count(*) FROM new) >= 0  -- makes this statement the last one
RETURNING 1

-- name: part
-- The groups of one partition, for `count`: rows of a sample stand for `times` as many.
SELECT {path} AS domain, status, tenant, round(count(*) * {times}) AS rows,
    round(count(*) FILTER (WHERE next_attempt <= now() AND status IN ('QUEUED', 'DEFERRED')) * {times}) AS due,
    min(ts) AS oldest, min(next_attempt) FILTER (WHERE status IN ('QUEUED', 'DEFERRED')) AS first
FROM queue{sample} WHERE status IN ({statuses}) AND EXISTS (SELECT FROM turn) GROUP BY 1, 2, 3

-- name: read
-- How old the counts are, the seconds that they took, the share that was read, the age of the oldest due row, and what
-- vacuum may not remove: dead rows, by whom, and whether this login sees each holder.
SELECT extract(epoch FROM now() - at)::float8, seconds::float8, share::float8,
    CASE WHEN oldest_due IS NOT NULL THEN greatest(extract(epoch FROM now() - oldest_due), 0)::float8 END,
    dead_rows, horizon_holder, coalesce(horizon_transactions, 0), pg_has_role('pg_read_all_stats', 'USAGE')
FROM queue_counted WHERE at > '-infinity'

-- name: groups
-- The counts, with the ages of their oldest rows, and of their oldest due rows by their time, in seconds.
SELECT next_hop, status, tenant, rows, due, greatest(extract(epoch FROM now() - oldest), 0)::float8,
    CASE WHEN oldest_due IS NOT NULL THEN greatest(extract(epoch FROM now() - oldest_due), 0)::float8 END
FROM queue_counts

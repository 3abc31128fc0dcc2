-- name: look
-- What a tick asks (pgmta/store/mark/ticks.py), and the rows that wait or are leased: those whose next attempt is from
-- `low` on, and before `high` and now, up to `most`; and those of `ids` that are due before `high`. `free` says
-- whether a claim may lease the row now. The first line comes without a row too. With `blocks` it says how many blocks
-- the range has cost, and with `leaves` how many partitions it has asked. The time is that before the number, because
-- transactions with a later number write later.
WITH {before}found AS MATERIALIZED (
    SELECT pick.*
    FROM generate_series(0, %(priority)s) AS level (priority)
    CROSS JOIN LATERAL (
        SELECT id, {key} AS domain, queue.priority, next_attempt,
            lease_until IS NULL OR (lease_until < now() AND NOT once) AS free
        FROM queue
        WHERE status IN ('QUEUED', 'DEFERRED', 'SENDING')
            AND queue.priority = level.priority
            AND next_attempt AT TIME ZONE 'UTC' >= to_timestamp(%(low)s) AT TIME ZONE 'UTC'
            AND next_attempt AT TIME ZONE 'UTC' < least(to_timestamp(%(high)s), now()) AT TIME ZONE 'UTC'
            AND ({partition}){after_before}
        ORDER BY next_attempt AT TIME ZONE 'UTC'
        LIMIT %(most)s
    ) AS pick
    LIMIT %(most)s
), named AS MATERIALIZED (
    SELECT id, {key} AS domain, priority, next_attempt, lease_until IS NULL OR (lease_until < now() AND NOT once) AS free
    FROM queue
    WHERE id = ANY (%(ids)b::bigint[]) AND status IN ('QUEUED', 'DEFERRED', 'SENDING')
        AND queue.priority + 0 <= %(priority)s AND next_attempt + '0s' < to_timestamp(%(high)s)
)
SELECT extract(epoch FROM now())::float8, pg_current_xact_id()::text::bigint, pg_current_snapshot()::text,
    {blocks}::bigint, {leaves}::integer, rows.id, rows.domain, rows.priority, extract(epoch FROM rows.next_attempt)::float8, rows.free
FROM (SELECT) AS tick LEFT JOIN (SELECT * FROM found UNION ALL SELECT * FROM named) AS rows ON true

-- name: walk
-- The pairs of domain and priority that have free rows, and the earliest next attempt of these, from the pair after
-- `cursor` on, up to `steps`; the blocks that this has cost, and how many partitions each step has asked.
WITH RECURSIVE {before}{walk}
SELECT {blocks}::bigint, {leaves}::integer, walk.domain, walk.priority, extract(epoch FROM walk.next_attempt)::float8
FROM (SELECT) AS one LEFT JOIN walk ON true

-- name: floors
-- Of each of these pairs the first `each` free rows whose next attempt is from its floor on and before `high`.
SELECT pair.domain, pair.priority, first.id, extract(epoch FROM first.next_attempt)::float8
FROM unnest(%(domains)b::text[], %(levels)b::smallint[], %(floors)b::float8[]) AS pair (domain, priority, floor)
CROSS JOIN LATERAL (
    SELECT id, next_attempt FROM queue
    WHERE status IN ('QUEUED', 'DEFERRED', 'SENDING'){urgent}
        AND {key} = pair.domain AND queue.priority = pair.priority
        AND next_attempt >= to_timestamp(pair.floor) AND next_attempt < to_timestamp(%(high)s)
        AND ({partition}){free}
    ORDER BY next_attempt
    LIMIT %(each)s
) AS first
LIMIT %(most)s

-- name: free
-- No lease lasts.
AND (lease_until IS NULL OR (lease_until < now() AND NOT once))

-- name: before
-- Part of a look that is measured: blocks that this session had read of the queue before.
before AS MATERIALIZED (SELECT {read} AS number), 

-- name: leaves
-- Partitions that may hold rows which wait or are leased.
(SELECT count(*) FROM pg_partition_tree('queue_def') WHERE isleaf)

-- name: read
-- Blocks that this session has read of the queue since it last reported its statistics, after `what` is complete.
(SELECT sum(pg_stat_get_xact_blocks_fetched(relid)) FROM (
    SELECT relid FROM pg_partition_tree('queue') UNION ALL SELECT relid FROM pg_partition_tree('queue_due')
    UNION ALL SELECT relid FROM pg_partition_tree('queue_domain_due')
    UNION ALL SELECT relid FROM pg_partition_tree('queue_urgent')) AS parts
    WHERE (SELECT count(*) FROM {what}) >= 0)

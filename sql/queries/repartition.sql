-- name: columns
-- Columns of queue; a leaf may have them in another order.
SELECT attname FROM pg_attribute
WHERE attrelid = 'pgmta.queue'::regclass AND attnum > 0 AND NOT attisdropped AND attgenerated = ''
ORDER BY attnum

-- name: options
-- Storage settings of a leaf.
SELECT o.option_name AS name, o.option_value AS value
FROM pg_class AS c CROSS JOIN pg_options_to_table(c.reloptions) AS o
WHERE c.oid = {leaf}::regclass

-- name: turn
-- Let one command change partitions at a time. This lock stops no mail.
SELECT FROM pgmta.mutexes WHERE name = 'change of partitions' FOR UPDATE NOWAIT

-- name: known
-- Whether there is a table of this name.
SELECT FROM pg_class WHERE oid = to_regclass({name})

-- name: quiet
-- Keep VACUUM away before the short lock. Otherwise that lock waits for VACUUM, and mail waits for both.
-- Stops no mail.
LOCK TABLE ONLY {source}, ONLY {default} IN SHARE UPDATE EXCLUSIVE MODE

-- name: stop
-- Stop the mail. The root first: a statement that waits for it has not yet chosen its partitions.
LOCK TABLE ONLY pgmta.queue, ONLY pgmta.queue_def, ONLY {source}, ONLY {default}
    IN ACCESS EXCLUSIVE MODE

-- name: blockers
-- Sessions that hold a lock on the queue.
SELECT a.pid, a.application_name AS name, a.state, date_trunc('second', clock_timestamp() - a.xact_start) AS since
FROM pg_stat_activity AS a
WHERE a.datname = current_database() AND a.pid <> pg_backend_pid() AND a.pid IN (
    SELECT l.pid FROM pg_locks AS l
    WHERE l.granted AND l.relation IN ('pgmta.queue'::regclass, 'pgmta.queue_def'::regclass))
ORDER BY a.xact_start

-- name: prepare
-- The new leaf, not attached yet. The check spares ATTACH a scan. ATTACH takes the indexes over.
-- It takes no settings over, because a partitioned table has none. `moving` notes which version of each row
-- is copied.
CREATE TABLE {target} (LIKE pgmta.queue_def INCLUDING ALL, CONSTRAINT attach CHECK ({mine}))
    {options};
ALTER TABLE {target} REPLICA IDENTITY FULL;
CREATE TEMPORARY TABLE pg_temp.moving (id bigint, version xid) ON COMMIT DROP;
SET LOCAL jit = off;
SET LOCAL work_mem = '64MB'

-- name: catch_up
-- Make the target what `mine` is in the source right now: drop copies whose row has gone or changed
-- since, copy new rows. Any change of a row gives it another xmin. Hash joins, because
-- the planner does not know the size of the CTE.
SET LOCAL enable_nestloop = off;
WITH seen AS MATERIALIZED (
    SELECT ctid AS place, id, xmin AS version FROM {source} WHERE {mine}
), stale AS (
    DELETE FROM pg_temp.moving AS m
    WHERE NOT EXISTS (SELECT FROM seen WHERE seen.id = m.id AND seen.version = m.version)
    RETURNING m.id
), gone AS (
    DELETE FROM {target} WHERE id = ANY (ARRAY(SELECT id FROM stale))
), fresh AS MATERIALIZED (
    SELECT {columns}, xmin AS version FROM {source}
    WHERE ctid = ANY (ARRAY(SELECT place FROM seen WHERE NOT EXISTS (
        SELECT FROM pg_temp.moving AS m WHERE m.id = seen.id AND m.version = seen.version)))
), noted AS (
    INSERT INTO pg_temp.moving SELECT id, version FROM fresh
)
INSERT INTO {target} ({columns}) SELECT {columns} FROM fresh;
SET LOCAL enable_nestloop = DEFAULT

-- name: analyze
-- Statistics of the copied rows.
ANALYZE pg_temp.moving;
ANALYZE {target}

-- name: take
-- The rows are in the target, so remove them from the source. The trigger of queue does not run, because
-- no body goes with them.
DELETE FROM {source} WHERE {mine}

-- name: copied
-- The number of rows in the target.
SELECT count(*) AS rows FROM {target}

-- name: attach
-- Attach the filled table as a leaf.
ALTER TABLE pgmta.queue_def ATTACH PARTITION {target} FOR VALUES IN ({values});
ALTER TABLE {target} DROP CONSTRAINT attach;
COMMENT ON TABLE {target} IS {comment}

-- name: detach
-- Detach the leaf.
ALTER TABLE pgmta.queue_def DETACH PARTITION {source}

-- name: reattach
-- Attach the leaf again for fewer values.
ALTER TABLE pgmta.queue_def ATTACH PARTITION {source} FOR VALUES IN ({values});
COMMENT ON TABLE {source} IS {comment}

-- name: merge
-- Move the rows of a detached leaf into the default one.
INSERT INTO {target} ({columns}) SELECT {columns} FROM {source}

-- name: drop
-- Drop the empty leaf.
DROP TABLE {source}

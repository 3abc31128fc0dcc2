-- name: tree
-- Every partition of queue, parents before children; bounds and keys as PostgreSQL writes them.
-- The numbers of rows come from the statistics.
SELECT c.relname AS name, p.relname AS parent, t.isleaf AS leaf,
    pg_get_expr(c.relpartbound, c.oid) AS bound, pg_get_partkeydef(p.oid) AS key,
    coalesce(nullif(pg_stat_get_live_tuples(c.oid), 0), greatest(c.reltuples, 0))::bigint AS rows,
    pg_total_relation_size(c.oid) AS size
FROM pg_partition_tree('pgmta.queue') AS t
    JOIN pg_class AS c ON c.oid = t.relid
    LEFT JOIN pg_class AS p ON p.oid = t.parentrelid
ORDER BY t.level, pg_get_expr(c.relpartbound, c.oid) = 'DEFAULT', name

-- name: oldest
-- The row of a leaf with the lowest id, by its index: about the oldest one.
SELECT oldest FROM pgmta.leaf_rows({leaf}, false)

-- name: exact
-- Rows of a leaf, and the time of the oldest. Reads the whole leaf.
SELECT rows, oldest FROM pgmta.leaf_rows({leaf}, true)

-- name: deserving
-- Values in the default leaf with enough rows for a separate leaf.
SELECT metadata ->> '_partid' AS value, count(*) AS rows FROM {leaf}
WHERE metadata ->> '_partid' IS NOT NULL
GROUP BY 1 HAVING count(*) >= {least} ORDER BY 2 DESC, 1 LIMIT 10

-- name: readable
-- Whether this role may read a leaf.
SELECT has_table_privilege({leaf}, 'SELECT') AS readable

-- name: log_default
-- Rows of the log that are in no partition of a day.
SELECT rows, oldest FROM pgmta.leaf_rows('pgmta.attempts_default', true)

-- name: findings
-- Problems and hints about the partitions, found without reading rows.
WITH tree AS (
    SELECT t.relid, t.parentrelid, t.isleaf, c.relname AS name, p.relname AS parent,
        c.relpersistence, pg_get_expr(c.relpartbound, c.oid) AS bound, i.inhdetachpending,
        (SELECT array_agg(o.option_name) FROM pg_options_to_table(c.reloptions) AS o) AS settings
    FROM pg_partition_tree('pgmta.queue') AS t
        JOIN pg_class AS c ON c.oid = t.relid
        LEFT JOIN pg_class AS p ON p.oid = t.parentrelid
        LEFT JOIN pg_inherits AS i ON i.inhrelid = t.relid
), found AS (
    SELECT 'problem' AS severity, name AS object,
        'has no default partition: other values are refused' AS finding,
        format('CREATE TABLE pgmta.%I PARTITION OF pgmta.%I DEFAULT;', name || '_def', name) AS remedy
    FROM tree
    WHERE NOT isleaf AND NOT EXISTS (
        SELECT FROM tree AS child WHERE child.parentrelid = tree.relid AND child.bound = 'DEFAULT')
    UNION ALL
    SELECT 'problem', tree.name, format('lacks the index %s of %s', x.indexrelid::regclass, parent),
        format('create it on %I like that of %I, then ALTER INDEX %s ATTACH PARTITION it',
            tree.name, parent, x.indexrelid::regclass)
    FROM tree JOIN pg_index AS x ON x.indrelid = tree.parentrelid
    WHERE NOT EXISTS (
        SELECT FROM pg_inherits AS i JOIN pg_index AS own ON own.indexrelid = i.inhrelid
        WHERE i.inhparent = x.indexrelid AND own.indrelid = tree.relid AND own.indisvalid)
    UNION ALL
    SELECT 'problem', 'queue', format('the trigger %s is missing or disabled', wanted),
        'see sql/schema/queue.sql; or ALTER TABLE pgmta.queue ENABLE TRIGGER ' || wanted || ';'
    FROM unnest(ARRAY['messages_refcount', 'queue_hold_stamp']) AS wanted
    WHERE NOT EXISTS (
        SELECT FROM pg_trigger WHERE tgrelid = 'pgmta.queue'::regclass AND tgname = wanted
            AND tgenabled IN ('O', 'A'))
    UNION ALL
    SELECT 'problem', tree.name, format('the trigger %s of %s is missing or disabled', tgname, parent),
        format('ALTER TABLE pgmta.%I ENABLE TRIGGER %I;', tree.name, tgname)
    FROM tree JOIN pg_trigger AS t ON t.tgrelid = tree.parentrelid
    WHERE NOT t.tgisinternal AND t.tgtype & 1 = 1 AND t.tgenabled IN ('O', 'A') AND NOT EXISTS (
        SELECT FROM pg_trigger AS own WHERE own.tgrelid = tree.relid AND own.tgparentid = t.oid
            AND own.tgenabled IN ('O', 'A'))
    UNION ALL
    SELECT CASE tgname WHEN 'messages_refcount' THEN 'problem' ELSE 'hint' END, tree.name,
        format('has a trigger %s; the trigger of queue is enough', tgname),
        format('DROP TRIGGER %I ON pgmta.%I;', tgname, tree.name)
    FROM tree JOIN pg_trigger AS t ON t.tgrelid = tree.relid
    WHERE tree.parentrelid IS NOT NULL AND NOT t.tgisinternal AND t.tgparentid = 0
    UNION ALL
    SELECT 'problem', tree.name, 'lacks the settings ' || string_agg(key, ', ' ORDER BY key),
        format('ALTER TABLE pgmta.%I SET (%s);', tree.name,
            string_agg(format('%s = %s', key, wanted.value), ', ' ORDER BY key))
    FROM tree CROSS JOIN jsonb_each_text({settings}::jsonb) AS wanted (key, value)
    WHERE isleaf AND parent = 'queue_def' AND key <> ALL (coalesce(settings, '{{}}'))
    GROUP BY tree.name
    UNION ALL
    SELECT CASE WHEN EXISTS (SELECT FROM pg_publication) THEN 'problem' ELSE 'hint' END, tree.name,
        'has no replica identity: a publication that has it stops its mail',
        format('ALTER TABLE pgmta.%I REPLICA IDENTITY FULL;', tree.name)
    FROM tree JOIN pg_class AS c ON c.oid = tree.relid WHERE c.relreplident IN ('d', 'n')
    UNION ALL
    SELECT 'problem', tree.name, format('belongs to %s, so the owner of queue can''t read or change it', c.relowner::regrole),
        format('ALTER TABLE pgmta.%I OWNER TO %s;', tree.name, q.relowner::regrole)
    FROM tree JOIN pg_class AS c ON c.oid = tree.relid
        JOIN pg_class AS q ON q.oid = 'pgmta.queue'::regclass AND q.relowner <> c.relowner
    UNION ALL
    SELECT 'problem', name, 'is not logged: a crash empties it',
        format('ALTER TABLE pgmta.%I SET LOGGED;', name)
    FROM tree WHERE isleaf AND relpersistence <> 'p'
    UNION ALL
    SELECT 'problem', name, 'is being detached, and its rows are not seen any more',
        format('ALTER TABLE pgmta.%I DETACH PARTITION pgmta.%I FINALIZE;', parent, name)
    FROM tree WHERE inhdetachpending
    UNION ALL
    SELECT 'problem', c.relname, 'looks like a partition of queue and is none: no statement sees its rows',
        format('move its rows (TABLE pgmta.%I) into pgmta.queue, or attach or drop it', c.relname)
    FROM pg_class AS c
    WHERE c.relnamespace = 'pgmta'::regnamespace AND c.relkind IN ('r', 'p')
        AND starts_with(c.relname, 'queue_') AND NOT c.relispartition AND NOT EXISTS (
            SELECT FROM pg_attribute AS a
            WHERE a.attrelid = 'pgmta.queue'::regclass AND a.attnum > 0 AND NOT a.attisdropped
                AND a.attname NOT IN (SELECT attname FROM pg_attribute WHERE attrelid = c.oid))
    UNION ALL
    SELECT CASE WHEN ahead < 2 THEN 'problem' ELSE 'hint' END, day, 'this day''s partition is missing',
        'SELECT pgmta.days_make(''attempts'', 7); a running queued does so every hour'
    FROM generate_series(0, 7) AS ahead
        CROSS JOIN to_char((now() AT TIME ZONE 'UTC')::date + ahead, '"attempts_"YYYYMMDD') AS day
    WHERE NOT EXISTS (
        SELECT FROM pg_inherits AS i JOIN pg_class AS c ON c.oid = i.inhrelid
        WHERE i.inhparent = 'pgmta.attempts'::regclass AND c.relname = day)
)
SELECT severity, object, finding, remedy FROM found ORDER BY severity DESC, object, finding

-- name: log_exists
-- Whether the log has its default partition.
SELECT FROM pg_class WHERE oid = to_regclass('pgmta.attempts_default')

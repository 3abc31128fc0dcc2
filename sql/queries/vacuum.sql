-- name: begin
-- Whether the role may vacuum the chunks (as owner of the table or the database, or by the privilege
-- that PostgreSQL 17 brought), and whether no other session vacuums. If two begin at once, one skips the table.
SELECT may, NOT EXISTS (
    SELECT FROM pg_locks
    WHERE relation = 'message_chunks'::regclass AND mode = 'ShareUpdateExclusiveLock' AND granted
        AND database = (SELECT oid FROM pg_database WHERE datname = current_database()))
FROM (
    SELECT {may} AS may FROM pg_class AS c WHERE c.oid = 'message_chunks'::regclass
) AS rights

-- name: may
-- Part of both questions about vacuum: whether the role has the right to vacuum a table.
(pg_has_role(c.relowner, 'USAGE')
    OR (SELECT pg_has_role(datdba, 'USAGE') FROM pg_database WHERE datname = current_database())
    OR CASE WHEN current_setting('server_version_num')::integer >= 170000
        THEN has_table_privilege(c.oid, 'MAINTAIN') ELSE false END)

-- name: reclaim
-- Room of delivered content is to be written on again while it is in memory. Autovacuum hears of it too
-- late: the statistics come once per second, and by then the file has grown by chunks that would have fitted.
VACUUM (SKIP_LOCKED, TRUNCATE off, INDEX_CLEANUP on) message_chunks

-- name: shorten
-- Vacuum the chunks, and give the empty end of the file back to the file system.
VACUUM (SKIP_LOCKED, TRUNCATE on, INDEX_CLEANUP on) message_chunks

-- name: finish
-- Octets that the chunks take, delivered ones included.
SELECT pg_relation_size('message_chunks')

-- name: crowded
-- Tables with more dead rows than their own settings of autovacuum name, if the role may vacuum them. Autovacuum
-- itself would have to look each second, and starts a process for each look. With their dead rows, and the seconds
-- since any session last vacuumed them, null if none did.
SELECT format('%I.%I', n.nspname, c.relname), pg_stat_get_dead_tuples(c.oid),
    extract(epoch FROM clock_timestamp()
        - greatest(pg_stat_get_last_vacuum_time(c.oid), pg_stat_get_last_autovacuum_time(c.oid)))::float8
FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
CROSS JOIN LATERAL (
    SELECT coalesce(max(option_value) FILTER (WHERE option_name = 'autovacuum_vacuum_threshold'), '50')::float8 AS least,
        (max(option_value) FILTER (WHERE option_name = 'autovacuum_vacuum_scale_factor'))::float8 AS share
    FROM pg_options_to_table(c.reloptions)
) AS o
WHERE n.oid = (SELECT relnamespace FROM pg_class WHERE oid = 'queue'::regclass) AND c.relkind = 'r'
    AND (pg_stat_get_dead_tuples(c.oid) > o.least + o.share * greatest(c.reltuples, 0)
        -- bodies in TOAST have a setting of theirs
        OR pg_stat_get_dead_tuples(c.reltoastrelid) > (
            SELECT max(option_value)::float8 FROM pg_class AS t, pg_options_to_table(t.reloptions)
            WHERE t.oid = c.reltoastrelid AND option_name = 'autovacuum_vacuum_threshold'))
    AND {may}

-- name: left
-- Dead rows that a vacuum left.
SELECT pg_stat_get_dead_tuples(%(table)s::regclass)

-- name: vacuum
-- Vacuum without shortening the file, because its pages are soon used again.
VACUUM (SKIP_LOCKED, TRUNCATE off) {table}

-- name: begin
-- Whether the role may vacuum the chunks (as owner of the table or the database, or by the privilege
-- that PostgreSQL 17 brought), and whether no other session vacuums. If two begin at once, one skips the table.
SELECT may, NOT EXISTS (
    SELECT FROM pg_locks
    WHERE relation = 'message_chunks'::regclass AND mode = 'ShareUpdateExclusiveLock' AND granted
        AND database = (SELECT oid FROM pg_database WHERE datname = current_database()))
FROM (
    SELECT pg_has_role(relowner, 'USAGE')
        OR (SELECT pg_has_role(datdba, 'USAGE') FROM pg_database WHERE datname = current_database())
        OR CASE WHEN current_setting('server_version_num')::integer >= 170000
            THEN has_table_privilege(oid, 'MAINTAIN') ELSE false END AS may
    FROM pg_class WHERE oid = 'message_chunks'::regclass
) AS rights

-- name: reclaim
-- Room of delivered content is to be written on again while it is in memory. Autovacuum hears of it too
-- late: the statistics come once per second, and by then the file has grown by chunks that would have fitted.
VACUUM (SKIP_LOCKED, TRUNCATE off, INDEX_CLEANUP on) message_chunks

-- name: shorten
-- The same, and give the empty end of the file back to the file system.
VACUUM (SKIP_LOCKED, TRUNCATE on, INDEX_CLEANUP on) message_chunks

-- name: finish
-- Octets that the chunks take, delivered ones included.
SELECT pg_relation_size('message_chunks')

-- name: allowed
-- Whether we may vacuum the pieces of content: as owner, or by the privilege that PostgreSQL 17 brought.
SELECT pg_has_role(relowner, 'USAGE') OR CASE WHEN current_setting('server_version_num')::integer >= 170000
    THEN has_table_privilege(oid, 'MAINTAIN') ELSE false END
FROM pg_class WHERE oid = 'message_chunks'::regclass

-- name: reclaim
-- Room of delivered content is to be written on again while it is in memory. Autovacuum hears of it too
-- late: the statistics come once a second, and by then a file has grown by what would have fitted.
VACUUM (SKIP_LOCKED, TRUNCATE off, INDEX_CLEANUP on) message_chunks

-- name: shorten
-- The same, and the file's empty end goes back to the file system.
VACUUM (SKIP_LOCKED, TRUNCATE on, INDEX_CLEANUP on) message_chunks

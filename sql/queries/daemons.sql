-- name: schema
-- The migrations that the database has.
SELECT name FROM pgmta.schema_migrations

-- name: read_only
-- Whether this session can change nothing.
SELECT current_setting('transaction_read_only')::boolean

-- name: beat
-- Note a heartbeat of the process.
INSERT INTO daemons (process, program, host, pid, version, schema)
VALUES (%(process)s, %(program)s, %(host)s, %(pid)s, %(version)s, %(schema)s)
ON CONFLICT (process) DO UPDATE SET seen_at = now()

-- name: owner
-- Whether the role may do all that the owner of the schema may.
SELECT pg_has_role(nspowner, 'USAGE') FROM pg_namespace WHERE nspname = 'pgmta'

-- name: missing_rights
-- What the role may not do, and should.
SELECT privilege, object FROM missing_rights() WHERE role IN (%(role)s, 'public') AND privilege IS NOT NULL

-- name: leave
-- Remove the process, which ends, and processes that have not been seen for a day.
DELETE FROM daemons WHERE process = %(process)s OR seen_at < now() - interval '1 day'

-- name: others
-- Daemons that live and know another schema than this one.
SELECT program, host, pid, version, schema FROM daemons
WHERE seen_at > now() - interval '1 minute' AND schema <> %(schema)s
ORDER BY program, host, pid

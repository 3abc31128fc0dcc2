-- name: schema
-- Which migrations the database has.
SELECT name FROM schema_migrations

-- name: beat
-- The process lives.
INSERT INTO daemons (process, program, host, pid, version, schema)
VALUES (%(process)s, %(program)s, %(host)s, %(pid)s, %(version)s, %(schema)s)
ON CONFLICT (process) DO UPDATE SET seen_at = now()

-- name: leave
-- The process ends, and with it those that have not been seen for a day.
DELETE FROM daemons WHERE process = %(process)s OR seen_at < now() - interval '1 day'

-- name: others
-- Daemons that live and know another schema than this one.
SELECT program, host, pid, version, schema FROM daemons
WHERE seen_at > now() - interval '1 minute' AND schema <> %(schema)s
ORDER BY program, host, pid

-- name: silent
-- Processes with workers that tell no version: they are older than the table daemons. Their name begins
-- with host and pid.
SELECT DISTINCT owner FROM workers
WHERE seen_at > now() - interval '1 minute' AND owner <> ALL (%(known)b::text[])
ORDER BY owner

-- name: known
-- Processes that tell their version.
SELECT process FROM daemons

-- name: sessions
-- Sessions of smtpd: before the table daemons it had no heartbeat.
SELECT pid FROM pg_stat_activity
WHERE datname = current_database() AND application_name ~ '^(pgmta|postern) smtpd'
ORDER BY pid

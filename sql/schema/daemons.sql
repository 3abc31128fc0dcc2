-- Daemons and workers that run, the clock they share, and the migrations of the database.

CREATE TABLE daemons (
    process text PRIMARY KEY,
    program text NOT NULL,
    host text NOT NULL,
    pid integer NOT NULL,
    version text NOT NULL,
    schema text NOT NULL,
    started_at timestamptz NOT NULL DEFAULT now(),
    seen_at timestamptz NOT NULL DEFAULT now()
);
COMMENT ON TABLE daemons IS 'Processes of queued, smtpd and queued web that run, by their heartbeat.';
COMMENT ON COLUMN daemons.process IS 'hostname:pid:random; workers.owner of a queued.';
COMMENT ON COLUMN daemons.program IS 'queued, smtpd, web or api.';
COMMENT ON COLUMN daemons.host IS 'environment.hostname of its configuration.';
COMMENT ON COLUMN daemons.pid IS 'Process id; of smtpd, the serving process.';
COMMENT ON COLUMN daemons.version IS 'Version of the program.';
COMMENT ON COLUMN daemons.schema IS 'The last migration that the program knows.';
COMMENT ON COLUMN daemons.started_at IS 'When it was first seen.';
COMMENT ON COLUMN daemons.seen_at IS 'Last heartbeat; older than a minute means dead.';

CREATE TABLE workers (
    owner text NOT NULL,
    name text NOT NULL,
    action text NOT NULL,
    condition text,
    reach text NOT NULL,
    started_at timestamptz NOT NULL DEFAULT now(),
    seen_at timestamptz NOT NULL DEFAULT now(),
    handled bigint NOT NULL DEFAULT 0,
    priority smallint NOT NULL DEFAULT 9,
    in_flight integer,
    PRIMARY KEY (owner, name)
);
COMMENT ON TABLE workers IS 'Workers that run, by their heartbeat.';
COMMENT ON COLUMN workers.owner IS 'The process: hostname:pid.';
COMMENT ON COLUMN workers.name IS 'Name in queued.yaml.';
COMMENT ON COLUMN workers.action IS 'deliver, hold, quarantine, delete, release, retry or bounce.';
COMMENT ON COLUMN workers.condition IS 'The whole condition, that of the environment included; null: every row.';
COMMENT ON COLUMN workers.reach IS 'The part of the condition that chooses partitions, or true.';
COMMENT ON COLUMN workers.started_at IS 'When the worker started.';
COMMENT ON COLUMN workers.seen_at IS 'Last heartbeat; older than a minute means dead.';
COMMENT ON COLUMN workers.handled IS 'Rows since the start: settled, held, deleted, released.';
COMMENT ON COLUMN workers.priority IS 'deliver: rows of this priority or a lower number.';
COMMENT ON COLUMN workers.in_flight IS 'deliver: rows that it had leased at its last heartbeat; null: none was since its start.';

CREATE TABLE database_clock (
    one boolean DEFAULT true PRIMARY KEY CONSTRAINT database_clock_one CHECK (one),
    seen_at timestamptz NOT NULL DEFAULT clock_timestamp()
) WITH (fillfactor = 50);
COMMENT ON TABLE database_clock IS 'The latest time that a queued saw, in one row: a later clock is never before it.';
COMMENT ON COLUMN database_clock.one IS 'Always true: there is one row.';
COMMENT ON COLUMN database_clock.seen_at IS 'The time; in the future only if the clock was set back.';
COMMENT ON CONSTRAINT database_clock_one ON database_clock IS 'One row.';
INSERT INTO database_clock DEFAULT VALUES;

CREATE TABLE schema_migrations (
    name text PRIMARY KEY,
    checksum text NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT now()
);
COMMENT ON TABLE schema_migrations IS 'The schema that the database was made with, and later migrations of it.';
COMMENT ON COLUMN schema_migrations.name IS '0001_schema_ with a digest of sql/schema, or the file name of a migration.';
COMMENT ON COLUMN schema_migrations.checksum IS 'SHA-256 of the text that was applied.';
COMMENT ON COLUMN schema_migrations.applied_at IS 'When it was applied.';

CREATE FUNCTION database_clock_look(least_step interval, lease interval, OUT seen timestamptz, OUT back interval,
    OUT rows bigint) LANGUAGE plpgsql
    SET search_path = pgmta, pg_catalog, pg_temp AS $$
DECLARE
    instant timestamptz;
BEGIN
    -- a lock, so that one session shortens the waits, and only once
    SELECT c.seen_at INTO instant FROM database_clock AS c FOR UPDATE SKIP LOCKED;
    seen := clock_timestamp();
    IF instant IS NULL THEN RETURN; END IF;
    -- processes that share the row write it as often as one of them would
    IF seen BETWEEN instant AND instant + interval '4 seconds' THEN RETURN; END IF;
    UPDATE database_clock SET seen_at = clock_timestamp();
    IF instant <= seen + least_step THEN RETURN; END IF;
    back := instant - seen;
    -- Waits begin anew. A lease of a row in flight stays long enough for its worker.
    WITH late AS MATERIALIZED (
        SELECT id FROM queue
        WHERE status IN ('QUEUED', 'DEFERRED', 'SENDING')
            AND (next_attempt > seen AND next_attempt < 'infinity' OR lease_until > seen + back - least_step)
        FOR UPDATE SKIP LOCKED
    ), moved AS (
        UPDATE queue SET
            next_attempt = CASE WHEN next_attempt > seen AND next_attempt < 'infinity'
                THEN greatest(next_attempt - back, seen, send_at) ELSE next_attempt END,
            lease_until = CASE WHEN lease_until > seen + back - least_step
                THEN least(lease_until, greatest(lease_until - back, seen + lease)) ELSE lease_until END
        WHERE id = ANY (ARRAY(SELECT id FROM late)) AND status IN ('QUEUED', 'DEFERRED', 'SENDING')
        RETURNING id
    )
    SELECT count(*) INTO rows FROM moved;
    WITH late AS MATERIALIZED (
        SELECT id FROM queue WHERE status = 'REPORT' AND held_at > seen FOR UPDATE SKIP LOCKED
    )
    UPDATE queue SET held_at = seen WHERE id = ANY (ARRAY(SELECT id FROM late)) AND status = 'REPORT';
    UPDATE delays SET at = seen WHERE noticed_at IS NULL AND at > seen;
    UPDATE daemons SET seen_at = seen WHERE seen_at > seen;
    UPDATE workers SET seen_at = seen WHERE seen_at > seen;
END $$;
COMMENT ON FUNCTION database_clock_look IS
    'Notes the time in database_clock. If the clock was set back by more than least_step, shortens the waits.';

CREATE VIEW worker_overview AS
SELECT name, owner, action, condition, started_at, now() - seen_at AS silence,
    seen_at > now() - interval '1 minute' AS alive, handled
FROM workers;
COMMENT ON VIEW worker_overview IS 'Workers and whether they live. Costs nothing.';
COMMENT ON COLUMN worker_overview.name IS 'Name in queued.yaml.';
COMMENT ON COLUMN worker_overview.owner IS 'The process: hostname:pid.';
COMMENT ON COLUMN worker_overview.action IS 'deliver, hold, quarantine, delete, release or retry.';
COMMENT ON COLUMN worker_overview.condition IS 'Which rows; null: every row.';
COMMENT ON COLUMN worker_overview.started_at IS 'When it started.';
COMMENT ON COLUMN worker_overview.silence IS 'Time since its last heartbeat.';
COMMENT ON COLUMN worker_overview.alive IS 'Its last heartbeat is at most a minute ago.';
COMMENT ON COLUMN worker_overview.handled IS 'Rows since its start.';

INSERT INTO rights (object, role, privileges) VALUES
    ('daemons', 'pgmta_smtpd', 'SELECT, INSERT, UPDATE, DELETE'),
    ('daemons', 'pgmta_web', 'SELECT, INSERT, UPDATE, DELETE'),
    ('daemons', 'pgmta_api', 'SELECT, INSERT, UPDATE, DELETE'),
    ('daemons', 'pgmta_queued', 'SELECT, INSERT, UPDATE, DELETE'),
    ('daemons', 'pgmta_operator', 'SELECT'),
    ('daemons', 'pgmta_reader', 'SELECT'),
    ('workers', 'pgmta_queued', 'SELECT, INSERT, UPDATE, DELETE'),
    ('workers', 'pgmta_operator', 'SELECT'),
    ('workers', 'pgmta_reader', 'SELECT'),
    ('database_clock', 'pgmta_queued', 'SELECT, UPDATE (seen_at)'),
    ('schema_migrations', 'pgmta_smtpd', 'SELECT'),
    ('schema_migrations', 'pgmta_web', 'SELECT'),
    ('schema_migrations', 'pgmta_api', 'SELECT'),
    ('schema_migrations', 'pgmta_queued', 'SELECT'),
    ('schema_migrations', 'pgmta_operator', 'SELECT'),
    ('schema_migrations', 'pgmta_reader', 'SELECT'),
    ('FUNCTION database_clock_look', 'pgmta_queued', 'EXECUTE'),
    ('worker_overview', 'pgmta_operator', 'SELECT'),
    ('worker_overview', 'pgmta_reader', 'SELECT');

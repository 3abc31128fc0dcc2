-- Which daemons run, of which version: a migration under their feet is refused.

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
COMMENT ON TABLE daemons IS 'Processes of queued and smtpd that run, by their heartbeat.';
COMMENT ON COLUMN daemons.process IS 'hostname:pid:random; workers.owner of a queued.';
COMMENT ON COLUMN daemons.program IS 'queued or smtpd.';
COMMENT ON COLUMN daemons.host IS 'environment.hostname of its configuration.';
COMMENT ON COLUMN daemons.pid IS 'Process id; of smtpd, the serving process.';
COMMENT ON COLUMN daemons.version IS 'Version of the program.';
COMMENT ON COLUMN daemons.schema IS 'The last migration that the program knows.';
COMMENT ON COLUMN daemons.started_at IS 'When it was first seen.';
COMMENT ON COLUMN daemons.seen_at IS 'Last heartbeat; older than a minute means dead.';

-- Around what earlier migrations give.
ALTER FUNCTION postern_grants() RENAME TO postern_grants_0007;
COMMENT ON FUNCTION postern_grants_0007() IS 'Part of postern_grants().';
CREATE FUNCTION postern_grants() RETURNS text[] LANGUAGE plpgsql
    SET search_path = public, pg_catalog, pg_temp AS $$
DECLARE
    role text;
BEGIN
    FOREACH role IN ARRAY
        ARRAY['postern_smtpd', 'postern_queued', 'postern_operator', 'postern_reader']
    LOOP
        CONTINUE WHEN to_regrole(role) IS NULL;
        EXECUTE format('GRANT SELECT ON daemons, schema_migrations TO %I', role);
        IF role IN ('postern_smtpd', 'postern_queued') THEN
            EXECUTE format('GRANT INSERT, UPDATE, DELETE ON daemons TO %I', role);
        END IF;
    END LOOP;
    RETURN postern_grants_0007();
END $$;
REVOKE EXECUTE ON FUNCTION postern_grants() FROM PUBLIC;
COMMENT ON FUNCTION postern_grants() IS
    'Gives the roles postern_smtpd, postern_queued, postern_operator and postern_reader their '
    'rights; to be called by the owner of the tables. Returns the roles that do not exist.';
DO $$ BEGIN PERFORM postern_grants(); END $$;

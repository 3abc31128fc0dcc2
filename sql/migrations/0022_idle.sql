-- An idle relay polls less: NOTIFY tells of suspensions. queued vacuums the tables that turn over while mail flows,
-- so that autovacuum has no need to look each second.

CREATE OR REPLACE FUNCTION suspensions_changed() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    UPDATE pgmta.suspensions_version SET version = version + 1;
    PERFORM pg_notify('pgmta_suspensions', '');
    RETURN NULL;
END $$;
COMMENT ON FUNCTION suspensions_changed IS 'Counts changes of the suspensions, and tells every process.';
COMMENT ON TABLE suspensions_version IS
    'Changes with every change of suspensions; each process looks at it when it is told, and every 5 s.';

INSERT INTO rights (object, role, privileges) VALUES
    ('messages', 'pgmta_queued', 'MAINTAIN'),
    ('queue_def_def', 'pgmta_queued', 'MAINTAIN'),
    ('queue_report', 'pgmta_queued', 'MAINTAIN'),
    ('queue_scheduled', 'pgmta_queued', 'MAINTAIN'),
    ('campaign_recipients', 'pgmta_queued', 'MAINTAIN');

DO $$
BEGIN
    IF grants() <> '{}' THEN
        RAISE WARNING 'a role could not be made'
            USING HINT = 'Create the roles of docs/operate/rights.md (NOLOGIN) and call pgmta.grants() as owner of the tables.';
    END IF;
END $$;

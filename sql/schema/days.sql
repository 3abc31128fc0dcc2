-- Days: partitions of logs by day, which queued makes ahead and drops. Mutexes, for one transaction at a time.

CREATE TABLE mutexes (
    name text PRIMARY KEY
);
COMMENT ON TABLE mutexes IS
    'Rows that a transaction locks so that no other does the same meanwhile. Only the owner and functions of pgmta may.';
COMMENT ON COLUMN mutexes.name IS 'What one transaction at a time does.';
INSERT INTO mutexes VALUES ('days of attempts'), ('days of transcripts'), ('days of reports'),
    ('change of rows'), ('change of partitions');

CREATE FUNCTION days_make(log text, days integer) RETURNS integer LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp SET lock_timeout = '0.3s' AS $$
DECLARE
    day date;
    name text;
    made integer := 0;
BEGIN
    PERFORM pgmta.days_turn(log);
    FOR ahead IN 0 .. days LOOP
        day := (now() AT TIME ZONE 'UTC')::date + ahead;
        name := log || to_char(day, '_YYYYMMDD');
        IF to_regclass('pgmta.' || name) IS NULL THEN
            EXECUTE format(
                'CREATE TABLE pgmta.%I PARTITION OF pgmta.%I FOR VALUES FROM (%L) TO (%L)',
                name, log, day || ' 00:00:00+00', day + 1 || ' 00:00:00+00');
            EXECUTE format('ALTER TABLE pgmta.%I REPLICA IDENTITY FULL', name);
            made := made + 1;
        END IF;
    END LOOP;
    RETURN made;
END $$;
COMMENT ON FUNCTION days_make IS
    'Makes the day partitions of a log from today to that many days ahead; returns how many. The logs are attempts, '
    'transcripts, reports and those of features. Gives up soon, because outcomes wait behind it.';

CREATE FUNCTION days_expire(log text, keep interval) RETURNS integer LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp SET standard_conforming_strings = on SET lock_timeout = '0.3s' AS $$
DECLARE
    name text;
    dropped integer := 0;
BEGIN
    IF keep < interval '0' THEN
        RAISE EXCEPTION 'the age % is negative', keep USING ERRCODE = 'invalid_parameter_value';
    END IF;
    PERFORM pgmta.days_turn(log);
    FOR name IN
        SELECT c.relname FROM pg_inherits AS i JOIN pg_class AS c ON c.oid = i.inhrelid
        WHERE i.inhparent = to_regclass('pgmta.' || log) AND c.relname ~ ('^' || log || '_\d{8}$')
            AND to_date(right(c.relname, 8), 'YYYYMMDD') + 1 <= (now() - keep) AT TIME ZONE 'UTC'
        ORDER BY 1
    LOOP
        EXECUTE format('DROP TABLE pgmta.%I', name);
        dropped := dropped + 1;
    END LOOP;
    RETURN dropped;
END $$;
COMMENT ON FUNCTION days_expire IS
    'Drops the day partitions of a log that are older than that; returns how many. Refuses a negative age. Gives up '
    'as days_make.';

CREATE FUNCTION days_turn(log text) RETURNS void LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM FROM pgmta.mutexes WHERE name = 'days of ' || log FOR UPDATE;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'there is no log % with days', log USING ERRCODE = 'invalid_parameter_value';
    END IF;
END $$;
COMMENT ON FUNCTION days_turn IS 'Lets one transaction at a time make or drop days of a log.';

INSERT INTO rights (object, role, privileges) VALUES
    ('FUNCTION days_make', 'pgmta_queued', 'EXECUTE'),
    ('FUNCTION days_expire', 'pgmta_queued', 'EXECUTE');

-- A step of the database's clock is noticed, and one back shortens the waits: docs/decisions/0054-clock.md.

CREATE TABLE database_clock (
    one boolean PRIMARY KEY DEFAULT true CONSTRAINT database_clock_one CHECK (one),
    seen_at timestamptz NOT NULL DEFAULT clock_timestamp()
) WITH (fillfactor = 50);
COMMENT ON TABLE database_clock IS 'The latest time that a queued saw, in one row: a later clock is never before it.';
COMMENT ON COLUMN database_clock.one IS 'Always true: there is one row.';
COMMENT ON COLUMN database_clock.seen_at IS 'The time; in the future only if the clock was set back.';
COMMENT ON CONSTRAINT database_clock_one ON database_clock IS 'One row.';
INSERT INTO database_clock DEFAULT VALUES;

CREATE FUNCTION database_clock_look(least_step interval, lease interval, OUT seen timestamptz, OUT back interval,
    OUT rows bigint) LANGUAGE plpgsql
    SET search_path = pgmta, pg_catalog, pg_temp AS $$
DECLARE
    instant timestamptz;
BEGIN
    -- one session shortens the waits, and once
    SELECT c.seen_at INTO instant FROM database_clock AS c FOR UPDATE SKIP LOCKED;
    seen := clock_timestamp();
    IF instant IS NULL THEN RETURN; END IF;
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
                THEN greatest(next_attempt - back, seen) ELSE next_attempt END,
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
COMMENT ON FUNCTION database_clock_look(interval, interval) IS
    'Notes the time in database_clock. If the clock was set back by more than least_step, shortens the waits.';
REVOKE EXECUTE ON FUNCTION database_clock_look(interval, interval) FROM PUBLIC;

ALTER FUNCTION grants() RENAME TO grants_0031;
COMMENT ON FUNCTION grants_0031() IS 'Part of grants().';
CREATE FUNCTION grants() RETURNS text[] LANGUAGE plpgsql
    SET search_path = pgmta, pg_catalog, pg_temp AS $$
BEGIN
    PERFORM grant_to('SELECT, UPDATE (seen_at) ON database_clock', 'pgmta_queued');
    PERFORM grant_to('EXECUTE ON FUNCTION database_clock_look(interval, interval)', 'pgmta_queued');
    PERFORM grant_to('UPDATE (held_at) ON queue', 'pgmta_queued');
    PERFORM grant_to('UPDATE (at) ON delays', 'pgmta_queued');
    RETURN grants_0031();
END $$;
REVOKE EXECUTE ON FUNCTION grants(), grants_0031() FROM PUBLIC;
COMMENT ON FUNCTION grants() IS
    'Gives the roles pgmta_smtpd, pgmta_queued, pgmta_operator, pgmta_reader and pgmta_submit their '
    'rights; to be called by the owner of the tables. Returns the roles that do not exist.';
DO $$ BEGIN PERFORM grants(); END $$;

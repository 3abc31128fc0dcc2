-- Numbers that were told to somebody, after a standby was promoted that lacks commits, or after a restore: none is given again.

CREATE SEQUENCE versions;
COMMENT ON SEQUENCE versions IS
    'Versions of what processes remember: of a user, and of users, rules and DKIM keys as a whole.';

CREATE FUNCTION server_timeline() RETURNS bigint RETURN (
    SELECT system_identifier # ('x' || left(pg_walfile_name(pg_current_wal_insert_lsn()), 8))::bit(32)::bigint
    FROM pg_control_system());
COMMENT ON FUNCTION server_timeline IS
    'One number of the cluster and its timeline, which each promotion and each recovery to an earlier time changes. Not on a standby.';

-- A sequence, because its value is set at once, also in a transaction of a program that ends much later, or is rolled back.
CREATE SEQUENCE timelines MINVALUE -9223372036854775808;
COMMENT ON SEQUENCE timelines IS 'Its last value is the server_timeline() to which all other sequences belong.';
DO $$ BEGIN PERFORM setval('timelines', server_timeline()); END $$;

CREATE FUNCTION note_timeline() RETURNS boolean LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    lost_at_most CONSTANT bigint := 1000000;  -- numbers of a sequence
    turn CONSTANT bigint := hashtext('pgmta.note_timeline');
    present CONSTANT bigint := pgmta.server_timeline();
    moved boolean;
BEGIN
    -- before the lock, which any login may take and keep
    IF (SELECT last_value = present FROM pgmta.timelines) THEN
        RETURN false;
    END IF;
    -- of the session: a transaction of a program may stay open for long
    PERFORM pg_advisory_lock(turn);
    BEGIN
        moved := last_value <> present FROM pgmta.timelines;
        IF moved THEN
            PERFORM setval(s.oid, nextval(s.oid) + lost_at_most)
            FROM pg_class AS ours
            -- by names: to_regclass() refuses schemas of others, which PostgreSQL may ask first
            JOIN pg_class AS r ON r.relname = 'rights' AND r.relowner = ours.relowner
            JOIN pg_class AS s ON s.relnamespace = r.relnamespace AND s.relowner = ours.relowner
            WHERE ours.oid = 'pgmta.timelines'::regclass AND s.relkind = 'S' AND s.oid <> ours.oid;
            PERFORM setval('pgmta.timelines', present);
        END IF;
    EXCEPTION WHEN OTHERS OR query_canceled THEN
        PERFORM pg_advisory_unlock(turn);
        RAISE;
    END;
    PERFORM pg_advisory_unlock(turn);
    RETURN moved;
END $$;
COMMENT ON FUNCTION note_timeline IS
    'Moves all sequences on by a million if the database is on another timeline than the one noted, and notes it; returns '
    'whether it did. Commits that a promoted standby lacked had numbers that were told, and must not name anything else. '
    'Every connection of pgmta does that at its begin, and next_message_id() in each session of a program.';

INSERT INTO rights (object, role, privileges) VALUES
    -- any login may find out whether it is noted
    ('SEQUENCE timelines', 'PUBLIC', 'SELECT'),
    ('FUNCTION note_timeline', 'PUBLIC', 'EXECUTE');

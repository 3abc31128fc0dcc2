-- The sequencer: it gives the statements that wrote events their numbers.

CREATE FUNCTION events_last() RETURNS bigint LANGUAGE sql STABLE SET search_path = pgmta, pg_catalog, pg_temp
    SET enable_seqscan = off AS $$
    SELECT greatest((SELECT h.last FROM event_history AS h ORDER BY h.history DESC LIMIT 1),
        (SELECT l.number FROM event_log AS l ORDER BY l.number DESC LIMIT 1))
$$;
COMMENT ON FUNCTION events_last IS 'The last number that was given.';

CREATE FUNCTION events_number(
    most integer DEFAULT 1000, late boolean DEFAULT true, OUT commits integer, OUT events bigint, OUT seconds double precision
) LANGUAGE plpgsql SECURITY DEFINER SET search_path = pgmta, pg_catalog, pg_temp SET enable_seqscan = off
    SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off
    SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    late_ids CONSTANT bigint := 10000;
    since CONSTANT bigint := CASE WHEN late THEN 0 ELSE coalesce(pg_sequence_last_value('event_commit_ids'), 0) - late_ids END;
    last bigint;
BEGIN
    -- a look that writes nothing: there are several a second
    IF NOT EXISTS (SELECT FROM event_commits AS c WHERE c.commit >= since) THEN
        commits := 0;
        RETURN;
    END IF;
    -- no advisory lock, which any login may take and keep
    PERFORM FROM mutexes AS m WHERE m.name = 'numbers of events' FOR UPDATE SKIP LOCKED;
    IF NOT FOUND THEN RETURN; END IF;
    -- The snapshot of each statement from here on is newer than the lock, so it sees what its last owner has numbered.
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION 'events are numbered in READ COMMITTED only' USING ERRCODE = 'object_not_in_prerequisite_state';
    END IF;
    PERFORM event_history_begin();
    last := events_last();
    WITH moved AS (
        DELETE FROM event_commits AS c WHERE c.commit = ANY (ARRAY(
            SELECT n.commit FROM event_commits AS n WHERE n.commit >= since ORDER BY n.commit LIMIT most))
        RETURNING c.commit, c.at, c.events
    ), numbered AS (
        INSERT INTO event_log AS l (number, commit, at, events, numbered_at)
        SELECT last + row_number() OVER (ORDER BY m.commit), m.commit, m.at, m.events, clock_timestamp() FROM moved AS m
        RETURNING l.at, l.events
    )
    SELECT count(*), coalesce(sum(n.events), 0), coalesce(extract(epoch FROM clock_timestamp() - min(n.at)), 0)
    INTO commits, events, seconds FROM numbered AS n;
    IF commits > 0 THEN PERFORM notify_channel('pgmta_events'); END IF;
END $$;
COMMENT ON FUNCTION events_number IS
    'Gives the next numbers to statements that wrote events and have committed, at most to `most`, in their order, and tells '
    'the readers. Returns how many there were, their events, and the age of the oldest; nulls: another session does it. An open '
    'transaction delays only its own events, which get later numbers. Without `late` those are left out that began 10,000 '
    'statements ago: to find them is to walk over rows that are gone while somebody holds a snapshot.';

CREATE FUNCTION event_history_begin(unwritten boolean DEFAULT false) RETURNS void LANGUAGE plpgsql
    SET search_path = pgmta, pg_catalog, pg_temp AS $$
DECLARE
    present event_history;
    timeline bigint;
    number bigint;
BEGIN
    PERFORM FROM mutexes AS m WHERE m.name = 'numbers of events' FOR UPDATE;
    SELECT t.last_value INTO timeline FROM timelines AS t;  -- each connection of pgmta has noted it
    SELECT * INTO present FROM event_history AS h ORDER BY h.history DESC LIMIT 1;
    IF present.timeline = timeline AND NOT unwritten THEN RETURN; END IF;
    number := events_last();
    UPDATE event_history AS h SET last = CASE WHEN unwritten THEN -1 ELSE number END
    WHERE h.history = present.history OR unwritten;
    INSERT INTO event_history (history, reason, timeline, last)
    VALUES (greatest(extract(epoch FROM now())::bigint, present.history + 1),
        CASE WHEN unwritten THEN 'nobody subscribed' ELSE 'another server, or a restore to an earlier time' END, timeline, number);
END $$;
COMMENT ON FUNCTION event_history_begin IS
    'Begins a history if the database is on another timeline than its numbers, or because events were not written for a while: '
    'then no earlier cursor is known any more. Nobody else numbers meanwhile.';

CREATE FUNCTION events_keep() RETURNS void LANGUAGE plpgsql SECURITY DEFINER SET search_path = pgmta, pg_catalog, pg_temp AS $$
BEGIN
    PERFORM event_history_begin();
    UPDATE event_history AS h SET last = events_last()
    WHERE h.history = (SELECT max(p.history) FROM event_history AS p) AND h.last <> events_last();
END $$;
COMMENT ON FUNCTION events_keep IS 'Notes the last number, so that the days of event_log may be dropped.';

INSERT INTO rights (object, role, privileges) VALUES
    ('FUNCTION events_number', 'pgmta_queued', 'EXECUTE'),
    ('FUNCTION events_keep', 'pgmta_queued', 'EXECUTE');

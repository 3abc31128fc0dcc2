-- Functions of applications, which get each event exactly once: their cursor moves in their own transaction.

CREATE TABLE application_functions (
    name text COLLATE "C" PRIMARY KEY REFERENCES event_subscriptions ON DELETE CASCADE,
    login text NOT NULL,
    viewer text,
    tenant text,
    cursor text NOT NULL,
    failures integer NOT NULL DEFAULT 0,
    error text,
    failed_at timestamptz,
    next_try timestamptz NOT NULL DEFAULT now()
);
COMMENT ON TABLE application_functions IS 'Functions of applications that queued calls with events.';
COMMENT ON COLUMN application_functions.name IS 'The function, with its schema; it takes one jsonb, an array of documents.';
COMMENT ON COLUMN application_functions.login IS
    'The login that calls it, in a session of its own: the function has the rights of the application and no others.';
COMMENT ON COLUMN application_functions.viewer IS 'Only events of mail that this login submitted; null: of all mail.';
COMMENT ON COLUMN application_functions.tenant IS 'Only events of mail of this tenant; null: of all mail.';
COMMENT ON COLUMN application_functions.cursor IS 'The events up to here are done.';
COMMENT ON COLUMN application_functions.failures IS 'How often the next events have failed.';
COMMENT ON COLUMN application_functions.error IS 'Why they failed, the last time; null: they did not.';
COMMENT ON COLUMN application_functions.failed_at IS
    'When the function first failed: of the failures in a row, if there are any now, else the last time.';
COMMENT ON COLUMN application_functions.next_try IS 'When they are tried next.';

CREATE FUNCTION event_function_fault(words text, login text) RETURNS text LANGUAGE plpgsql STABLE
    SET search_path = pgmta, pg_catalog, pg_temp AS $$
DECLARE
    parts CONSTANT text[] := event_name(words);
    owner CONSTANT oid := (SELECT n.nspowner FROM pg_namespace AS n WHERE n.nspname = 'pgmta');
    role CONSTANT oid := to_regrole(quote_ident(login));
    found record;
BEGIN
    SELECT n.oid AS place, p.oid, p.proowner, p.prokind INTO found
    FROM pg_proc AS p JOIN pg_namespace AS n ON n.oid = p.pronamespace
    WHERE (n.nspname, p.proname) = (parts[1], parts[2]) AND oidvectortypes(p.proargtypes) = 'jsonb';
    RETURN CASE
        WHEN found.oid IS NULL THEN format('there is no function %I.%I(jsonb)', parts[1], parts[2])
            || coalesce(': did you mean ' || nearest_word(format('%I.%I', parts[1], parts[2]), ARRAY(
                SELECT format('%I.%I', n.nspname, p.proname) FROM pg_proc AS p JOIN pg_namespace AS n ON n.oid = p.pronamespace
                WHERE oidvectortypes(p.proargtypes) = 'jsonb' AND n.nspname !~ '^(pg_|information_schema$|pgmta$)')) || '?', '')
        WHEN found.prokind <> 'f' THEN 'it is no function'
        WHEN role IS NULL THEN format('there is no role %I', login)
            || coalesce(': did you mean ' || nearest_word(login, ARRAY(
                SELECT r.rolname::text FROM pg_roles AS r WHERE r.rolcanlogin)) || '?', '')
        WHEN NOT (SELECT r.rolcanlogin FROM pg_roles AS r WHERE r.oid = role)
            THEN format('the role %I can''t log in: name one that can by --login, and that may call it', login)
        WHEN pg_has_role(role, owner, 'MEMBER') AND found.proowner <> owner
            THEN format('%I has the rights of pgmta, and code of another role would run with them', login)
        WHEN NOT (has_schema_privilege(role, found.place, 'USAGE') AND has_function_privilege(role, found.oid, 'EXECUTE'))
            THEN format('%I may not call it', login)
        WHEN NOT has_function_privilege(role, 'pgmta.events_take(text, integer)', 'EXECUTE')
            THEN format('%I may not take events: GRANT pgmta_submit TO %1$I;', login)
        END;
END $$;
COMMENT ON FUNCTION event_function_fault IS 'Why a login can''t call a function with events; null: it can.';

CREATE FUNCTION events_call(
    words text, login text DEFAULT NULL, viewer text DEFAULT NULL, tenant text DEFAULT NULL, who text DEFAULT NULL
) RETURNS text LANGUAGE plpgsql SECURITY DEFINER SET search_path = pgmta, pg_catalog, pg_temp AS $$
DECLARE
    parts CONSTANT text[] := event_name(words);
    title CONSTANT text := format('%I.%I', parts[1], parts[2]);
    caller CONSTANT text := coalesce(login, (SELECT pg_get_userbyid(p.proowner)
        FROM pg_proc AS p JOIN pg_namespace AS n ON n.oid = p.pronamespace
        WHERE (n.nspname, p.proname) = (parts[1], parts[2]) AND oidvectortypes(p.proargtypes) = 'jsonb'), '');
    fault CONSTANT text := event_function_fault(words, caller);
BEGIN
    IF fault IS NOT NULL THEN
        RAISE EXCEPTION '% is not called: %', title, fault USING ERRCODE = 'object_not_in_prerequisite_state';
    END IF;
    PERFORM events_subscribe(title, 'function', who);
    INSERT INTO application_functions AS f (name, login, viewer, tenant, cursor)
    VALUES (title, caller, events_call.viewer, events_call.tenant, events_end())
    ON CONFLICT (name) DO UPDATE SET login = excluded.login, viewer = excluded.viewer, tenant = excluded.tenant,
        next_try = now();
    PERFORM notify_channel('pgmta_events');
    RETURN title;
END $$;
COMMENT ON FUNCTION events_call IS
    'Has a function of an application called with the events of mail from now on, by a login (default: its owner), and returns '
    'the name of its subscription. For one that is called already it tries at once what failed. Repeat it after '
    'lock_not_available, as events_subscribe().';

CREATE FUNCTION event_function_retry(name text, at timestamptz) RETURNS SETOF event_retries LANGUAGE sql STABLE ROWS 1
    SET search_path = pgmta, pg_catalog, pg_temp SET enable_seqscan = off AS $$
    SELECT r.* FROM event_retries AS r WHERE r.name = event_function_retry.name AND r.next_try <= event_function_retry.at
    ORDER BY r.next_try, r.commit, r.place LIMIT 1
$$;
COMMENT ON FUNCTION event_function_retry IS 'The event that a call of a function tries again, if it begins at this time.';

CREATE FUNCTION events_take(name text, most integer DEFAULT 100) RETURNS jsonb LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pgmta, pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    consumer application_functions;
    retry event_retries;
    taken jsonb;
    reached text;
BEGIN
    SELECT * INTO consumer FROM application_functions AS f WHERE f.name = name;
    IF NOT FOUND OR NOT acting_in(to_regrole(quote_ident(consumer.login))) THEN
        RAISE EXCEPTION 'no subscription % of this login', to_json(left(name, 200)) USING ERRCODE = 'undefined_object',
            HINT = '`queuectl events list` has them.';
    END IF;
    SELECT * INTO consumer FROM application_functions AS f WHERE f.name = name FOR UPDATE SKIP LOCKED;
    IF NOT FOUND THEN RETURN NULL; END IF;
    DELETE FROM event_retries AS l WHERE (l.name, l.commit, l.place) = (
        SELECT d.name, d.commit, d.place FROM event_function_retry(name, now()) AS d)
    RETURNING * INTO retry;
    IF FOUND THEN
        SELECT jsonb_agg(r.document) INTO taken
        FROM events_read(NULL, 1, NULL, consumer.viewer, consumer.tenant, retry.commit, retry.at, retry.place, retry.last)
            AS r
        WHERE r.id IS NOT NULL;
    END IF;
    IF taken IS NULL THEN
        SELECT jsonb_agg(r.document ORDER BY r.n) FILTER (WHERE r.id IS NOT NULL), (array_agg(r.cursor ORDER BY r.n DESC))[1]
        INTO taken, reached
        FROM events_read(consumer.cursor, most, NULL, consumer.viewer, consumer.tenant)
            WITH ORDINALITY AS r (cursor, id, kind, at, message_id, row_id, document, n);
    END IF;
    IF taken IS NOT NULL OR reached IS NOT NULL THEN
        UPDATE application_functions AS f SET cursor = coalesce(reached, f.cursor), failures = 0,
            error = CASE WHEN taken IS NULL THEN f.error END
        WHERE f.name = name;
    END IF;
    RETURN taken;
END $$;
COMMENT ON FUNCTION events_take IS
    'The next events of a function of an application, as an array of documents, at most so many; null: there are none now, or '
    'another transaction has them. Its cursor moves in the transaction of the caller, so what the caller does with them is done '
    'exactly once. For the login of the subscription.';

CREATE FUNCTION application_functions_due() RETURNS TABLE (name text, login text) LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path = pgmta, pg_catalog, pg_temp SET enable_seqscan = off AS $$
    SELECT f.name, f.login
    FROM application_functions AS f, (
        SELECT l.number, l.events FROM event_log AS l ORDER BY l.number DESC LIMIT 1) AS e
    WHERE f.next_try <= now() AND (
        EXISTS (SELECT FROM event_retries AS r WHERE r.name = f.name AND r.next_try <= now())
        OR (split_part(f.cursor, '.', 2)::bigint, split_part(f.cursor, '.', 3)::bigint) < (e.number, e.events))
    ORDER BY f.name
$$;
COMMENT ON FUNCTION application_functions_due IS
    'The functions for which there are events, and which are not in a pause after a failure.';

CREATE FUNCTION event_function_failed(name text, state text, reason text, alone boolean, began timestamptz)
    RETURNS integer LANGUAGE plpgsql SECURITY DEFINER SET search_path = pgmta, pg_catalog, pg_temp SET enable_seqscan = off AS $$
#variable_conflict use_variable
DECLARE
    max_retries CONSTANT integer := 1000;  -- of a function: with more it is the function that is bad, not an event
    consumer application_functions;
    bad record;
    -- These say that something else than the event is wrong, so that any would fail.
    outside CONSTANT boolean := left(state, 2) IN ('08', '25', '28', '40', '42', '53', '55', '58', 'PG', 'XX')
        OR state IN ('57P01', '57P02', '57P03');
BEGIN
    SELECT * INTO consumer FROM application_functions AS f WHERE f.name = name FOR UPDATE SKIP LOCKED;
    IF NOT FOUND THEN RETURN (SELECT f.failures FROM application_functions AS f WHERE f.name = name); END IF;
    consumer.failures := consumer.failures + 1;
    IF NOT outside THEN
        UPDATE event_retries AS l SET tries = l.tries + 1, reason = reason,
            next_try = now() + least(2 ^ least(l.tries + 1, 10), 60) * interval '1 minute'
        WHERE (l.name, l.commit, l.place) = (SELECT d.name, d.commit, d.place FROM event_function_retry(name, began) AS d);
        IF FOUND THEN
            consumer.failures := 0;
        ELSIF alone AND (SELECT count(*) FROM event_retries AS r WHERE r.name = name) < max_retries THEN
            SELECT r.cursor, l.commit, l.at, split_part(r.cursor, '.', 3)::integer AS place INTO bad
            FROM events_read(consumer.cursor, 1, NULL, consumer.viewer, consumer.tenant) AS r
                JOIN event_log AS l ON l.number = split_part(r.cursor, '.', 2)::bigint
            WHERE r.id IS NOT NULL;
            IF FOUND THEN
                INSERT INTO event_retries (name, commit, at, place, last, next_try, reason)
                VALUES (name, bad.commit, bad.at, bad.place - 1, bad.place, now() + interval '1 minute', reason);
                consumer.cursor := bad.cursor;
                consumer.failures := 0;
            END IF;
        END IF;
    END IF;
    UPDATE application_functions AS f SET cursor = consumer.cursor, failures = consumer.failures, error = reason,
        failed_at = CASE f.failures WHEN 0 THEN now() ELSE f.failed_at END,
        next_try = now() + CASE consumer.failures WHEN 0 THEN interval '0'
            ELSE least(2 ^ least(consumer.failures - 1, 10), 60) * interval '1 second' END
    WHERE f.name = name;
    RETURN consumer.failures;
END $$;
COMMENT ON FUNCTION event_function_failed IS
    'Notes a failure, which SQLSTATE and text describe, of a call whose transaction began then. The same events are tried again, '
    'after 1 s to 60 s. One that failed alone '
    'is left for later: it is tried again after 1 to 60 minutes, and the rest goes on. Of a missing function, missing rights and '
    'the like none is left. Returns how often it has failed in a row; null: it subscribes no more.';

INSERT INTO forget_columns (relation, names, way, condition) VALUES ('application_functions', '{error}', 'words', 'true');

INSERT INTO rights (object, role, privileges) VALUES
    ('application_functions', 'pgmta_operator', 'SELECT'),
    ('application_functions', 'pgmta_reader', 'SELECT'),
    ('application_functions', 'pgmta_queued', 'SELECT'),
    ('FUNCTION events_call', 'pgmta_operator', 'EXECUTE'),
    ('FUNCTION events_take', 'pgmta_submit', 'EXECUTE'),
    ('FUNCTION application_functions_due', 'pgmta_queued', 'EXECUTE'),
    ('FUNCTION event_function_failed', 'pgmta_queued', 'EXECUTE');

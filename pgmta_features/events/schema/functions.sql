-- Functions of applications, which get each event exactly once: their cursor moves in their own transaction.

CREATE TABLE application_functions (
    name text COLLATE "C" PRIMARY KEY REFERENCES event_subscriptions ON DELETE CASCADE,
    login text NOT NULL,
    viewer text,
    tenant text,
    cursor text NOT NULL,
    alone integer NOT NULL DEFAULT 0,
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
COMMENT ON COLUMN application_functions.alone IS
    'How many of the next events are taken one by one, because together they failed several times.';
COMMENT ON COLUMN application_functions.failures IS 'How often the next events have failed.';
COMMENT ON COLUMN application_functions.error IS 'Why they failed, the last time; null: they did not.';
COMMENT ON COLUMN application_functions.failed_at IS 'When the function last failed.';
COMMENT ON COLUMN application_functions.next_try IS 'When they are tried next.';

CREATE TABLE event_asides (
    name text COLLATE "C" NOT NULL REFERENCES application_functions ON DELETE CASCADE,
    id text COLLATE "C" NOT NULL,
    document jsonb NOT NULL,
    error text NOT NULL,
    at timestamptz NOT NULL DEFAULT now(),
    again boolean NOT NULL DEFAULT false,
    PRIMARY KEY (name, id)
);
COMMENT ON TABLE event_asides IS 'Events that a function failed with, each alone: they were set aside, and can be replayed.';
COMMENT ON COLUMN event_asides.name IS 'application_functions.name.';
COMMENT ON COLUMN event_asides.id IS 'The id of the event.';
COMMENT ON COLUMN event_asides.document IS 'The event.';
COMMENT ON COLUMN event_asides.error IS 'Why it failed.';
COMMENT ON COLUMN event_asides.at IS 'When the event was set aside.';
COMMENT ON COLUMN event_asides.again IS 'Whether it is to be tried again.';
CREATE INDEX event_asides_again ON event_asides (name, at, id) WHERE again;
COMMENT ON INDEX event_asides_again IS 'What is tried again.';

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

CREATE FUNCTION events_call(words text, login text DEFAULT NULL, viewer text DEFAULT NULL, tenant text DEFAULT NULL)
    RETURNS text LANGUAGE plpgsql SECURITY DEFINER SET search_path = pgmta, pg_catalog, pg_temp AS $$
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
    PERFORM events_subscribe(title, 'function');
    INSERT INTO application_functions AS f (name, login, viewer, tenant, cursor)
    VALUES (title, caller, events_call.viewer, events_call.tenant, events_end())
    ON CONFLICT (name) DO UPDATE SET login = excluded.login, viewer = excluded.viewer, tenant = excluded.tenant;
    RETURN title;
END $$;
COMMENT ON FUNCTION events_call IS
    'Has a function of an application called with the events of mail from now on, by a login (default: its owner), and returns '
    'the name of its subscription. Repeat it after lock_not_available, as events_subscribe().';

CREATE FUNCTION events_take(name text, most integer DEFAULT 100) RETURNS jsonb LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pgmta, pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    consumer application_functions;
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
    DELETE FROM event_asides AS a WHERE a.name = name AND a.id = (
        SELECT o.id FROM event_asides AS o WHERE o.name = name AND o.again ORDER BY o.at, o.id LIMIT 1)
    RETURNING jsonb_build_array(a.document) INTO taken;
    IF taken IS NULL THEN
        SELECT jsonb_agg(r.document ORDER BY r.n) FILTER (WHERE r.id IS NOT NULL), (array_agg(r.cursor ORDER BY r.n DESC))[1]
        INTO taken, reached
        FROM events_read(consumer.cursor, CASE WHEN consumer.alone > 0 THEN 1 ELSE most END, NULL, consumer.viewer,
            consumer.tenant) WITH ORDINALITY AS r (cursor, id, kind, at, message_id, row_id, document, n);
    END IF;
    UPDATE application_functions AS f SET cursor = coalesce(reached, f.cursor), failures = 0,
        alone = greatest(f.alone - CASE WHEN reached IS NOT NULL AND taken IS NOT NULL THEN 1 ELSE 0 END, 0),
        error = CASE WHEN taken IS NULL THEN f.error END
    WHERE f.name = name;
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
        EXISTS (SELECT FROM event_asides AS a WHERE a.name = f.name AND a.again)
        OR (split_part(f.cursor, '.', 2)::bigint, split_part(f.cursor, '.', 3)::bigint) < (e.number, e.events))
    ORDER BY f.name
$$;
COMMENT ON FUNCTION application_functions_due IS
    'The functions for which there are events, and which are not in a pause after a failure.';

CREATE FUNCTION event_function_failed(name text, state text, reason text) RETURNS boolean LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pgmta, pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    tries_together CONSTANT integer := 3;
    tries_alone CONSTANT integer := 2;
    page CONSTANT integer := 100;  -- as in events_take()
    consumer application_functions;
    -- These say that something else than the event is wrong, so that any would fail.
    outside CONSTANT boolean := left(state, 2) IN ('08', '25', '28', '40', '42', '53', '55', '58', 'PG', 'XX')
        OR state IN ('57P01', '57P02', '57P03');
    bad text;
BEGIN
    SELECT * INTO consumer FROM application_functions AS f WHERE f.name = name FOR UPDATE SKIP LOCKED;
    IF NOT FOUND THEN RETURN EXISTS (SELECT FROM application_functions AS f WHERE f.name = name); END IF;
    UPDATE event_asides AS a SET again = false, error = reason, at = now() WHERE NOT outside AND a.name = name AND a.id = (
        SELECT o.id FROM event_asides AS o WHERE o.name = name AND o.again ORDER BY o.at, o.id LIMIT 1);
    IF FOUND THEN RETURN true; END IF;
    consumer.failures := consumer.failures + 1;
    IF outside THEN
        NULL;
    ELSIF consumer.alone = 0 AND consumer.failures >= tries_together THEN
        consumer.alone := page;
        consumer.failures := 0;
    ELSIF consumer.alone > 0 AND consumer.failures >= tries_alone THEN
        WITH read AS MATERIALIZED (
            SELECT * FROM events_read(consumer.cursor, 1, NULL, consumer.viewer, consumer.tenant)
        ), put AS (
            INSERT INTO event_asides (name, id, document, error) SELECT name, r.id, r.document, reason FROM read AS r
            WHERE r.id IS NOT NULL ON CONFLICT DO NOTHING
        )
        SELECT r.cursor INTO bad FROM read AS r WHERE r.id IS NOT NULL;
        consumer.cursor := coalesce(bad, consumer.cursor);
        consumer.alone := consumer.alone - 1;
        consumer.failures := 0;
    END IF;
    UPDATE application_functions AS f SET cursor = consumer.cursor, alone = consumer.alone, failures = consumer.failures,
        error = reason, failed_at = now(),
        next_try = now() + least(2 ^ least(consumer.failures - 1, 10), 60) * interval '1 second'
    WHERE f.name = name;
    RETURN true;
END $$;
COMMENT ON FUNCTION event_function_failed IS
    'Notes a failure, which SQLSTATE and text describe. The same events are tried again, after 1 s to 60 s; after three '
    'failures one by one, and one that fails twice alone is set aside. Those of a missing function, of missing rights and the '
    'like are tried again for ever. Returns whether it still subscribes.';

CREATE FUNCTION events_replay(title text, ids text[] DEFAULT NULL, after text DEFAULT NULL) RETURNS integer
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pgmta, pg_catalog, pg_temp SET lock_timeout = '5s' AS $$
DECLARE
    changed integer;
BEGIN
    PERFORM FROM application_functions AS f WHERE f.name = title FOR UPDATE;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'no function % is called', to_json(left(title, 200)) USING ERRCODE = 'undefined_object', HINT = coalesce(
            'Did you mean ' || nearest_word(title, ARRAY(SELECT f.name FROM application_functions AS f)) || '?',
            '`queuectl events list` has them.');
    END IF;
    IF after IS NOT NULL THEN PERFORM event_position(after); END IF;
    UPDATE application_functions AS f SET next_try = now(), cursor = coalesce(after, f.cursor) WHERE f.name = title;
    UPDATE event_asides AS a SET again = true
    WHERE after IS NULL AND a.name = title AND NOT a.again AND (ids IS NULL OR a.id = ANY (ids));
    GET DIAGNOSTICS changed = ROW_COUNT;
    PERFORM notify_channel('pgmta_events');
    RETURN changed;
END $$;
COMMENT ON FUNCTION events_replay IS
    'Has a function called again with events that were set aside, those of these ids or all, and returns how many; or with all '
    'behind a cursor.';

INSERT INTO forget_columns (relation, names, way, condition) VALUES
    ('application_functions', '{error}', 'words', 'true'),
    ('event_asides', '{document,error}', 'words', 'true');

INSERT INTO rights (object, role, privileges) VALUES
    ('application_functions', 'pgmta_operator', 'SELECT'),
    ('application_functions', 'pgmta_reader', 'SELECT'),
    ('application_functions', 'pgmta_queued', 'SELECT'),
    ('event_asides', 'pgmta_operator', 'SELECT'),
    ('event_asides', 'pgmta_reader', 'SELECT (name, id, error, at, again)'),
    ('FUNCTION events_call', 'pgmta_operator', 'EXECUTE'),
    ('FUNCTION events_replay', 'pgmta_operator', 'EXECUTE'),
    ('FUNCTION events_take', 'pgmta_submit', 'EXECUTE'),
    ('FUNCTION application_functions_due', 'pgmta_queued', 'EXECUTE'),
    ('FUNCTION event_function_failed', 'pgmta_queued', 'EXECUTE');

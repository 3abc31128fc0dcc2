-- Tables of applications, into which events are inserted in the transaction of their outcome.

CREATE TABLE event_tables (
    name text COLLATE "C" PRIMARY KEY REFERENCES event_subscriptions ON DELETE CASCADE,
    number integer NOT NULL UNIQUE GENERATED ALWAYS AS IDENTITY,
    viewer text,
    tenant text,
    later bigint NOT NULL DEFAULT 0,
    error text,
    failed_at timestamptz
);
COMMENT ON TABLE event_tables IS 'Tables of applications that get events as rows.';
COMMENT ON SEQUENCE event_tables_number_seq IS 'event_tables.number.';
COMMENT ON INDEX event_tables_number_key IS 'A number is that of one table.';
COMMENT ON COLUMN event_tables.name IS 'The table, with its schema, as it was named when it subscribed.';
COMMENT ON COLUMN event_tables.number IS
    'Events are inserted through the view event_rows_NUMBER, which means this table and no other that takes its name.';
COMMENT ON COLUMN event_tables.viewer IS 'Only events of mail that this login submitted; null: of all mail.';
COMMENT ON COLUMN event_tables.tenant IS 'Only events of mail of this tenant; null: of all mail.';
COMMENT ON COLUMN event_tables.later IS 'How many events were inserted after the commit of their outcome.';
COMMENT ON COLUMN event_tables.error IS 'Why events could not be inserted, the last time; null: that never happened.';
COMMENT ON COLUMN event_tables.failed_at IS 'When events could not be inserted, the last time.';

CREATE FUNCTION event_view(number integer) RETURNS text IMMUTABLE PARALLEL SAFE RETURN 'event_rows_' || number;
COMMENT ON FUNCTION event_view IS 'The name of the view through which events go into a table.';

CREATE FUNCTION event_view_table(number integer) RETURNS oid LANGUAGE sql VOLATILE
    SET search_path = pgmta, pg_catalog, pg_temp AS $$
    SELECT DISTINCT d.refobjid FROM pg_class AS c JOIN pg_rewrite AS r ON r.ev_class = c.oid
        JOIN pg_depend AS d ON d.classid = 'pg_rewrite'::regclass AND d.objid = r.oid
            AND d.refclassid = 'pg_class'::regclass AND d.refobjid <> c.oid
    WHERE c.relnamespace = 'pgmta'::regnamespace AND c.relname = event_view(number)
$$;
COMMENT ON FUNCTION event_view_table IS 'The table behind that view; null: it was dropped.';

CREATE FUNCTION event_name(words text) RETURNS text[] LANGUAGE plpgsql IMMUTABLE
    SET search_path = pgmta, pg_catalog, pg_temp AS $$
BEGIN
    IF words ~ '^("([^"]|"")+"|[A-Za-z_][A-Za-z0-9_$]*)[.]("([^"]|"")+"|[A-Za-z_][A-Za-z0-9_$]*)$' THEN
        RETURN parse_ident(words);
    END IF;
    RAISE EXCEPTION '% is no name with its schema', to_json(left(words, 100)) USING ERRCODE = 'invalid_parameter_value',
        HINT = 'Write SCHEMA.NAME.';
END $$;
COMMENT ON FUNCTION event_name IS 'The schema and the name of a table or function.';

CREATE FUNCTION event_table_named(words text) RETURNS oid LANGUAGE plpgsql STABLE
    SET search_path = pgmta, pg_catalog, pg_temp AS $$
DECLARE
    parts CONSTANT text[] := event_name(words);
    found CONSTANT oid := (SELECT c.oid FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
        WHERE (n.nspname, c.relname) = (parts[1], parts[2]));
BEGIN
    IF found IS NULL THEN
        RAISE EXCEPTION 'there is no table %.%', quote_ident(parts[1]), quote_ident(parts[2]) USING ERRCODE = 'undefined_table',
            HINT = coalesce('Did you mean ' || nearest_word(format('%I.%I', parts[1], parts[2]), ARRAY(
                SELECT format('%I.%I', n.nspname, c.relname) FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
                WHERE c.relkind = 'r' AND n.nspname !~ '^(pg_|information_schema$|pgmta$)')) || '? ', '')
                || 'With --create `queuectl events table` makes it.';
    END IF;
    RETURN found;
END $$;
COMMENT ON FUNCTION event_table_named IS 'The table of this name. Raises an error that has the nearest one.';

-- with this search_path, so that an expression shows the schema of whatever is not of PostgreSQL
CREATE FUNCTION event_table_fault(relation oid) RETURNS text LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp
    SET standard_conforming_strings = on SET enable_seqscan = off SET enable_hashjoin = off
    SET enable_mergejoin = off SET jit = off SET plan_cache_mode = force_generic_plan AS $$
BEGIN
    RETURN (WITH wanted (name, type) AS (VALUES ('id', 'text'::regtype), ('type', 'text'), ('at', 'timestamptz'),
        ('message_id', 'bigint'), ('recipient', 'text'), ('document', 'jsonb'))
    SELECT CASE
        WHEN c.oid IS NULL THEN 'it was dropped'
        WHEN c.relkind <> 'r' OR c.relispartition OR c.reloftype <> 0 THEN 'it is no plain table'
        WHEN c.relpersistence <> 'p' THEN 'it is lost in a crash: make it LOGGED'
        WHEN c.relrowsecurity THEN 'it has row security'
        WHEN EXISTS (SELECT FROM pg_rewrite AS r WHERE r.ev_class = c.oid) THEN 'it has rules'
        WHEN EXISTS (SELECT FROM pg_inherits AS i WHERE c.oid IN (i.inhrelid, i.inhparent)) THEN 'it inherits, or is inherited'
        ELSE (
            SELECT min(f.fault) FROM (
                SELECT format('it has the trigger %I', t.tgname) FROM pg_trigger AS t
                WHERE t.tgrelid = c.oid AND NOT t.tgisinternal
                UNION ALL
                SELECT format('it has the constraint %I', k.conname)
                    || CASE WHEN k.condeferrable THEN ', which is checked later' ELSE '' END
                FROM pg_constraint AS k
                WHERE k.conrelid = c.oid AND (k.contype IN ('c', 'f', 'x') OR k.condeferrable)
                UNION ALL
                SELECT 'a foreign key of another table names it' FROM pg_trigger AS t WHERE t.tgrelid = c.oid AND t.tgisinternal
                UNION ALL
                SELECT format('its index %I has an expression or a condition', x.relname)
                FROM pg_index AS i JOIN pg_class AS x ON x.oid = i.indexrelid
                WHERE i.indrelid = c.oid AND (i.indexprs IS NOT NULL OR i.indpred IS NOT NULL)
                UNION ALL
                SELECT format('its index %I has an operator class that is not of PostgreSQL', x.relname)
                FROM pg_index AS i JOIN pg_class AS x ON x.oid = i.indexrelid
                WHERE i.indrelid = c.oid AND EXISTS (
                    SELECT FROM unnest(i.indclass) AS u (oid) JOIN pg_opclass AS o ON o.oid = u.oid
                    WHERE o.opcnamespace <> 'pg_catalog'::regnamespace)
                UNION ALL
                SELECT CASE
                    WHEN y.typnamespace <> 'pg_catalog'::regnamespace OR y.typtype <> 'b'
                        THEN format('its column %I has a type that is not of PostgreSQL', a.attname)
                    WHEN a.attgenerated <> '' OR a.attidentity <> '' THEN format('its column %I is generated', a.attname)
                    -- Functions of PostgreSQL run SQL, too, as query_to_xml() does: so constants, and these.
                    WHEN d.oid IS NOT NULL AND pg_get_expr(d.adbin, d.adrelid) !~ (
                        '^(''([^''\\]|'''')*''::[a-z ]+(\([0-9]+\))?|-?[0-9.]+|true|false|NULL::[a-z ]+|now\(\)'
                        '|CURRENT_TIMESTAMP|clock_timestamp\(\)|CURRENT_DATE|gen_random_uuid\(\))$')
                        THEN format('the default of its column %I is neither a constant nor now()', a.attname)
                    WHEN a.attnotnull AND d.oid IS NULL AND w.type IS NULL
                        THEN format('its column %I is NOT NULL without a default', a.attname)
                    WHEN a.atttypid <> w.type THEN format('its column %I has not the type %s', a.attname, w.type)
                    END
                FROM pg_attribute AS a JOIN pg_type AS y ON y.oid = a.atttypid
                    LEFT JOIN pg_attrdef AS d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
                    LEFT JOIN wanted AS w ON w.name = a.attname
                WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
                UNION ALL
                SELECT format('it has no column %s %s', w.name, w.type) FROM wanted AS w WHERE NOT EXISTS (
                    SELECT FROM pg_attribute AS a WHERE a.attrelid = c.oid AND a.attname = w.name AND NOT a.attisdropped)
                UNION ALL
                SELECT 'its column id is neither its primary key nor UNIQUE' WHERE NOT EXISTS (
                    SELECT FROM pg_index AS i JOIN pg_attribute AS a ON a.attrelid = c.oid AND a.attname = 'id'
                    WHERE i.indrelid = c.oid AND i.indisunique AND i.indnkeyatts = 1 AND i.indkey[0] = a.attnum
                        AND i.indisvalid AND i.indimmediate)
                UNION ALL
                SELECT format('%I may not insert: its owner runs GRANT USAGE ON SCHEMA %I TO %1$I; '
                    'GRANT INSERT, SELECT ON %2$I.%3$I TO %1$I', current_user, n.nspname, c.relname)
                FROM pg_namespace AS n WHERE n.oid = c.relnamespace AND NOT (
                    has_schema_privilege(n.oid, 'USAGE') AND has_table_privilege(c.oid, 'INSERT')
                    AND has_table_privilege(c.oid, 'SELECT'))
            ) AS f (fault))
        END
    FROM (SELECT relation AS asked) AS q LEFT JOIN pg_class AS c ON c.oid = q.asked);
END $$;
COMMENT ON FUNCTION event_table_fault IS
    'Why events may not be inserted into a table with the rights of the owner of pgmta; null: nothing there runs code of '
    'others, and nothing is checked later than the insert. The caller has a lock of the table, so that it stays as it is.';

CREATE FUNCTION event_table_open(consumer event_tables) RETURNS void
    LANGUAGE plpgsql SET search_path = pgmta, pg_catalog, pg_temp SET lock_timeout = '100ms' AS $$
DECLARE
    fault text;
BEGIN
    -- What is checked is what the inserts find: the snapshot is newer than the lock, and the view means the table itself, so
    -- another one that takes its name meanwhile changes nothing.
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION 'the transaction of the outcome was not READ COMMITTED' USING ERRCODE = 'invalid_transaction_state';
    ELSIF event_view_table(consumer.number) IS NOT NULL THEN
        EXECUTE format('LOCK TABLE pgmta.%I IN ROW EXCLUSIVE MODE', event_view(consumer.number));
    END IF;
    fault := event_table_fault(event_view_table(consumer.number));
    IF fault IS NOT NULL THEN
        RAISE EXCEPTION '%', fault USING ERRCODE = 'object_not_in_prerequisite_state';
    END IF;
END $$;
COMMENT ON FUNCTION event_table_open IS
    'Locks a table of an application until the end of the transaction, and raises an error if events may not be inserted there. '
    'Waits 0.1 s for a lock, which is less than PostgreSQL waits before it looks for deadlocks.';

CREATE FUNCTION event_rows_put(consumer event_tables, of_commit bigint, of_at timestamptz, behind integer, last integer,
    OUT reached integer, OUT events bigint, OUT slow text
) LANGUAGE plpgsql SET search_path = pgmta, pg_catalog, pg_temp SET lock_timeout = '100ms' AS $$
DECLARE
    max_s CONSTANT double precision := 0.1;  -- then it begins no further row
    times timestamptz[];
    documents jsonb[];
    began timestamptz;
    seconds double precision;
BEGIN
    SELECT array_agg(f.at), array_agg(f.document::jsonb) INTO times, documents
    FROM events_read(NULL, last, NULL, consumer.viewer, consumer.tenant, of_commit, of_at, behind, last) AS f
    WHERE f.id IS NOT NULL;
    began := clock_timestamp();
    EXECUTE format(
        'INSERT INTO pgmta.%I (id, type, at, message_id, recipient, document) '
        'SELECT f.document ->> ''id'', f.document ->> ''type'', f.at, (f.document ->> ''message_id'')::bigint, '
        'f.document ->> ''recipient'', f.document FROM unnest($1, $2) WITH ORDINALITY AS f (at, document, n) '
        -- PostgreSQL asks before each row, when it has inserted the one before
        'WHERE f.n = 1 OR clock_timestamp() < $3 ON CONFLICT (id) DO NOTHING',
        event_view(consumer.number))
    USING times, documents, began + max_s * interval '1 second';
    GET DIAGNOSTICS events = ROW_COUNT;
    seconds := extract(epoch FROM clock_timestamp() - began);
    IF seconds > max_s THEN
        slow := format('an insert took %s s', round(seconds::numeric, 1));
        EXECUTE format(
            'SELECT min(split_part(f.document ->> ''id'', ''-'', 2)::integer) - 1 FROM unnest($1) AS f (document) '
            'WHERE NOT EXISTS (SELECT FROM pgmta.%I AS r WHERE r.id = f.document ->> ''id'')', event_view(consumer.number))
        INTO reached USING documents;
    END IF;
    reached := coalesce(reached, last);
END $$;
COMMENT ON FUNCTION event_rows_put IS
    'Inserts events of a statement, those with places in (behind, last], into a table of an application, for 0.1 s, at least '
    'one. Returns the place that it reached, how many were new, and that it took longer; null: it did not. After event_table_open().';

CREATE FUNCTION event_tables_fill() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pgmta, pg_catalog, pg_temp SET enable_seqscan = off AS $$
DECLARE
    max_events CONSTANT integer := 1000;  -- with their outcome: the documents of more would keep its commit waiting
    consumer event_tables;
    put integer;  -- events that the table has
    why text;
    tried boolean;
BEGIN
    FOR consumer IN SELECT * FROM event_tables AS t ORDER BY t.name LOOP
        why := CASE WHEN NEW.events > max_events THEN 'many events at once'
            -- not at the end: the rows of a message are not there yet
            WHEN pg_trigger_depth() > 1 THEN 'the transaction of the outcome had its constraints IMMEDIATE'
            -- one that failed just now may have waited for a lock, so the next outcomes don't try
            ELSE (SELECT l.reason FROM event_retries AS l
                WHERE l.name = consumer.name AND l.tried AND l.noted_at > clock_timestamp() - interval '1 second' LIMIT 1) END;
        tried := why IS NULL;
        put := 0;
        IF tried THEN
            BEGIN
                PERFORM event_table_open(consumer);
                -- if it was slow the next outcomes don't try, also if nothing is left of this one
                SELECT p.reached, p.slow INTO put, why
                FROM event_rows_put(consumer, NEW.commit, NEW.at, 0, NEW.events) AS p;
            EXCEPTION WHEN invalid_transaction_state THEN
                why := SQLERRM;
                tried := false;  -- this says nothing about the table, so the next outcomes try
            WHEN OTHERS THEN  -- whatever an application does to its table stops no outcome
                why := left(SQLERRM, 1000);
            END;
        END IF;
        IF why IS NOT NULL THEN
            INSERT INTO event_retries (name, commit, at, place, last, tried, reason)
            VALUES (consumer.name, NEW.commit, NEW.at, put, NEW.events, tried, why);
        END IF;
    END LOOP;
    RETURN NULL;
END $$;
COMMENT ON FUNCTION event_tables_fill IS
    'At the end of a transaction: inserts the events of a statement into tables of applications, or notes that it could not.';

CREATE FUNCTION event_table_later(table_name text, OUT events bigint, OUT reason text, OUT fast boolean)
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pgmta, pg_catalog, pg_temp SET enable_seqscan = off AS $$
DECLARE
    max_events CONSTANT integer := 1000;  -- of an insert
    until CONSTANT timestamptz := clock_timestamp() + interval '1 second';
    consumer event_tables;
    late event_retries;
    opened boolean := false;
    upto integer;
    put record;
    state text;
BEGIN
    SELECT * INTO consumer FROM event_tables AS t WHERE t.name = table_name;
    events := 0;
    fast := true;
    FOR late IN
        SELECT * FROM event_retries AS l WHERE l.name = consumer.name AND l.next_try <= now()
        ORDER BY l.next_try, l.commit, l.place LIMIT 1000 FOR UPDATE SKIP LOCKED
    LOOP
        reason := late.reason;
        state := NULL;
        WHILE state IS NULL AND clock_timestamp() < until LOOP
            upto := least(late.last, late.place + max_events);
            BEGIN
                IF NOT opened THEN PERFORM event_table_open(consumer); END IF;
                put := event_rows_put(consumer, late.commit, late.at, late.place, upto);
            EXCEPTION WHEN query_canceled OR OTHERS THEN  -- by the statement_timeout of queued
                state := SQLSTATE;
                reason := left(SQLERRM, 1000);
                CONTINUE;
            END;
            opened := true;
            events := events + put.events;
            fast := fast AND put.slow IS NULL;
            IF put.reached = late.last THEN
                DELETE FROM event_retries AS l WHERE (l.name, l.commit, l.place) = (late.name, late.commit, late.place);
                EXIT;
            END IF;
            UPDATE event_retries AS l SET place = put.reached
            WHERE (l.name, l.commit, l.place) = (late.name, late.commit, late.place);
            late.place := put.reached;
        END LOOP;
        IF (left(state, 2) IN ('22', '23', '54') OR state = '57014') AND late.last > late.place + 1 THEN
            -- one that the table refuses, or for which it takes too long, keeps no other out, so they go one by one
            UPDATE event_retries AS l SET last = late.place + 1
            WHERE (l.name, l.commit, l.place) = (late.name, late.commit, late.place);
            INSERT INTO event_retries (name, commit, at, place, last, noted_at, reason)
            SELECT late.name, late.commit, late.at, p, CASE p WHEN upto THEN late.last ELSE p + 1 END, late.noted_at, late.reason
            FROM generate_series(late.place + 1, upto) AS p WHERE p < late.last;
        ELSIF state IS NOT NULL THEN
            UPDATE event_retries AS l SET tries = l.tries + 1, reason = event_table_later.reason,
                next_try = clock_timestamp() + least(2 ^ least(l.tries, 10), 60) * interval '1 second'
            WHERE (l.name, l.commit, l.place) = (late.name, late.commit, late.place);
        END IF;
        IF left(state, 2) NOT IN ('22', '23', '54') THEN  -- anything else would meet the next ones too
            fast := false;
            EXIT;
        END IF;
        EXIT WHEN clock_timestamp() > until;
    END LOOP;
    IF reason IS NOT NULL THEN
        UPDATE event_tables AS t SET later = t.later + events, error = reason, failed_at = clock_timestamp()
        WHERE t.name = consumer.name;
    END IF;
END $$;
COMMENT ON FUNCTION event_table_later IS
    'Inserts what a table did not take with its outcome, for about 1 s, and keeps what it has inserted each 0.1 s. An event '
    'that it refuses is tried again after 1 s to 60 s. Returns how many were inserted, the last reason, and whether the table '
    'was fast.';

CREATE FUNCTION event_table_statements(words text) RETURNS TABLE (role text, statements text)
    LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pgmta, pg_catalog, pg_temp SET standard_conforming_strings = on AS $$
DECLARE
    parts CONSTANT text[] := event_name(words);
    owner CONSTANT text := (SELECT quote_ident(pg_get_userbyid(n.nspowner)) FROM pg_namespace AS n WHERE n.nspname = 'pgmta');
    place CONSTANT text := format('%I', parts[1]);
BEGIN
    SELECT CASE r.rolname WHEN 'pg_database_owner' THEN (
        SELECT pg_get_userbyid(d.datdba) FROM pg_database AS d WHERE d.datname = current_database()) ELSE r.rolname END
    INTO role FROM pg_namespace AS n JOIN pg_roles AS r ON r.oid = n.nspowner WHERE n.nspname = parts[1];
    IF NOT FOUND THEN
        RAISE EXCEPTION 'there is no schema %', place USING ERRCODE = 'invalid_schema_name', HINT = coalesce(
            'Did you mean ' || nearest_word(parts[1], ARRAY(SELECT n.nspname::text FROM pg_namespace AS n
                WHERE n.nspname !~ '^(pg_|information_schema$|pgmta$)')) || '?', 'CREATE SCHEMA makes it.');
    END IF;
    statements := format(
        E'CREATE TABLE %1$s (\n    id text PRIMARY KEY,\n    type text NOT NULL,\n    at timestamptz NOT NULL,\n'
        '    message_id bigint,\n    recipient text,\n    document jsonb NOT NULL\n);\n'
        'GRANT USAGE ON SCHEMA %2$s TO %3$s;\nGRANT INSERT, SELECT ON %1$s TO %3$s;',
        format('%I.%I', parts[1], parts[2]), place, owner);
    RETURN NEXT;
END $$;
COMMENT ON FUNCTION event_table_statements IS
    'The statements that make a table for events, and the role that runs them: the owner of its schema.';

CREATE FUNCTION events_into(words text, viewer text DEFAULT NULL, tenant text DEFAULT NULL, who text DEFAULT NULL)
    RETURNS text LANGUAGE plpgsql SECURITY DEFINER SET search_path = pgmta, pg_catalog, pg_temp SET lock_timeout = '0.2s' AS $$
DECLARE
    relation CONSTANT oid := event_table_named(words);
    title CONSTANT text := (SELECT format('%I.%I', n.nspname, c.relname)
        FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace WHERE c.oid = relation);
    fault CONSTANT text := event_table_fault(relation);
    consumer event_tables;
BEGIN
    IF fault IS NOT NULL THEN
        RAISE EXCEPTION 'no events go into %: %', title, fault USING ERRCODE = 'object_not_in_prerequisite_state';
    END IF;
    PERFORM events_subscribe(title, 'table', who);
    -- who has written events and not committed would not see the new table
    LOCK TABLE event_commits IN SHARE ROW EXCLUSIVE MODE;
    INSERT INTO event_tables AS t (name, viewer, tenant) VALUES (title, events_into.viewer, events_into.tenant)
    ON CONFLICT (name) DO UPDATE SET viewer = excluded.viewer, tenant = excluded.tenant RETURNING * INTO consumer;
    IF event_view_table(consumer.number) IS DISTINCT FROM relation THEN
        EXECUTE format('DROP VIEW IF EXISTS pgmta.%I', event_view(consumer.number));
        EXECUTE format('CREATE VIEW pgmta.%I AS SELECT id, type, at, message_id, recipient, document FROM %s',
            event_view(consumer.number), title);
        EXECUTE format('COMMENT ON VIEW pgmta.%I IS %L', event_view(consumer.number),
            'Events go through it into ' || title || ': unsubscribe it before that is dropped.');
        -- another may have taken the name since it was checked
        IF event_view_table(consumer.number) <> relation THEN
            RAISE EXCEPTION '% was replaced meanwhile', title USING ERRCODE = 'object_in_use';
        END IF;
    END IF;
    IF NOT EXISTS (
            SELECT FROM pg_trigger AS g WHERE g.tgrelid = 'event_commits'::regclass AND g.tgname = 'event_tables_fill') THEN
        -- at the end of the transaction: the recipients of a message are stored after it
        CREATE CONSTRAINT TRIGGER event_tables_fill AFTER INSERT ON event_commits DEFERRABLE INITIALLY DEFERRED
            FOR EACH ROW EXECUTE FUNCTION event_tables_fill();
        COMMENT ON TRIGGER event_tables_fill ON event_commits IS 'Inserts events into tables of applications.';
    END IF;
    RETURN title;
END $$;
COMMENT ON FUNCTION events_into IS
    'Has events inserted into a table of an application, each in the transaction of its outcome, and returns the name of its '
    'subscription. Repeat it after lock_not_available, as events_subscribe(), and after the table was dropped and made anew.';

CREATE FUNCTION event_tables_gone() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pgmta, pg_catalog, pg_temp SET lock_timeout = '0.2s' AS $$
BEGIN
    EXECUTE format('DROP VIEW IF EXISTS pgmta.%I', event_view(OLD.number));
    IF NOT EXISTS (SELECT FROM event_tables) THEN DROP TRIGGER IF EXISTS event_tables_fill ON event_commits; END IF;
    RETURN NULL;
END $$;
COMMENT ON FUNCTION event_tables_gone IS 'Drops what inserts events into a table whose subscription ended.';
CREATE TRIGGER event_tables_gone AFTER DELETE ON event_tables FOR EACH ROW EXECUTE FUNCTION event_tables_gone();
COMMENT ON TRIGGER event_tables_gone ON event_tables IS 'Drops the view, and the trigger with the last table.';

INSERT INTO forget_columns (relation, names, way, condition) VALUES ('event_tables', '{error}', 'words', 'true');

INSERT INTO rights (object, role, privileges) VALUES
    ('event_tables', 'pgmta_operator', 'SELECT'),
    ('event_tables', 'pgmta_reader', 'SELECT'),
    ('event_tables', 'pgmta_queued', 'SELECT'),
    ('FUNCTION event_table_statements', 'pgmta_operator', 'EXECUTE'),
    ('FUNCTION events_into', 'pgmta_operator', 'EXECUTE'),
    ('FUNCTION event_table_later', 'pgmta_queued', 'EXECUTE');

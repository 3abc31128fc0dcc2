-- Changes of many rows by operators, and their audit.

CREATE TABLE audit (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at timestamptz NOT NULL DEFAULT now(),
    who text NOT NULL,
    role text NOT NULL DEFAULT acting(),
    action text NOT NULL,
    condition text NOT NULL,
    details jsonb NOT NULL DEFAULT '{}',
    rows bigint NOT NULL DEFAULT 0,
    finished_at timestamptz
);
COMMENT ON TABLE audit IS 'Who changed many rows, or a rule, and how many.';
COMMENT ON COLUMN audit.id IS 'Order of the beginnings.';
COMMENT ON COLUMN audit.at IS 'When it began.';
COMMENT ON COLUMN audit.who IS 'user@host of the command, or the worker.';
COMMENT ON COLUMN audit.role IS 'Role of the session.';
COMMENT ON COLUMN audit.action IS 'hold, release, quarantine, retry, bounce, delete, set, rule …';
COMMENT ON COLUMN audit.condition IS 'Which rows.';
COMMENT ON COLUMN audit.details IS 'What was set, and why.';
COMMENT ON COLUMN audit.rows IS 'Rows changed so far; grows with every batch.';
COMMENT ON SEQUENCE audit_id_seq IS 'audit.id.';
COMMENT ON COLUMN audit.finished_at IS 'When it ended; null: it is under way or was broken off.';

CREATE INDEX audit_at ON audit (at);
COMMENT ON INDEX audit_at IS 'What was done lately.';

CREATE FUNCTION queue_takes(action text) RETURNS text LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE action
        -- a key of the HTTP API may release what it holds, but nothing that an operator holds
        WHEN 'hold' THEN '(status <> ''HOLD'' OR held_by ^@ ''key:'' AND held_under IS NULL)'
        WHEN 'quarantine' THEN 'true'
        WHEN 'release' THEN 'status = ''HOLD'''
        WHEN 'retry' THEN 'status IN (''QUEUED'', ''DEFERRED'') AND (send_at IS NULL OR send_at <= now())'
        WHEN 'bounce' THEN 'status NOT IN (''DELETE'', ''REPORT'')'
        WHEN 'delete' THEN 'status <> ''DELETE'''
        WHEN 'set' THEN 'true'
    END
$$;
COMMENT ON FUNCTION queue_takes IS
    'Returns the condition for the rows that an action of an operator takes; null if there is no such action. '
    'pgmta/action.py has the same.';

CREATE FUNCTION queue_change_rows(
    action text, ids bigint[], who text, details jsonb DEFAULT '{}'
) RETURNS bigint LANGUAGE plpgsql
    -- A plan that was made for an empty partition would later read the whole of it. No other way: with
    -- force_custom_plan the trigger queue_hold_stamp plans each of its expressions for each row.
    SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
DECLARE
    why text := details ->> 'reason';
    fault text := details ->> 'fault';
    reasons jsonb := details -> 'reasons';
    holder text := details ->> 'holder';
    until timestamptz := now() + (details ->> 'release_after')::interval;
    changed bigint;
BEGIN
    IF cardinality(ids) = 0 THEN RETURN 0; END IF;
    -- ARRAY(SELECT …) hides the ids from the planner: to estimate known ones costs more than to plan without them.
    CASE action
    WHEN 'hold' THEN
        UPDATE pgmta.queue AS q
        SET status = 'HOLD', held_by = who, hold_until = until, held_under = holder,
            hold_reason = coalesce(reasons ->> q.id::text, q.faults ->> fault, why)
        WHERE q.id = ANY (ARRAY(SELECT unnest(ids)))
            AND (q.status <> 'HOLD' OR q.held_by ^@ 'key:' AND q.held_under IS NULL);
    WHEN 'quarantine' THEN
        -- a held row stays exempt from the rule that held it
        UPDATE pgmta.queue AS q
        SET status = 'HOLD', held_by = who, hold_until = until, held_under = holder,
            exempt_from = CASE WHEN q.held_under IS NULL THEN q.exempt_from
                ELSE ARRAY(SELECT unnest(q.exempt_from)) || q.held_under END,
            hold_reason = coalesce(reasons ->> q.id::text, q.faults ->> fault, why),
            metadata = jsonb_set(q.metadata, '{_quarantineid}', details -> 'quarantine')
        WHERE q.id = ANY (ARRAY(SELECT unnest(ids)));
    WHEN 'release' THEN
        -- the trigger queue_hold_stamp keeps rows with a malformed address on hold
        WITH released AS (
            UPDATE pgmta.queue AS q SET status = 'QUEUED'
            WHERE q.id = ANY (ARRAY(SELECT unnest(ids))) AND q.status = 'HOLD' RETURNING q.status
        )
        SELECT count(*) INTO changed FROM released WHERE released.status <> 'HOLD';
        RETURN changed;
    WHEN 'retry' THEN
        -- a row that is due already keeps its place
        UPDATE pgmta.queue AS q SET next_attempt = least(q.next_attempt, clock_timestamp())
        WHERE q.id = ANY (ARRAY(SELECT unnest(ids))) AND q.status IN ('QUEUED', 'DEFERRED');
    WHEN 'bounce' THEN
        -- A row in flight keeps its lease: nothing is reported before its attempt has ended. The trigger
        -- keeps malformed ones here too.
        WITH given_up AS (
            UPDATE pgmta.queue AS q
            SET status = 'REPORT', held_by = who, hold_until = NULL, hold_reason = why
            WHERE q.id = ANY (ARRAY(SELECT unnest(ids))) AND q.status NOT IN ('DELETE', 'REPORT')
            RETURNING q.status
        )
        SELECT count(*) INTO changed FROM given_up WHERE given_up.status <> 'HOLD';
        RETURN changed;
    WHEN 'delete' THEN
        UPDATE pgmta.queue AS q SET status = 'DELETE'
        WHERE q.id = ANY (ARRAY(SELECT unnest(ids))) AND q.status <> 'DELETE';
    WHEN 'set' THEN
        UPDATE pgmta.queue AS q
        SET priority = coalesce((details ->> 'priority')::smallint, q.priority),
            metadata = (q.metadata || coalesce(details -> 'metadata', '{}'))
                - ARRAY(SELECT jsonb_array_elements_text(coalesce(details -> 'unset', '[]')))
        WHERE q.id = ANY (ARRAY(SELECT unnest(ids)));
    END CASE;
    GET DIAGNOSTICS changed = ROW_COUNT;
    RETURN changed;
END $$;
COMMENT ON FUNCTION queue_change_rows IS
    'Does an action to one batch of rows, which the caller has chosen and locked, and returns how many it changed. '
    'queuectl, the workers of queued and the functions queue_hold … queue_delete all end here. Details: reason, '
    'release_after (interval), quarantine, priority, metadata, unset; holder goes to held_under; fault is the key '
    'in queue.faults, reasons has the reason by row id, and both come before reason.';

CREATE FUNCTION queue_change_turn() RETURNS void LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM FROM pgmta.mutexes WHERE name = 'change of rows' FOR UPDATE;
END $$;
COMMENT ON FUNCTION queue_change_turn IS 'Lets one transaction at a time change many rows by functions.';

CREATE FUNCTION queue_quiet() RETURNS void LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp SET lock_timeout = '5s' AS $$
BEGIN
    LOCK TABLE ONLY pgmta.queue IN SHARE ROW EXCLUSIVE MODE;
END $$;
COMMENT ON FUNCTION queue_quiet IS
    'Lets nobody else change the queue until the end of the transaction. Gives up after 5 seconds, as all mail '
    'waits meanwhile.';

CREATE FUNCTION queue_change(action text, condition text, details jsonb DEFAULT '{}') RETURNS bigint
    LANGUAGE plpgsql SET search_path = pgmta, pg_temp SET standard_conforming_strings = on AS $$
DECLARE
    wanted text := format('%s AND %s', pgmta.queue_takes(action), pgmta.queue_condition(condition));
    chances integer :=
        CASE current_setting('transaction_isolation') WHEN 'read committed' THEN 10 ELSE 1 END;
    quiet boolean := false;
    rule record;
    batch bigint[];
    changed bigint;
    total bigint;
BEGIN
    PERFORM set_config('search_path', pgmta.condition_path(), true);
    IF pgmta.queue_takes(action) IS NULL THEN
        RAISE EXCEPTION 'there is no action %', action USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF EXISTS (SELECT FROM jsonb_each_text(details)
               WHERE key IN ('reason', 'quarantine') AND coalesce(value, '') !~ '\S') THEN
        RAISE EXCEPTION 'a reason is needed, and an id for a quarantine' USING
            ERRCODE = 'invalid_parameter_value';
    END IF;
    PERFORM pgmta.condition_capitals(condition);
    IF action = 'release' THEN
        FOR rule IN SELECT * FROM pgmta.rules_holding(
            wanted || ' AND NOT pgmta.queue_malformed(sender, recipient, domain)')
        LOOP
            RAISE WARNING 'rule % holds % of these rows again', rule.name, coalesce(rule.rows::text, 'some') USING
                HINT = format('DELETE FROM pgmta.rules WHERE name = %L; '
                    'or release them once more when it has held them.', rule.name);
        END LOOP;
    END IF;
    PERFORM pgmta.queue_change_turn();
    FOR chance IN 1 .. chances LOOP
        -- One subtransaction, none within. A session that waits for a row of an ended subtransaction
        -- waits for the whole transaction, and the end of this block would not let it go.
        BEGIN
            IF quiet THEN PERFORM pgmta.queue_quiet(); END IF;
            total := 0;
            FOR batch IN EXECUTE format(  -- rows in flight first
                'SELECT array_agg(id ORDER BY id) FROM (
                     SELECT id, (row_number() OVER (ORDER BY lease_token IS NULL, id) - 1) / 1000 AS number
                     FROM pgmta.queue WHERE %s) AS numbered
                 GROUP BY number ORDER BY number', wanted)
            LOOP
                EXECUTE format(
                    'SELECT pgmta.queue_change_rows($2, ARRAY(
                         SELECT id FROM pgmta.queue WHERE id = ANY (ARRAY(SELECT unnest($1))) AND %s FOR UPDATE
                     ), $3, $4)', wanted)
                    INTO changed USING batch, action, pgmta.acting()::text, details;
                total := total + changed;
            END LOOP;
            EXIT;
        EXCEPTION WHEN serialization_failure OR deadlock_detected OR lock_not_available THEN
            -- A row has moved meanwhile; or outcomes wait for rows that are changed here, and hold
            -- others that are not changed yet. Let them end, and begin again; if need be, undisturbed.
            IF chance = chances OR (NOT quiet AND SQLSTATE = '55P03') THEN RAISE; END IF;
            quiet := quiet OR chance >= 3 OR SQLSTATE = '40P01';
        END;
    END LOOP;
    INSERT INTO pgmta.audit (who, action, condition, details, rows, finished_at)
    VALUES (pgmta.acting(), action, condition, details, total, clock_timestamp());
    IF total > 0 AND action IN ('release', 'retry') THEN
        PERFORM pgmta.notify_channel('pgmta_queue');
    END IF;
    RETURN total;
END $$;
COMMENT ON FUNCTION queue_change IS
    'Does an action to all rows that it takes and that match condition, in batches by queue_change_rows, in the '
    'transaction of the caller. Tries again what lost a race, writes the audit row and returns the number of rows. '
    'A release names in a warning the standing rules that hold some of the rows again.';

CREATE FUNCTION queue_hold(condition text, reason text, release_after interval DEFAULT NULL)
RETURNS bigint LANGUAGE sql AS $$
    SELECT pgmta.queue_change('hold', condition,
        jsonb_build_object('reason', reason, 'release_after', release_after))
$$;
COMMENT ON FUNCTION queue_hold IS
    'Puts the rows that match condition on hold until they are released, or for the time release_after, and says '
    'why in hold_reason. An attempt in flight ends and is recorded; if it delivers, the row goes. Returns the '
    'number of rows.';

CREATE FUNCTION queue_quarantine(
    condition text, quarantine text, reason text, release_after interval DEFAULT NULL
) RETURNS bigint LANGUAGE sql AS $$
    SELECT pgmta.queue_change('quarantine', condition,
        jsonb_build_object('reason', reason, 'release_after', release_after, 'quarantine', quarantine))
$$;
COMMENT ON FUNCTION queue_quarantine IS
    'As queue_hold, and sets metadata._quarantineid to quarantine; also for rows that are on hold already.';

CREATE FUNCTION queue_release(condition text) RETURNS bigint LANGUAGE sql AS $$
    SELECT pgmta.queue_change('release', condition)
$$;
COMMENT ON FUNCTION queue_release IS
    'Puts held rows that match condition back, due at once, but never before send_at. The rule that held a row does not hold it again; a '
    'warning names other rules that do. Rows with a malformed address stay on hold, say so in hold_reason, and are '
    'not counted. Returns the number of rows.';

CREATE FUNCTION queue_retry(condition text) RETURNS bigint LANGUAGE sql AS $$
    SELECT pgmta.queue_change('retry', condition)
$$;
COMMENT ON FUNCTION queue_retry IS
    'Makes waiting rows that match condition due now; held ones stay held, scheduled ones wait, and due ones keep '
    'their place. Returns the number of rows.';

CREATE FUNCTION queue_bounce(condition text, reason text) RETURNS bigint LANGUAGE sql AS $$
    SELECT pgmta.queue_change('bounce', condition, jsonb_build_object('reason', reason))
$$;
COMMENT ON FUNCTION queue_bounce IS
    'Gives the rows that match condition up, held ones too: queued sends their senders a DSN with the reason, and '
    'removes them. Those in flight follow after their attempt, unless it delivers. Returns the number of rows.';

CREATE FUNCTION queue_delete(condition text, reason text) RETURNS bigint LANGUAGE sql AS $$
    SELECT pgmta.queue_change('delete', condition, jsonb_build_object('reason', reason))
$$;
COMMENT ON FUNCTION queue_delete IS
    'Asks queued to delete the rows that match condition; those in flight go after their attempt. The reason goes '
    'to the audit table. Returns the number of rows.';

INSERT INTO rights (object, role, privileges) VALUES
    -- without at and role, whose values only the database gives
    ('audit', 'pgmta_operator',
        'SELECT, INSERT (who, action, condition, details, rows, finished_at), UPDATE (rows, finished_at)'),
    ('audit', 'pgmta_reader', 'SELECT'),
    ('FUNCTION queue_takes', 'pgmta_operator', 'EXECUTE'),
    ('FUNCTION queue_change_rows', 'pgmta_queued', 'EXECUTE'),
    ('FUNCTION queue_change_rows', 'pgmta_operator', 'EXECUTE'),
    ('FUNCTION queue_change_turn', 'pgmta_operator', 'EXECUTE'),
    ('FUNCTION queue_quiet', 'pgmta_operator', 'EXECUTE'),
    ('FUNCTION queue_change', 'pgmta_operator', 'EXECUTE'),
    ('FUNCTION queue_hold', 'pgmta_operator', 'EXECUTE'),
    ('FUNCTION queue_quarantine', 'pgmta_operator', 'EXECUTE'),
    ('FUNCTION queue_release', 'pgmta_operator', 'EXECUTE'),
    ('FUNCTION queue_retry', 'pgmta_operator', 'EXECUTE'),
    ('FUNCTION queue_bounce', 'pgmta_operator', 'EXECUTE'),
    ('FUNCTION queue_delete', 'pgmta_operator', 'EXECUTE');

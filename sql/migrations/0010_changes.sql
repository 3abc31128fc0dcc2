-- One rule for each change of many rows, whichever way it comes: docs/decisions/0025-changes.md.

CREATE FUNCTION queue_takes(action text) RETURNS text LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE action
        WHEN 'hold' THEN 'status <> ''HOLD'''
        WHEN 'quarantine' THEN 'true'
        WHEN 'release' THEN 'status = ''HOLD'''
        WHEN 'retry' THEN 'status IN (''QUEUED'', ''DEFERRED'')'
        WHEN 'delete' THEN 'status <> ''DELETE'''
        WHEN 'set' THEN 'true'
    END
$$;
COMMENT ON FUNCTION queue_takes(text) IS
    'Returns the condition for the rows that an action of an operator takes; null if there is no such '
    'action. pgmta/store/row_change.py has the same.';

CREATE FUNCTION queue_change_rows(
    action text, ids bigint[], who text, details jsonb DEFAULT '{}'
) RETURNS bigint LANGUAGE plpgsql
    -- A plan that was made for an empty partition would later read the whole of it. No other way: with
    -- force_custom_plan the trigger queue_hold_stamp plans each of its expressions for each row.
    SET enable_seqscan = off AS $$
DECLARE
    why text := details ->> 'reason';
    fault text := details ->> 'fault';
    reasons jsonb := details -> 'reasons';
    until timestamptz := now() + (details ->> 'release_after')::interval;
    changed bigint;
BEGIN
    IF cardinality(ids) = 0 THEN RETURN 0; END IF;
    -- By a subselect: to estimate an array that the planner knows costs more than to plan without.
    CASE action
    WHEN 'hold' THEN
        UPDATE public.queue AS q
        SET status = 'HOLD', held_by = who, hold_until = until,
            hold_reason = coalesce(reasons ->> q.id::text, q.faults ->> fault, why)
        WHERE q.id = ANY (ARRAY(SELECT unnest(ids))) AND q.status <> 'HOLD';
    WHEN 'quarantine' THEN
        UPDATE public.queue AS q
        SET status = 'HOLD', held_by = who, hold_until = until,
            hold_reason = coalesce(reasons ->> q.id::text, q.faults ->> fault, why),
            metadata = jsonb_set(q.metadata, '{_quarantineid}', details -> 'quarantine')
        WHERE q.id = ANY (ARRAY(SELECT unnest(ids)));
    WHEN 'release' THEN
        -- the trigger queue_hold_stamp keeps rows with a malformed address on hold
        WITH released AS (
            UPDATE public.queue AS q SET status = 'QUEUED'
            WHERE q.id = ANY (ARRAY(SELECT unnest(ids))) AND q.status = 'HOLD' RETURNING q.status
        )
        SELECT count(*) INTO changed FROM released WHERE released.status <> 'HOLD';
        RETURN changed;
    WHEN 'retry' THEN
        -- a row that is due already keeps its place
        UPDATE public.queue AS q SET next_attempt = least(q.next_attempt, now())
        WHERE q.id = ANY (ARRAY(SELECT unnest(ids))) AND q.status IN ('QUEUED', 'DEFERRED');
    WHEN 'delete' THEN
        UPDATE public.queue AS q SET status = 'DELETE'
        WHERE q.id = ANY (ARRAY(SELECT unnest(ids))) AND q.status <> 'DELETE';
    WHEN 'set' THEN
        UPDATE public.queue AS q
        SET priority = coalesce((details ->> 'priority')::smallint, q.priority),
            metadata = (q.metadata || coalesce(details -> 'metadata', '{}'))
                - ARRAY(SELECT jsonb_array_elements_text(coalesce(details -> 'unset', '[]')))
        WHERE q.id = ANY (ARRAY(SELECT unnest(ids)));
    END CASE;
    GET DIAGNOSTICS changed = ROW_COUNT;
    RETURN changed;
END $$;
COMMENT ON FUNCTION queue_change_rows(text, bigint[], text, jsonb) IS
    'Does an action to one batch of rows, which the caller has chosen and locked, and returns how many it '
    'changed. queuectl, the workers of queued and the functions queue_hold … queue_delete all end here. '
    'Details: reason, release_after (interval), quarantine, priority, metadata, unset; fault is the key in '
    'queue.faults, reasons has the reason by row id, and both come before reason.';

DROP FUNCTION queue_hold(text, text, interval);
DROP FUNCTION queue_quarantine(text, text, text, interval);
DROP FUNCTION queue_release(text);
DROP FUNCTION queue_retry(text);
DROP FUNCTION queue_delete(text, text);
DROP FUNCTION queue_change(text, text, text, text, jsonb);

CREATE FUNCTION queue_change(action text, condition text, details jsonb DEFAULT '{}')
RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    wanted text := format('%s AND %s', public.queue_takes(action), public.queue_condition(condition));
    chances integer :=
        CASE current_setting('transaction_isolation') WHEN 'read committed' THEN 10 ELSE 1 END;
    quiet boolean := false;
    batch bigint[];
    changed bigint;
    total bigint;
BEGIN
    IF public.queue_takes(action) IS NULL THEN
        RAISE EXCEPTION 'there is no action %', action USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF EXISTS (SELECT FROM jsonb_each_text(details)
               WHERE key IN ('reason', 'quarantine') AND coalesce(value, '') !~ '\S') THEN
        RAISE EXCEPTION 'a reason is needed, and an id for a quarantine' USING
            ERRCODE = 'invalid_parameter_value';
    END IF;
    PERFORM pg_advisory_xact_lock(hashtext('postern change'));
    FOR chance IN 1 .. chances LOOP
        -- One subtransaction, none within. A session that waits for a row of an ended subtransaction
        -- waits for the whole transaction, and the end of this block would not let it go.
        BEGIN
            IF quiet THEN PERFORM public.queue_quiet(); END IF;
            total := 0;
            FOR batch IN EXECUTE format(  -- rows in flight first
                'SELECT array_agg(id ORDER BY id) FROM (
                     SELECT id, (row_number() OVER (ORDER BY lease_token IS NULL, id) - 1) / 1000 AS number
                     FROM public.queue WHERE %s) AS numbered
                 GROUP BY number ORDER BY number', wanted)
            LOOP
                EXECUTE format(
                    'SELECT public.queue_change_rows($2, ARRAY(
                         SELECT id FROM public.queue WHERE id = ANY (ARRAY(SELECT unnest($1))) AND %s FOR UPDATE), $3, $4)', wanted)
                    INTO changed USING batch, action, session_user::text, details;
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
    INSERT INTO public.audit (who, action, condition, details, rows, finished_at)
    VALUES (session_user, action, condition, details, total, clock_timestamp());
    IF total > 0 AND action IN ('release', 'retry') THEN
        PERFORM pg_notify('postern_queue', '');
    END IF;
    RETURN total;
END $$;
COMMENT ON FUNCTION queue_change(text, text, jsonb) IS
    'Does an action to all rows that it takes and that match condition, in batches by queue_change_rows, in '
    'the transaction of the caller. Tries again what lost a race, writes the audit row and returns the number '
    'of rows.';

CREATE FUNCTION queue_hold(condition text, reason text, release_after interval DEFAULT NULL)
RETURNS bigint LANGUAGE sql AS $$
    SELECT public.queue_change('hold', condition,
        jsonb_build_object('reason', reason, 'release_after', release_after))
$$;
COMMENT ON FUNCTION queue_hold(text, text, interval) IS
    'Puts the rows that match condition on hold until they are released, or for the time release_after, '
    'and says why in hold_reason. An attempt in flight ends and is recorded; if it delivers, the row '
    'goes. Returns the number of rows.';

CREATE FUNCTION queue_quarantine(
    condition text, quarantine text, reason text, release_after interval DEFAULT NULL
) RETURNS bigint LANGUAGE sql AS $$
    SELECT public.queue_change('quarantine', condition,
        jsonb_build_object('reason', reason, 'release_after', release_after, 'quarantine', quarantine))
$$;
COMMENT ON FUNCTION queue_quarantine(text, text, text, interval) IS
    'As queue_hold, and sets metadata._quarantineid to quarantine; also for rows that are on hold already.';

CREATE FUNCTION queue_release(condition text) RETURNS bigint LANGUAGE sql AS $$
    SELECT public.queue_change('release', condition)
$$;
COMMENT ON FUNCTION queue_release(text) IS
    'Puts held rows that match condition back, due at once. Rows with a malformed address stay on hold, '
    'say so in hold_reason, and are not counted. Returns the number of rows.';

CREATE FUNCTION queue_retry(condition text) RETURNS bigint LANGUAGE sql AS $$
    SELECT public.queue_change('retry', condition)
$$;
COMMENT ON FUNCTION queue_retry(text) IS
    'Makes waiting rows that match condition due now; held ones stay held, and due ones keep their place. '
    'Returns the number of rows.';

CREATE FUNCTION queue_delete(condition text, reason text) RETURNS bigint LANGUAGE sql AS $$
    SELECT public.queue_change('delete', condition, jsonb_build_object('reason', reason))
$$;
COMMENT ON FUNCTION queue_delete(text, text) IS
    'Asks queued to delete the rows that match condition; those in flight go after their attempt. The '
    'reason goes to the audit table. Returns the number of rows.';

REVOKE EXECUTE ON FUNCTION queue_takes(text), queue_change_rows(text, bigint[], text, jsonb),
    queue_change(text, text, jsonb), queue_hold(text, text, interval),
    queue_quarantine(text, text, text, interval), queue_release(text), queue_retry(text),
    queue_delete(text, text) FROM PUBLIC;

-- The first part of postern_grants() names queue_change by its old arguments.
DO $$
DECLARE
    basic text := pg_get_functiondef('public.postern_grants_basic()'::regprocedure);
BEGIN
    EXECUTE replace(basic, 'queue_change(text, text, text, text, jsonb)', 'queue_change(text, text, jsonb)');
END $$;
ALTER FUNCTION postern_grants() RENAME TO postern_grants_0008;
COMMENT ON FUNCTION postern_grants_0008() IS 'Part of postern_grants().';
CREATE FUNCTION postern_grants() RETURNS text[] LANGUAGE plpgsql
    SET search_path = public, pg_catalog, pg_temp AS $$
BEGIN
    IF to_regrole('postern_operator') IS NOT NULL THEN
        EXECUTE 'GRANT EXECUTE ON FUNCTION queue_takes(text) TO postern_operator';
        EXECUTE 'GRANT EXECUTE ON FUNCTION queue_change_rows(text, bigint[], text, jsonb) TO postern_operator';
    END IF;
    IF to_regrole('postern_queued') IS NOT NULL THEN
        EXECUTE 'GRANT EXECUTE ON FUNCTION queue_change_rows(text, bigint[], text, jsonb) TO postern_queued';
    END IF;
    RETURN postern_grants_0008();
END $$;
REVOKE EXECUTE ON FUNCTION postern_grants() FROM PUBLIC;
COMMENT ON FUNCTION postern_grants() IS
    'Gives the roles postern_smtpd, postern_queued, postern_operator and postern_reader their '
    'rights; to be called by the owner of the tables. Returns the roles that do not exist.';
DO $$ BEGIN PERFORM postern_grants(); END $$;

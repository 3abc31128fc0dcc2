-- A rule does not hold a row again that was released from it: docs/decisions/0061-released.md.

CREATE SEQUENCE rule_ids;
COMMENT ON SEQUENCE rule_ids IS 'Numbers of standing rules.';
ALTER TABLE rules ADD COLUMN id bigint NOT NULL DEFAULT nextval('rule_ids');
COMMENT ON COLUMN rules.id IS
    'Of the rule with this condition: a rule that is made anew, or gets another condition, has another number.';

ALTER TABLE queue ADD COLUMN held_under text, ADD COLUMN exempt_from text[];
COMMENT ON COLUMN queue.held_under IS
    'What holds the row: "rule N", N being rules.id, or "worker NAME" of a worker without a rule. Null: an operator, an outcome or smtpd.';
COMMENT ON COLUMN queue.exempt_from IS
    'The rules and workers from which the row was released, as in held_under. None of them holds it again.';
CREATE INDEX queue_hold_under ON queue_hold (held_under) WHERE held_under IS NOT NULL;
COMMENT ON INDEX queue_hold_under IS 'Rows that a rule holds.';

UPDATE queue AS q SET held_under = 'rule ' || r.id FROM rules AS r
WHERE q.status = 'HOLD' AND q.held_by IS NOT NULL
    AND (q.held_by = 'rule ' || r.name OR r.origin = 'worker' AND q.held_by ~ '@' AND split_part(q.held_by, '@', 1) = r.name);

CREATE OR REPLACE FUNCTION queue_hold_stamp() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF OLD.held_under IS NOT NULL AND NEW.status <> 'HOLD' THEN
        -- by unnest, because operators may write an array of any shape
        NEW.exempt_from := ARRAY(SELECT unnest(OLD.exempt_from)) || OLD.held_under;
        NEW.held_under := NULL;
    END IF;
    IF NEW.status NOT IN ('HOLD', 'DELETE')
            AND pgmta.queue_malformed(NEW.sender, NEW.recipient, NEW.domain) THEN
        -- stays, so that the others that the statement releases are released
        NEW.status := 'HOLD';
        NEW.held_at := now();
        NEW.held_by := coalesce(OLD.held_by, session_user);
        NEW.hold_reason := 'an address holds control characters: the row can only be deleted';
        NEW.hold_until := NULL;
    ELSIF OLD.status = 'REPORT' AND NEW.status <> 'DELETE' AND OLD.hold_reason IN ('relayed', 'delivered') THEN
        -- it was delivered: a hold and its release would send it a second time
        NEW.status := OLD.status;
        NEW.held_at := OLD.held_at;
        NEW.held_by := OLD.held_by;
        NEW.hold_reason := OLD.hold_reason;
        NEW.hold_until := OLD.hold_until;
    ELSIF NEW.status IN ('HOLD', 'REPORT') THEN
        NEW.held_at := now();
        NEW.held_by := coalesce(NEW.held_by, session_user);
        NEW.hold_reason := coalesce(NEW.hold_reason, 'no reason given');
        IF NEW.status = 'REPORT' THEN NEW.hold_until := NULL; END IF;
    ELSIF OLD.status IN ('HOLD', 'REPORT') THEN
        NEW.held_at := NULL;
        NEW.held_by := NULL;
        NEW.hold_reason := NULL;
        NEW.hold_until := NULL;
        NEW.faults := NULL;  -- the row may have been mended; what still fails is found again
        NEW.next_attempt := least(NEW.next_attempt, now());
    END IF;
    RETURN NEW;
END $$;
COMMENT ON FUNCTION queue_hold_stamp() IS
    'Says of every hold and report who, when and why, also of one by a plain UPDATE, and takes it off again. '
    'A row that leaves HOLD is exempt from the rule that held it. A row with a malformed address stays on hold. '
    'A row that was delivered stays in REPORT, or is deleted.';

CREATE OR REPLACE FUNCTION queue_change_rows(
    action text, ids bigint[], who text, details jsonb DEFAULT '{}'
) RETURNS bigint LANGUAGE plpgsql
    -- A plan that was made for an empty partition would later read the whole of it. No other way: with
    -- force_custom_plan the trigger queue_hold_stamp plans each of its expressions for each row.
    SET enable_seqscan = off AS $$
DECLARE
    why text := details ->> 'reason';
    fault text := details ->> 'fault';
    reasons jsonb := details -> 'reasons';
    holder text := details ->> 'holder';
    until timestamptz := now() + (details ->> 'release_after')::interval;
    changed bigint;
BEGIN
    IF cardinality(ids) = 0 THEN RETURN 0; END IF;
    -- By a subselect: to estimate an array that the planner knows costs more than to plan without.
    CASE action
    WHEN 'hold' THEN
        UPDATE pgmta.queue AS q
        SET status = 'HOLD', held_by = who, hold_until = until, held_under = holder,
            hold_reason = coalesce(reasons ->> q.id::text, q.faults ->> fault, why)
        WHERE q.id = ANY (ARRAY(SELECT unnest(ids))) AND q.status <> 'HOLD';
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
        UPDATE pgmta.queue AS q SET next_attempt = least(q.next_attempt, now())
        WHERE q.id = ANY (ARRAY(SELECT unnest(ids))) AND q.status IN ('QUEUED', 'DEFERRED');
    WHEN 'bounce' THEN
        -- A row in flight keeps its lease: nothing is reported before its attempt has ended. The trigger
        -- keeps malformed ones here too. Some words say that no operator has given the row up.
        WITH given_up AS (
            UPDATE pgmta.queue AS q
            SET status = 'REPORT', held_by = who, hold_until = NULL, hold_reason =
                CASE WHEN why IN ('undeliverable', 'relayed', 'delivered', 'delayed') THEN 'bounced: ' ELSE '' END || why
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
COMMENT ON FUNCTION queue_change_rows(text, bigint[], text, jsonb) IS
    'Does an action to one batch of rows, which the caller has chosen and locked, and returns how many it '
    'changed. queuectl, the workers of queued and the functions queue_hold … queue_delete all end here. '
    'Details: reason, release_after (interval), quarantine, priority, metadata, unset; holder goes to held_under; '
    'fault is the key in queue.faults, reasons has the reason by row id, and both come before reason.';

CREATE FUNCTION rules_holding(condition text) RETURNS TABLE (name text, rows bigint)
    LANGUAGE plpgsql STABLE SET search_path TO 'pgmta', 'pg_temp' AS $$
DECLARE
    rule record;
BEGIN
    PERFORM set_config('search_path', pgmta.condition_path() || ', pg_temp', true);
    FOR rule IN
        SELECT r.id, r.name, r.condition FROM pgmta.rules AS r
        WHERE (r.expires_at IS NULL OR r.expires_at > now()) AND pgmta.condition_fault(r.condition) IS NULL
        ORDER BY r.name
    LOOP
        name := rule.name;
        BEGIN
            EXECUTE format(E'SELECT count(*) FROM pgmta.queue WHERE (\n%s\n) AND held_under IS DISTINCT FROM %L'
                ' AND (%L = ANY (exempt_from)) IS NOT TRUE AND (\n%s\n)',
                condition, 'rule ' || rule.id, 'rule ' || rule.id, rule.condition) INTO rows;
        EXCEPTION WHEN OTHERS THEN
            -- what the server can't do now is about no row
            IF SQLSTATE ~ '^(08|25|40|53|57|58|55P03|XX001|XX002)' THEN RAISE; END IF;
            rows := NULL;
        END;
        IF rows > 0 OR rows IS NULL THEN RETURN NEXT; END IF;
    END LOOP;
END $$;
COMMENT ON FUNCTION rules_holding(text) IS
    'The standing rules that would hold rows again if an operator released those that match condition, and how '
    'many each. Rows is null if a condition fails on a row.';

CREATE FUNCTION condition_capitals(condition text) RETURNS void
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    capitals text[] := regexp_match(condition, '(?<![\w.''])(?:queue\.)?(sender_domain|domain)\s*'
        '(?:=|<>|!=|(?:[nN][oO][tT]\s+)?[lL][iI][kK][eE]\s|(?:[nN][oO][tT]\s+)?[iI][nN]\s*\((?:[^()'']|''[^'']*'')*?)'
        '\s*(''[^'']*[A-Z][^'']*'')');
BEGIN
    IF capitals IS NOT NULL THEN
        RAISE WARNING '% is in lower case, so % never matches', capitals[1], capitals[2]
            USING HINT = 'Write it in lower case.';
    END IF;
END $$;
COMMENT ON FUNCTION condition_capitals(text) IS 'Warns of a condition that compares a domain with a text in capitals.';

CREATE OR REPLACE FUNCTION rules_valid() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    fault text;
BEGIN
    PERFORM pgmta.queue_condition(NEW.condition);
    fault := pgmta.condition_fault(NEW.condition);
    IF fault IS NOT NULL THEN
        RAISE EXCEPTION 'the condition of rule % is refused: %', NEW.name, fault USING
            ERRCODE = 'insufficient_privilege', COLUMN = 'condition',
            HINT = 'queued evaluates it. It may use the columns of queue and functions of PostgreSQL that see only these.';
    END IF;
    PERFORM pgmta.condition_capitals(NEW.condition);
    RETURN NEW;
END $$;

CREATE OR REPLACE FUNCTION queue_change(action text, condition text, details jsonb DEFAULT '{}') RETURNS bigint
    LANGUAGE plpgsql SET search_path TO 'pgmta', 'pg_temp' AS $_$
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
    PERFORM set_config('search_path', pgmta.condition_path() || ', pg_temp', true);
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
                HINT = format('DELETE FROM pgmta.rules WHERE name = %L; or release them once more when it has held them.',
                    rule.name);
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
                         SELECT id FROM pgmta.queue WHERE id = ANY (ARRAY(SELECT unnest($1))) AND %s FOR UPDATE), $3, $4)', wanted)
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
    INSERT INTO pgmta.audit (who, action, condition, details, rows, finished_at)
    VALUES (session_user, action, condition, details, total, clock_timestamp());
    IF total > 0 AND action IN ('release', 'retry') THEN
        PERFORM pg_notify('pgmta_queue', '');
    END IF;
    RETURN total;
END $_$;
COMMENT ON FUNCTION queue_change(text, text, jsonb) IS
    'Does an action to all rows that it takes and that match condition, in batches by queue_change_rows, in '
    'the transaction of the caller. Tries again what lost a race, writes the audit row and returns the number '
    'of rows. A release names in a warning the standing rules that hold some of the rows again.';
COMMENT ON FUNCTION queue_release(text) IS
    'Puts held rows that match condition back, due at once. The rule that held a row does not hold it again; a '
    'warning names other rules that do. Rows with a malformed address stay on hold, say so in hold_reason, and are '
    'not counted. Returns the number of rows.';

CREATE OR REPLACE FUNCTION rules_changed() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    held bigint;
BEGIN
    UPDATE pgmta.rules_version SET version = version + 1;
    IF TG_OP = 'DELETE' THEN
        SELECT count(*) INTO held FROM pgmta.queue WHERE status = 'HOLD' AND held_under = 'rule ' || OLD.id;
        IF held > 0 THEN
            RAISE NOTICE 'rule % ends; % rows that it holds stay on hold', OLD.name, held USING
                HINT = format('SELECT pgmta.queue_release(%L); frees them.', format('held_under = %L', 'rule ' || OLD.id));
        END IF;
    END IF;
    RETURN NULL;
END $$;
COMMENT ON FUNCTION rules_changed() IS
    'Counts changes of the standing rules. Says how many rows an ended rule leaves on hold, and how to free them.';

CREATE FUNCTION rules_renumbered() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    NEW.id := nextval('pgmta.rule_ids');
    RETURN NEW;
END $$;
COMMENT ON FUNCTION rules_renumbered() IS 'Gives a rule with another condition another number.';
CREATE TRIGGER rules_renumbered BEFORE UPDATE OF condition ON rules FOR EACH ROW
    WHEN (OLD.condition <> NEW.condition) EXECUTE FUNCTION rules_renumbered();
COMMENT ON TRIGGER rules_renumbered ON rules IS 'Rows that were released from a rule are not exempt from another condition.';

ALTER FUNCTION grants() RENAME TO grants_0046;
COMMENT ON FUNCTION grants_0046() IS 'Part of grants().';
CREATE FUNCTION grants() RETURNS text[] LANGUAGE plpgsql
    SET search_path = pgmta, pg_catalog, pg_temp AS $$
BEGIN
    PERFORM grant_to('USAGE ON SEQUENCE rule_ids', 'pgmta_queued', 'pgmta_operator');
    PERFORM grant_to('UPDATE (held_under, exempt_from) ON queue', 'pgmta_queued', 'pgmta_operator');
    PERFORM grant_to('EXECUTE ON FUNCTION condition_capitals(text)', 'pgmta_queued', 'pgmta_operator');
    PERFORM grant_to('EXECUTE ON FUNCTION rules_holding(text)', 'pgmta_operator', 'pgmta_reader');
    RETURN grants_0046();
END $$;
REVOKE EXECUTE ON FUNCTION grants(), grants_0046(), rules_holding(text), rules_renumbered(),
    condition_capitals(text) FROM PUBLIC;
COMMENT ON FUNCTION grants() IS
    'Gives the roles pgmta_smtpd, pgmta_queued, pgmta_operator, pgmta_reader and pgmta_submit their '
    'rights; to be called by the owner of the tables. Returns the roles that do not exist.';
DO $$ BEGIN PERFORM grants(); END $$;

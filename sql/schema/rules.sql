-- Standing rules: rows that match one are never claimed for delivery.

CREATE SEQUENCE rule_ids;
COMMENT ON SEQUENCE rule_ids IS 'Numbers of standing rules.';

CREATE TABLE rules (
    name text PRIMARY KEY,
    action text NOT NULL CHECK (action IN ('hold', 'quarantine')),
    condition text NOT NULL,
    reason text NOT NULL,
    quarantine text,
    hold_seconds double precision CHECK (hold_seconds > 0),
    origin text NOT NULL,
    created_by text NOT NULL DEFAULT acting(),
    created_at timestamptz NOT NULL DEFAULT now(),
    expires_at timestamptz,
    id bigint NOT NULL DEFAULT nextval('rule_ids'),
    slow_at timestamptz,
    CHECK ((action = 'quarantine') = (quarantine IS NOT NULL))
);
COMMENT ON TABLE rules IS
    'Standing rules: a row that matches one is never claimed for delivery, from the rule''s commit on, also one that '
    'comes later. They outlive the worker that brought them.';
COMMENT ON COLUMN rules.name IS 'Of the worker in queued.yaml, or given by the operator.';
COMMENT ON COLUMN rules.action IS 'hold or quarantine.';
COMMENT ON COLUMN rules.condition IS 'SQL condition on columns of queue, checked when it was made.';
COMMENT ON COLUMN rules.reason IS 'Goes to hold_reason.';
COMMENT ON COLUMN rules.quarantine IS 'Goes to metadata._quarantineid.';
COMMENT ON COLUMN rules.hold_seconds IS 'How long a hold lasts; null: until an operator releases it.';
COMMENT ON COLUMN rules.origin IS 'worker, or operator.';
COMMENT ON COLUMN rules.created_by IS 'Who made it.';
COMMENT ON COLUMN rules.created_at IS 'When it was made.';
COMMENT ON COLUMN rules.expires_at IS 'When it stops to count; null: never.';
COMMENT ON COLUMN rules.id IS
    'Of the rule with this condition: a rule that is made anew, or gets another condition, has another number.';
COMMENT ON COLUMN rules.slow_at IS
    'When queued set the rule aside because its condition takes too long; null: it counts. A new condition counts again.';
COMMENT ON CONSTRAINT rules_action_check ON rules IS 'The two actions.';
COMMENT ON CONSTRAINT rules_check ON rules IS 'A quarantine has a name.';
COMMENT ON CONSTRAINT rules_hold_seconds_check ON rules IS 'Over 0.';

CREATE TABLE rules_version (
    version bigint NOT NULL,
    one boolean DEFAULT true PRIMARY KEY CHECK (one)
);
COMMENT ON TABLE rules_version IS
    'Changes with every change of rules; a claim made with another version gets nothing.';
COMMENT ON COLUMN rules_version.version IS 'Another number after each change.';
COMMENT ON COLUMN rules_version.one IS 'There is one row.';
COMMENT ON CONSTRAINT rules_version_one_check ON rules_version IS 'One row.';
INSERT INTO rules_version VALUES (nextval('versions'));

CREATE FUNCTION rules_valid() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    fault text;
BEGIN
    fault := pgmta.condition_fault(NEW.condition);
    IF fault IS NOT NULL THEN
        RAISE EXCEPTION 'the condition of rule % is refused: %', NEW.name, fault USING
            ERRCODE = 'invalid_parameter_value', COLUMN = 'condition',
            HINT = 'queued evaluates it. It may use the columns of queue and functions of PostgreSQL that see only these.';
    END IF;
    PERFORM pgmta.condition_capitals(NEW.condition);
    IF TG_OP = 'UPDATE' AND NEW.condition <> OLD.condition THEN NEW.slow_at := NULL; END IF;
    RETURN NEW;
END $$;
COMMENT ON FUNCTION rules_valid IS 'Refuses what is no condition: it would stop every claim.';

CREATE TRIGGER rules_valid BEFORE INSERT OR UPDATE OF condition ON rules
    FOR EACH ROW EXECUTE FUNCTION rules_valid();
COMMENT ON TRIGGER rules_valid ON rules IS 'A rule by plain SQL is analysed as well.';

CREATE FUNCTION rules_renumbered() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    NEW.id := nextval('pgmta.rule_ids');
    RETURN NEW;
END $$;
COMMENT ON FUNCTION rules_renumbered IS 'Gives a rule with another condition another number.';

CREATE TRIGGER rules_renumbered BEFORE UPDATE OF condition ON rules FOR EACH ROW
    WHEN (OLD.condition <> NEW.condition) EXECUTE FUNCTION rules_renumbered();
COMMENT ON TRIGGER rules_renumbered ON rules IS
    'Rows that were released from a rule are not exempt from another condition.';

CREATE FUNCTION rules_changed() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    held bigint;
BEGIN
    UPDATE pgmta.rules_version SET version = nextval('pgmta.versions');
    IF TG_OP = 'DELETE' THEN
        SELECT count(*) INTO held FROM pgmta.queue WHERE status = 'HOLD' AND held_under = 'rule ' || OLD.id;
        IF held > 0 THEN
            RAISE NOTICE 'rule % ends; % rows that it holds stay on hold', OLD.name, held USING
                HINT = format('SELECT pgmta.queue_release(%L); frees them.', format('held_under = %L', 'rule ' || OLD.id));
        END IF;
    END IF;
    RETURN NULL;
END $$;
COMMENT ON FUNCTION rules_changed IS
    'Counts changes of the standing rules. Says how many rows an ended rule leaves on hold, and how to free them.';

CREATE TRIGGER rules_changed AFTER INSERT OR UPDATE OR DELETE ON rules
    FOR EACH ROW EXECUTE FUNCTION rules_changed();
COMMENT ON TRIGGER rules_changed ON rules IS
    'Tells every claim that the rules are others now; a statement that changes none tells nothing.';
CREATE TRIGGER rules_emptied AFTER TRUNCATE ON rules
    FOR EACH STATEMENT EXECUTE FUNCTION rules_changed();
COMMENT ON TRIGGER rules_emptied ON rules IS 'The same for TRUNCATE.';

CREATE FUNCTION rules_holding(condition text) RETURNS TABLE (name text, rows bigint)
    LANGUAGE plpgsql STABLE SET search_path = pgmta, pg_temp SET standard_conforming_strings = on AS $$
DECLARE
    rule record;
BEGIN
    PERFORM set_config('search_path', pgmta.condition_path(), true);
    FOR rule IN
        SELECT r.id, r.name, r.condition FROM pgmta.rules AS r
        WHERE (r.expires_at IS NULL OR r.expires_at > now()) AND r.slow_at IS NULL
            AND pgmta.condition_fault(r.condition) IS NULL
        ORDER BY r.name
    LOOP
        name := rule.name;
        BEGIN
            EXECUTE format(E'SELECT count(*) FROM pgmta.queue WHERE (\n%s\n) AND held_under IS DISTINCT FROM %L'
                ' AND (%L = ANY (exempt_from)) IS NOT TRUE AND (\n%s\n)',
                condition, 'rule ' || rule.id, 'rule ' || rule.id, rule.condition) INTO rows;
        EXCEPTION WHEN OTHERS THEN
            -- an error by which the server can't work now is not about a row
            IF SQLSTATE ~ '^(08|25|40|53|57|58|55P03|XX001|XX002)' THEN RAISE; END IF;
            rows := NULL;
        END;
        IF rows > 0 OR rows IS NULL THEN RETURN NEXT; END IF;
    END LOOP;
END $$;
COMMENT ON FUNCTION rules_holding IS
    'The standing rules that would hold rows again if an operator released those that match condition, and how many '
    'each. Rows is null if a condition fails on a row.';

INSERT INTO rights (object, role, privileges) VALUES
    ('SEQUENCE rule_ids', 'pgmta_queued', 'USAGE'),
    ('SEQUENCE rule_ids', 'pgmta_operator', 'USAGE'),
    ('rules', 'pgmta_queued', 'SELECT, INSERT, UPDATE, DELETE'),
    ('rules', 'pgmta_operator', 'SELECT, INSERT, UPDATE, DELETE'),
    ('rules', 'pgmta_reader', 'SELECT'),
    ('rules_version', 'pgmta_queued', 'SELECT'),
    ('rules_version', 'pgmta_operator', 'SELECT'),
    ('rules_version', 'pgmta_reader', 'SELECT'),
    ('FUNCTION rules_holding', 'pgmta_operator', 'EXECUTE'),
    ('FUNCTION rules_holding', 'pgmta_reader', 'EXECUTE');

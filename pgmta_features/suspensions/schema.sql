-- Suspensions: mail that meets one waits, without a hold, until an operator resumes it (docs/decisions/suspensions.md).

ALTER TABLE queue ADD COLUMN suspension bigint;
COMMENT ON COLUMN queue.suspension IS
    'The suspension for which the row was put off: suspensions.id. Null: none.';
CREATE INDEX queue_suspension ON queue (suspension, id) WHERE suspension IS NOT NULL;
COMMENT ON INDEX queue_suspension IS 'Rows that were put off for a suspension.';

CREATE TABLE suspensions (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    kind text NOT NULL CHECK (
        kind IN ('domain', 'mx', 'next-hop', 'sender', 'sender-domain', 'tenant', 'condition')),
    value text NOT NULL,
    reason text NOT NULL CHECK (reason ~ '\S'),
    tag text NOT NULL DEFAULT '',
    created_by text NOT NULL DEFAULT acting(),
    created_at timestamptz NOT NULL DEFAULT now(),
    until timestamptz,
    applied_at timestamptz,
    slow_at timestamptz
);
COMMENT ON TABLE suspensions IS
    'Mail that meets one is not tried. It expires, meets its deadline and gets delay notices as before.';
COMMENT ON COLUMN suspensions.id IS 'Its number, which queue.suspension has.';
COMMENT ON SEQUENCE suspensions_id_seq IS 'suspensions.id.';
COMMENT ON COLUMN suspensions.kind IS
    'What value is: domain (of the recipient), mx (a host), next-hop (a host of a route, or a domain without one), '
    'sender (an address), sender-domain, tenant, or condition (SQL on columns of queue).';
COMMENT ON COLUMN suspensions.value IS
    'The key. Names of hosts and domains in lower case, A-labels; *.NAME is every host of a domain.';
COMMENT ON COLUMN suspensions.reason IS 'Why, for other operators.';
COMMENT ON COLUMN suspensions.tag IS 'A name by which several are resumed at once; empty: none.';
COMMENT ON COLUMN suspensions.created_by IS 'Who suspended it.';
COMMENT ON COLUMN suspensions.created_at IS 'When.';
COMMENT ON COLUMN suspensions.until IS 'When it ends by itself; null: when an operator resumes it.';
COMMENT ON COLUMN suspensions.applied_at IS
    'When the mail that was due had been put off, in batches; null: that is under way, and workers put off what they meet.';
COMMENT ON COLUMN suspensions.slow_at IS
    'When queued set it aside because its condition takes too long: its mail goes on. Null: it counts.';
COMMENT ON CONSTRAINT suspensions_kind_check ON suspensions IS 'The kinds.';
COMMENT ON CONSTRAINT suspensions_reason_check ON suspensions IS 'A reason is needed.';

CREATE TABLE suspension_domains (
    suspension_id bigint NOT NULL REFERENCES suspensions ON DELETE CASCADE,
    domain text COLLATE "C" NOT NULL,
    applied_at timestamptz,
    PRIMARY KEY (suspension_id, domain)
);
COMMENT ON TABLE suspension_domains IS
    'Recipient domains whose mail leads to a suspended MX host, as the log or a worker has found.';
COMMENT ON COLUMN suspension_domains.suspension_id IS 'suspensions.id.';
COMMENT ON COLUMN suspension_domains.domain IS 'As queue.domain.';
COMMENT ON COLUMN suspension_domains.applied_at IS 'As suspensions.applied_at, for the mail of this domain.';
COMMENT ON CONSTRAINT suspension_domains_suspension_id_fkey ON suspension_domains IS 'They end together.';

CREATE TABLE suspensions_version (
    version bigint NOT NULL,
    one boolean DEFAULT true PRIMARY KEY CHECK (one)
);
COMMENT ON TABLE suspensions_version IS
    'Changes with every change of suspensions; each process looks at it when it is told, and every 5 s.';
COMMENT ON COLUMN suspensions_version.version IS 'Another number after each change.';
COMMENT ON COLUMN suspensions_version.one IS 'There is one row.';
COMMENT ON CONSTRAINT suspensions_version_one_check ON suspensions_version IS 'One row.';
INSERT INTO suspensions_version VALUES (nextval('versions'));

CREATE FUNCTION suspension_condition(kind text, value text) RETURNS text LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE kind
        WHEN 'domain' THEN format('domain = %L', value)
        WHEN 'sender' THEN format('lower(sender COLLATE "C") = %L', value)
        WHEN 'sender-domain' THEN format('sender_domain = %L', value)
        WHEN 'tenant' THEN format('tenant = %L', value)
        WHEN 'condition' THEN value
    END
$$;
COMMENT ON FUNCTION suspension_condition IS
    'Returns the condition on columns of queue for the mail that a suspension is about; null: only workers know it.';

CREATE FUNCTION suspensions_valid() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
    SET standard_conforming_strings = on AS $$
DECLARE
    fault text;
BEGIN
    IF NEW.kind <> 'condition' THEN
        IF NEW.value !~ '\S' THEN
            RAISE EXCEPTION 'a suspension by % needs a value', NEW.kind USING ERRCODE = 'invalid_parameter_value';
        END IF;
        IF NEW.kind <> 'tenant' THEN NEW.value := lower(NEW.value COLLATE "C"); END IF;
        RETURN NEW;
    END IF;
    fault := pgmta.condition_fault(NEW.value);
    IF fault IS NOT NULL THEN
        RAISE EXCEPTION 'the condition of the suspension is refused: %', fault USING
            ERRCODE = 'invalid_parameter_value', COLUMN = 'value',
            HINT = 'queued evaluates it. It may use the columns of queue and functions of PostgreSQL that see only these.';
    END IF;
    PERFORM pgmta.condition_capitals(NEW.value);
    RETURN NEW;
END $$;
COMMENT ON FUNCTION suspensions_valid IS 'Refuses what is no condition, and writes names in lower case.';
CREATE TRIGGER suspensions_valid BEFORE INSERT OR UPDATE OF kind, value ON suspensions
    FOR EACH ROW EXECUTE FUNCTION suspensions_valid();
COMMENT ON TRIGGER suspensions_valid ON suspensions IS 'A condition is analysed, as that of a rule.';

CREATE FUNCTION suspensions_changed() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    UPDATE pgmta.suspensions_version SET version = nextval('pgmta.versions');
    PERFORM pgmta.notify_channel('pgmta_orders');
    RETURN NULL;
END $$;
COMMENT ON FUNCTION suspensions_changed IS 'Counts changes of the suspensions, and tells every process.';
CREATE TRIGGER suspensions_changed AFTER INSERT OR DELETE OR UPDATE OF kind, value, reason, tag, until, slow_at ON suspensions
    FOR EACH STATEMENT EXECUTE FUNCTION suspensions_changed();
COMMENT ON TRIGGER suspensions_changed ON suspensions IS 'Tells every process.';
CREATE TRIGGER suspension_domains_changed AFTER INSERT OR DELETE ON suspension_domains
    FOR EACH STATEMENT EXECUTE FUNCTION suspensions_changed();
COMMENT ON TRIGGER suspension_domains_changed ON suspension_domains IS 'Tells every process.';

CREATE FUNCTION queue_suspend(
    kind text, value text, reason text, until timestamptz DEFAULT NULL, tag text DEFAULT '', who text DEFAULT acting()
) RETURNS bigint LANGUAGE plpgsql SECURITY DEFINER SET search_path = pgmta, pg_catalog, pg_temp AS $$
DECLARE
    made suspensions;
BEGIN
    IF until <= now() THEN
        RAISE EXCEPTION 'the end of a suspension is in the past' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    INSERT INTO suspensions AS s (kind, value, reason, tag, created_by, until)
    VALUES (queue_suspend.kind, queue_suspend.value, queue_suspend.reason, coalesce(queue_suspend.tag, ''),
        coalesce(who, acting()), queue_suspend.until)
    RETURNING s.* INTO made;
    INSERT INTO audit (who, action, condition, details, finished_at) VALUES (
        made.created_by, 'suspend', coalesce(suspension_condition(made.kind, made.value), made.kind || ' ' || made.value),
        jsonb_strip_nulls(jsonb_build_object('suspension', made.id, 'kind', made.kind, 'value', made.value,
            'reason', made.reason, 'tag', nullif(made.tag, ''), 'until', made.until)), now());
    RETURN made.id;
END $$;
COMMENT ON FUNCTION queue_suspend IS
    'Suspends the mail of a key from now on, and notes it in audit. kind and value are as in suspensions. Workers begin '
    'no transaction of such mail any more within a second. Returns the number of the suspension.';

CREATE FUNCTION suspension_end(suspension bigint, who text) RETURNS boolean LANGUAGE plpgsql
    SET search_path = pgmta, pg_catalog, pg_temp SET enable_seqscan = off AS $$
DECLARE
    gone suspensions;
    waiting bigint;
BEGIN
    DELETE FROM suspensions AS s WHERE s.id = suspension RETURNING s.* INTO gone;
    IF gone.id IS NULL THEN RETURN false; END IF;
    SELECT count(*) INTO waiting FROM queue AS q WHERE q.suspension = gone.id;
    INSERT INTO audit (who, action, condition, details, rows, finished_at) VALUES (
        who, 'resume', coalesce(suspension_condition(gone.kind, gone.value), gone.kind || ' ' || gone.value),
        jsonb_strip_nulls(jsonb_build_object('suspension', gone.id, 'kind', gone.kind, 'value', gone.value,
            'reason', gone.reason, 'tag', nullif(gone.tag, ''))), waiting, now());
    RETURN true;
END $$;
COMMENT ON FUNCTION suspension_end IS 'Ends a suspension, and notes it in audit with the rows that wait for it.';

CREATE FUNCTION queue_resume(suspension bigint, who text DEFAULT acting()) RETURNS boolean LANGUAGE sql
    SECURITY DEFINER SET search_path = pgmta, pg_catalog, pg_temp AS $$
    SELECT suspension_end(suspension, coalesce(who, acting()))
$$;
COMMENT ON FUNCTION queue_resume IS
    'Ends a suspension, and notes it in audit. Its mail becomes due within a minute, unless it meets another one. '
    'Returns whether there was one of this number.';

CREATE FUNCTION suspensions_expire(who text) RETURNS integer LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pgmta, pg_catalog, pg_temp AS $$
DECLARE
    number integer;
BEGIN
    SELECT count(*) FILTER (WHERE suspension_end(s.id, suspensions_expire.who)) INTO number
    FROM suspensions AS s WHERE s.until <= now();
    RETURN number;
END $$;
COMMENT ON FUNCTION suspensions_expire IS 'Ends the suspensions whose time is over, and returns how many.';

CREATE FUNCTION suspended_under(ids bigint[]) RETURNS TABLE (row_id bigint, suspension bigint)
    LANGUAGE plpgsql STABLE SET search_path = pgmta, pg_catalog, pg_temp AS $$
DECLARE
    each record;
BEGIN
    FOR each IN
        SELECT s.id, s.value FROM suspensions AS s
        WHERE s.kind = 'condition' AND (s.until IS NULL OR s.until > now()) AND s.slow_at IS NULL ORDER BY s.id
    LOOP
        suspension := each.id;
        BEGIN
            -- a row on which the condition fails counts as one that meets it, so that an error holds up only this row
            FOR row_id IN SELECT t.id FROM queue_test(each.value, ids) AS t LOOP RETURN NEXT; END LOOP;
        EXCEPTION WHEN syntax_error_or_access_rule_violation OR undefined_function OR undefined_column THEN
            CONTINUE;  -- the condition is refused for any row, for example after an operator dropped a function: no row meets it
        END;
    END LOOP;
END $$;
COMMENT ON FUNCTION suspended_under IS
    'Of these rows of queue those that meet the condition of a suspension, each with its number.';

CREATE FUNCTION suspended_for(rows bigint[]) RETURNS TABLE (row_id bigint, kind text, value text, until timestamptz)
    LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pgmta, pg_catalog, pg_temp AS $$
    SELECT q.id, s.kind, CASE WHEN s.kind <> 'condition' THEN s.value END, s.until
    FROM queue AS q JOIN suspensions AS s ON s.id = q.suspension
    WHERE q.id = ANY (rows)
$$;
COMMENT ON FUNCTION suspended_for IS
    'Of these rows of queue those that were put off for a suspension, with what its mail has in common (value is null for a '
    'condition). It says nothing that is for operators.';

INSERT INTO forget_columns (relation, names, way, condition) VALUES
    ('suspensions', '{reason}', 'words', 'true'),
    ('suspensions', '{value,tag}', 'named', 'true');

INSERT INTO rights (object, role, privileges) VALUES
    ('queue', 'pgmta_queued', 'UPDATE (suspension)'),
    ('suspensions', 'pgmta_queued', 'SELECT, UPDATE (applied_at, slow_at)'),
    -- changes go through the functions, so that audit has them all
    ('suspensions', 'pgmta_operator', 'SELECT'),
    ('suspensions', 'pgmta_reader', 'SELECT'),
    ('suspension_domains', 'pgmta_queued', 'SELECT, INSERT, UPDATE (applied_at)'),
    ('suspension_domains', 'pgmta_operator', 'SELECT'),
    ('suspension_domains', 'pgmta_reader', 'SELECT'),
    ('suspensions_version', 'pgmta_queued', 'SELECT'),
    ('FUNCTION suspension_condition', 'pgmta_queued', 'EXECUTE'),
    ('FUNCTION suspension_condition', 'pgmta_operator', 'EXECUTE'),
    ('FUNCTION suspension_condition', 'pgmta_reader', 'EXECUTE'),
    ('FUNCTION queue_suspend', 'pgmta_operator', 'EXECUTE'),
    ('FUNCTION queue_resume', 'pgmta_operator', 'EXECUTE'),
    ('FUNCTION suspensions_expire', 'pgmta_queued', 'EXECUTE'),
    ('FUNCTION suspended_under', 'pgmta_queued', 'EXECUTE'),
    ('FUNCTION suspended_for', 'pgmta_api', 'EXECUTE');

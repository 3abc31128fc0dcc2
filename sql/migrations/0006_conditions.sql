-- Rows on which a condition fails, and the sender's domain in one form: docs/decisions/0022-faults.md.

ALTER TABLE queue
    ADD COLUMN sender_domain text COLLATE "C",
    ADD COLUMN faults jsonb;
COMMENT ON COLUMN queue.sender_domain IS
    'The sender''s domain, lower case, A-labels; empty for the null reverse-path. Conditions name it '
    'in place of sender, which tells capitals apart.';
COMMENT ON COLUMN queue.faults IS
    'Conditions that fail on this row, each with whose it is and PostgreSQL''s message; null: none.';

CREATE FUNCTION queue_sender_domain(sender text) RETURNS text LANGUAGE sql IMMUTABLE PARALLEL SAFE AS
$$ SELECT CASE WHEN strpos(sender, '@') > 0 THEN lower(rtrim(split_part(sender, '@', -1), '.')) ELSE '' END $$;
GRANT EXECUTE ON FUNCTION queue_sender_domain(text) TO PUBLIC;  -- it reads nothing
COMMENT ON FUNCTION queue_sender_domain(text) IS
    'The domain of an address in lower case, for mail from SQL. It makes no A-labels, which smtpd does.';

CREATE FUNCTION queue_sender_domain_func() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    NEW.sender_domain := public.queue_sender_domain(NEW.sender);
    RETURN NEW;
END $$;
REVOKE EXECUTE ON FUNCTION queue_sender_domain_func() FROM PUBLIC;
COMMENT ON FUNCTION queue_sender_domain_func() IS 'Fills queue.sender_domain.';

-- In one go: a rule that names the column must not miss rows that wait.
UPDATE queue SET sender_domain = queue_sender_domain(sender);
ALTER TABLE queue ALTER COLUMN sender_domain SET NOT NULL;

-- smtpd gives the domain itself; then nothing is called.
CREATE TRIGGER queue_sender_domain BEFORE INSERT ON queue FOR EACH ROW
    WHEN (NEW.sender_domain IS NULL) EXECUTE FUNCTION queue_sender_domain_func();
CREATE TRIGGER queue_sender_domain_changed BEFORE UPDATE OF sender ON queue FOR EACH ROW
    WHEN (OLD.sender IS DISTINCT FROM NEW.sender) EXECUTE FUNCTION queue_sender_domain_func();
COMMENT ON TRIGGER queue_sender_domain ON queue IS 'Mail from SQL has the domain too.';
COMMENT ON TRIGGER queue_sender_domain_changed ON queue IS 'The domain follows its sender.';

CREATE FUNCTION queue_test(condition text, ids bigint[])
    RETURNS TABLE (id bigint, error text) LANGUAGE plpgsql STABLE AS $$
DECLARE
    matching bigint[];
    one public.queue;
    says boolean;
    failed boolean := false;
    half integer := cardinality(ids) / 2;
BEGIN
    IF cardinality(ids) = 0 THEN RETURN; END IF;
    BEGIN
        -- In FILTER the parts of the condition are evaluated as they are written: WHERE orders them.
        EXECUTE format(
            E'SELECT array_agg(id) FILTER (WHERE (\n%s\n)) FROM public.queue WHERE id = ANY ($1)', condition)
            INTO matching USING ids;
    EXCEPTION WHEN data_exception OR integrity_constraint_violation OR cardinality_violation
            OR program_limit_exceeded OR plpgsql_error OR external_routine_exception
            OR external_routine_invocation_exception THEN
        failed := true;
    END;
    IF NOT failed THEN
        RETURN QUERY SELECT hit, NULL::text FROM unnest(matching) AS hit;
        RETURN;
    ELSIF half > 8 THEN
        RETURN QUERY SELECT * FROM public.queue_test(condition, ids[:half]);
        RETURN QUERY SELECT * FROM public.queue_test(condition, ids[half + 1:]);
        RETURN;
    END IF;
    -- Few rows are tried singly, each as a row of its own: to plan for the partitions costs most.
    FOR one IN SELECT * FROM public.queue AS q WHERE q.id = ANY (ids) LOOP
        id := one.id;
        error := NULL;
        BEGIN
            EXECUTE format(
                E'SELECT (\n%s\n) FROM (SELECT ($1).*) AS queue',
                regexp_replace(condition, '\mpublic\s*\.\s*queue\M', 'queue', 'gi'))
                INTO says USING one;
        EXCEPTION WHEN data_exception OR integrity_constraint_violation OR cardinality_violation
                OR program_limit_exceeded OR plpgsql_error OR external_routine_exception
                OR external_routine_invocation_exception THEN
            says := true;
            error := left(SQLERRM, 500);
        END;
        IF says THEN RETURN NEXT; END IF;
    END LOOP;
END $$;
REVOKE EXECUTE ON FUNCTION queue_test(text, bigint[]) FROM PUBLIC;
COMMENT ON FUNCTION queue_test(text, bigint[]) IS
    'Of these rows of queue those that the condition matches, and those on which it fails, with the '
    'error. Where it fails it tries the halves, and few rows singly.';

CREATE OR REPLACE FUNCTION queue_hold_stamp() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NEW.status NOT IN ('HOLD', 'DELETE')
            AND public.queue_malformed(NEW.sender, NEW.recipient, NEW.domain) THEN
        -- stays, so that the others that the statement releases are released
        NEW.status := 'HOLD';
        NEW.held_at := now();
        NEW.held_by := coalesce(OLD.held_by, session_user);
        NEW.hold_reason := 'an address holds control characters: the row can only be deleted';
        NEW.hold_until := NULL;
    ELSIF NEW.status = 'HOLD' THEN
        NEW.held_at := now();
        NEW.held_by := coalesce(NEW.held_by, session_user);
        NEW.hold_reason := coalesce(NEW.hold_reason, 'no reason given');
    ELSIF OLD.status = 'HOLD' THEN
        NEW.held_at := NULL;
        NEW.held_by := NULL;
        NEW.hold_reason := NULL;
        NEW.hold_until := NULL;
        NEW.faults := NULL;  -- the row may have been mended; what still fails is found again
        NEW.next_attempt := least(NEW.next_attempt, now());
    END IF;
    RETURN NEW;
END $$;

CREATE FUNCTION rules_valid() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM public.queue_condition(NEW.condition);
    RETURN NEW;
END $$;
REVOKE EXECUTE ON FUNCTION rules_valid() FROM PUBLIC;
COMMENT ON FUNCTION rules_valid() IS 'Refuses what is no condition: it would stop every claim.';
CREATE TRIGGER rules_valid BEFORE INSERT OR UPDATE OF condition ON rules
    FOR EACH ROW EXECUTE FUNCTION rules_valid();
COMMENT ON TRIGGER rules_valid ON rules IS 'A rule by plain SQL is analysed as well.';

CREATE OR REPLACE FUNCTION postern_grants() RETURNS text[] LANGUAGE plpgsql
    SET search_path = public, pg_catalog, pg_temp AS $$
BEGIN
    IF to_regrole('postern_queued') IS NOT NULL THEN
        IF current_setting('server_version_num')::integer >= 170000 THEN
            EXECUTE 'GRANT MAINTAIN ON message_chunks TO postern_queued';
        END IF;
        EXECUTE 'GRANT UPDATE (faults) ON queue TO postern_queued';
        EXECUTE 'GRANT EXECUTE ON FUNCTION queue_test(text, bigint[]), queue_condition(text) TO postern_queued';
    END IF;
    IF to_regrole('postern_smtpd') IS NOT NULL THEN
        EXECUTE 'GRANT INSERT (status, hold_reason, held_by, held_at, sender_domain) ON queue TO postern_smtpd';
    END IF;
    IF to_regrole('postern_operator') IS NOT NULL THEN
        EXECUTE 'GRANT EXECUTE ON FUNCTION queue_test(text, bigint[]) TO postern_operator';
    END IF;
    IF to_regrole('postern_reader') IS NOT NULL THEN
        EXECUTE 'GRANT EXECUTE ON FUNCTION queue_test(text, bigint[]) TO postern_reader';
    END IF;
    RETURN postern_grants_basic();
END $$;
DO $$ BEGIN PERFORM postern_grants(); END $$;

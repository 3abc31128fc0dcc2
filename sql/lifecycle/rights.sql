-- Rights of roles. Applications that insert accounts get their rights to the table from its owner.

CREATE FUNCTION wanted_rights(OUT what text, OUT role text) RETURNS SETOF record LANGUAGE sql IMMUTABLE AS $$
    SELECT g.what, role FROM (VALUES
        ('USAGE ON SCHEMA lifecycle', '{pgmta_queued,pgmta_web,pgmta_operator,pgmta_reader,pgmta_submit}'::text[]),
        ('EXECUTE ON FUNCTION accounts_check', '{pgmta_queued,pgmta_web}'),
        ('EXECUTE ON FUNCTION collect, collect_actions, tokens_waiting, tokens_lease, tokens_printed, tokens_put_off',
            '{pgmta_queued}'),
        ('EXECUTE ON FUNCTION token_consume, token_failed, token_locked', '{pgmta_web}'),
        ('EXECUTE ON FUNCTION recover, activate_again, proof_take, account_changed, mailbox_changed', '{pgmta_submit}'),
        ('EXECUTE ON FUNCTION missing_rights', '{pgmta_queued,pgmta_operator,pgmta_reader}'),
        ('SELECT ON collections, jobs, user_action_queue, waiting_tokens, installation',
            '{pgmta_queued,pgmta_operator,pgmta_reader}'),
        ('SELECT (id, action, account, expires_at, consumed_at, created_at, collected_at, message_id, failures) ON tokens',
            '{pgmta_operator,pgmta_reader}')
    ) AS g (what, roles), unnest(g.roles) AS role
$$;
COMMENT ON FUNCTION wanted_rights IS 'The rights of the roles of pgmta to this schema, as GRANT has them.';

CREATE FUNCTION grants() RETURNS text[] LANGUAGE plpgsql SET search_path = lifecycle, pg_catalog, pg_temp AS $$
DECLARE
    given record;
    missing text[] := '{}';
BEGIN
    -- a database that was restored without privileges lets all call each function
    REVOKE ALL ON ALL FUNCTIONS IN SCHEMA lifecycle FROM PUBLIC;
    -- defaults, indexes and conditions of triggers are computed with the rights of the writing role
    GRANT EXECUTE ON FUNCTION epoch, token_secret, token_code TO PUBLIC;
    -- refused by a trigger, whose hint all shall see
    GRANT UPDATE ON jobs TO PUBLIC;
    FOR given IN SELECT w.what, w.role FROM wanted_rights() AS w LOOP
        IF to_regrole(given.role) IS NULL THEN
            missing := missing || given.role;
        ELSE
            EXECUTE format('GRANT %s TO %I', given.what, given.role);
        END IF;
    END LOOP;
    RETURN ARRAY(SELECT DISTINCT role FROM unnest(missing) AS role ORDER BY role);
END $$;
COMMENT ON FUNCTION grants IS
    'Gives the roles of pgmta their rights to this schema, takes functions away from all others, and returns the roles that '
    'are missing.';

CREATE FUNCTION missing_rights(OUT role text, OUT privilege text, OUT object text) RETURNS SETOF record
    LANGUAGE sql STABLE SECURITY DEFINER SET search_path = lifecycle, pg_catalog, pg_temp AS $$
    SELECT w.role, hit[1], name
    FROM wanted_rights() AS w,
        regexp_match(w.what, '^([A-Z]+)(?: [(]([^)]*)[)])? ON (?:(FUNCTION|SCHEMA) )?(.*)$') AS hit,
        unnest(string_to_array(hit[4], ', ')) AS name
    WHERE to_regrole(w.role) IS NOT NULL AND NOT CASE
        WHEN hit[3] = 'SCHEMA' THEN has_schema_privilege(w.role, name, hit[1])
        WHEN hit[3] = 'FUNCTION' THEN has_function_privilege(w.role, (
            SELECT p.oid FROM pg_proc AS p WHERE p.proname = name AND p.pronamespace = 'lifecycle'::regnamespace), hit[1])
        WHEN hit[2] IS NULL THEN has_table_privilege(w.role, name, hit[1])
        ELSE (SELECT bool_and(has_column_privilege(w.role, name, each, hit[1]))
            FROM unnest(string_to_array(hit[2], ', ')) AS each) END
    ORDER BY 1, 3, 2
$$;
COMMENT ON FUNCTION missing_rights IS 'The rights to this schema that roles have lost, as in a restore; grants() gives them.';

DO $$ BEGIN PERFORM lifecycle.grants(), lifecycle.binding_role(); END $$;

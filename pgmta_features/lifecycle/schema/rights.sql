-- Rights of roles. Applications that insert accounts get their rights to the table from its owner.

CREATE TABLE rights (LIKE pgmta.rights INCLUDING ALL);
COMMENT ON TABLE rights IS 'The rights of the roles of pgmta to this schema, which grants() gives.';
INSERT INTO rights (object, role, privileges)
SELECT object, role, g.privileges
FROM (VALUES
    ('{FUNCTION accounts_check}'::text[], '{pgmta_queued,pgmta_web}'::text[], 'EXECUTE'),
    ('{FUNCTION collect,FUNCTION collect_actions,FUNCTION collect_check,FUNCTION tokens_waiting,FUNCTION tokens_lease,'
        'FUNCTION tokens_printed,FUNCTION tokens_put_off,FUNCTION collector_takes}', '{pgmta_queued}', 'EXECUTE'),
    ('{FUNCTION action_pages,FUNCTION token_consume,FUNCTION token_failed,FUNCTION token_locked}', '{pgmta_web}', 'EXECUTE'),
    ('{FUNCTION mail_again}', '{pgmta_operator}', 'EXECUTE'),
    ('{FUNCTION tokens_unsent}', '{pgmta_operator,pgmta_reader}', 'EXECUTE'),
    ('{FUNCTION ask,FUNCTION ask_named,FUNCTION recover,FUNCTION activate_again,FUNCTION proof_take}', '{pgmta_submit}',
        'EXECUTE'),
    ('{actions}', '{pgmta_queued,pgmta_operator,pgmta_reader}', 'SELECT'),
    ('{collections,live_collectors,jobs,user_action_queue,waiting_tokens,installation}',
        '{pgmta_queued,pgmta_operator,pgmta_reader}', 'SELECT'),
    ('{tokens}', '{pgmta_queued}', 'SELECT (id, created_at)'),
    ('{tokens}', '{pgmta_operator,pgmta_reader}',
        'SELECT (id, action, account, expires_at, consumed_at, created_at, collected_at, message_id, failures, request)')
) AS g (objects, roles, privileges), unnest(g.objects) AS object, unnest(g.roles) AS role;

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
    FOR given IN SELECT r.object, r.role, r.privileges FROM rights AS r LOOP
        IF to_regrole(given.role) IS NULL THEN
            missing := missing || given.role;
        ELSE
            EXECUTE format('GRANT USAGE ON SCHEMA lifecycle TO %I', given.role);
            EXECUTE format('GRANT %s ON %s TO %I', given.privileges, given.object, given.role);
        END IF;
    END LOOP;
    RETURN ARRAY(SELECT DISTINCT role FROM unnest(missing) AS role ORDER BY role);
END $$;
COMMENT ON FUNCTION grants IS
    'Gives the roles of pgmta their rights to this schema, takes functions away from all others, and returns the roles that '
    'are missing.';

DO $$ BEGIN PERFORM lifecycle.grants(); END $$;

-- Rights of roles. Applications that insert accounts get their rights to the table from its owner.

REVOKE ALL ON ALL FUNCTIONS IN SCHEMA lifecycle FROM PUBLIC;
-- defaults and conditions of triggers are computed with the rights of the writing role
GRANT EXECUTE ON FUNCTION epoch(), token_secret(), token_code() TO PUBLIC;

DO $$
DECLARE
    given record;
BEGIN
    FOR given IN SELECT * FROM (VALUES
        ('USAGE ON SCHEMA lifecycle', '{pgmta_queued,pgmta_web,pgmta_operator,pgmta_reader,pgmta_submit}'::text[]),
        ('EXECUTE ON FUNCTION collect, collect_actions, tokens_waiting, tokens_lease, tokens_printed, tokens_put_off',
            '{pgmta_queued}'),
        ('EXECUTE ON FUNCTION token_consume, token_failed', '{pgmta_web}'),
        ('EXECUTE ON FUNCTION recover, activate_again, proof_take, account_changed', '{pgmta_submit}'),
        ('SELECT ON collections, jobs, user_action_queue, waiting_tokens, installation',
            '{pgmta_queued,pgmta_operator,pgmta_reader}'),
        ('SELECT (id, action, account, expires_at, consumed_at, created_at, collected_at, message_id, failures) ON tokens',
            '{pgmta_operator,pgmta_reader}')
    ) AS g (what, roles), unnest(g.roles) AS role WHERE to_regrole(role) IS NOT NULL LOOP
        EXECUTE format('GRANT %s TO %I', given.what, given.role);
    END LOOP;
END $$;

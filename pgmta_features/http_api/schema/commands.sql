-- What the API does as commands of queuectl do it, for a key and its tenant, which the API checks: it has their rights.

INSERT INTO rights (object, role, privileges)
SELECT r.object, 'pgmta_api', r.privileges FROM rights AS r
WHERE r.role = 'pgmta_operator' AND (
    r.object IN ('templates', 'FUNCTION submit_scope', 'suppressions', 'suppression_scopes', 'FUNCTION suppression_scope_check',
        'FUNCTION suppressions_put', 'FUNCTION suppression_release', 'FUNCTION suppressed', 'FUNCTION suppressed_because',
        'FUNCTION mailbox_hash')
    OR r.object ~ '^(FUNCTION )?campaign(s$|_)')  -- if that feature is there
ON CONFLICT DO NOTHING;
INSERT INTO rights (object, role, privileges) VALUES
    ('audit', 'pgmta_api', 'INSERT (who, action, condition, details, rows, finished_at)');

-- What the API does as commands of queuectl do it, for a key and its tenant, which the API checks: it has their rights to
-- these objects, and to no others.

INSERT INTO rights (object, role, privileges)
SELECT r.object, 'pgmta_api', r.privileges FROM rights AS r
WHERE r.role = 'pgmta_operator' AND (
    r.object IN ('templates', 'FUNCTION submit_scope', 'suppressions', 'suppression_scopes', 'FUNCTION suppression_scope_check',
        'FUNCTION suppressions_put', 'FUNCTION suppression_release', 'FUNCTION suppressed', 'FUNCTION suppressed_because',
        'FUNCTION mailbox_hash')
    -- if that feature is there
    OR r.object IN ('campaigns', 'campaign_recipients', 'campaign_recipient_versions', 'campaign_statistics', 'campaign_failures')
    OR r.object IN (SELECT 'FUNCTION campaign_' || word FROM unnest('{create,copy,exchange,delete,import,by_sms,other_kind,list,'
        'obstacles,start,stop,resume,retry,zones}'::text[]) AS word))
ON CONFLICT DO NOTHING;
INSERT INTO rights (object, role, privileges) VALUES
    ('audit', 'pgmta_api', 'INSERT (who, action, condition, details, rows, finished_at)');

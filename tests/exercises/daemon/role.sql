-- The rights of pgmta_collector: it puts mail in, as smtpd does.
CREATE ROLE pgmta_collector NOLOGIN;
INSERT INTO pgmta.rights (object, role, privileges)
SELECT object, 'pgmta_collector', privileges FROM pgmta.rights
WHERE role = 'pgmta_smtpd'
    AND object IN ('SEQUENCE message_ids', 'SEQUENCE queue_ids', 'messages', 'queue', 'daemons', 'schema_migrations', 'FUNCTION queue_put');
SELECT pgmta.grants();

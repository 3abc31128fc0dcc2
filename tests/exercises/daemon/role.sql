-- The rights of pgmta_collector: it puts mail in, as smtpd does.
CREATE ROLE pgmta_collector NOLOGIN;
INSERT INTO pgmta.rights (object, role, privileges)
SELECT object, 'pgmta_collector', privileges FROM pgmta.rights
WHERE role = 'pgmta_smtpd'
    AND object IN ('SEQUENCE message_ids', 'FUNCTION queue_put', 'daemons', 'schema_migrations');
SELECT pgmta.grants();

-- name: moving
-- The tables, sequences and views that move to schema pgmta.
SELECT relid::oid AS oid FROM pg_partition_tree(to_regclass('public.queue'))
UNION SELECT relid FROM pg_partition_tree(to_regclass('public.attempts'))
UNION SELECT to_regclass('public.' || name) FROM unnest(ARRAY['messages', 'message_chunks', 'workers', 'rules',
    'rules_version', 'audit', 'daemons', 'schema_migrations', 'message_ids', 'queue_ids', 'lease_tokens',
    'queue_overview', 'queue_by_domain', 'attempt_history', 'attempt_rates', 'duplicates', 'hold_overview',
    'worker_overview']) AS name

-- name: taken
-- Objects of other programs in schema pgmta.
SELECT 'schema pgmta belongs to another program: it has ' || pg_describe_object(classid, objid, objsubid),
    'ALTER SCHEMA pgmta RENAME TO …, or take another database'
FROM pg_depend
WHERE refclassid = 'pg_namespace'::regclass AND refobjid = to_regnamespace('pgmta') AND deptype = 'n'
ORDER BY 1 LIMIT 1

-- name: schema
-- No right to make schema pgmta.
SELECT format('role %%I may not create schema pgmta', current_user),
    format('GRANT CREATE ON DATABASE %%I TO %%I', current_database(), current_user)
WHERE to_regnamespace('pgmta') IS NULL AND NOT has_database_privilege(current_database(), 'CREATE')

-- name: public
-- No right to make in public what the migrations before schema pgmta make there.
SELECT format('role %%I may not create objects in schema public', current_user),
    format('GRANT CREATE ON SCHEMA public TO %%I', current_user)
FROM pg_namespace
WHERE nspname = 'public' AND %(last)s < '0010' AND NOT has_schema_privilege(oid, 'CREATE')

-- name: superuser
-- New objects would belong to a superuser, and the owner of the queue would lose it.
SELECT format('the queue belongs to role %%I, and %%I is a superuser', owner.rolname, us.rolname),
    format('migrate with a login of %%I', owner.rolname)
FROM pg_class AS c JOIN pg_roles AS owner ON owner.oid = relowner JOIN pg_roles AS us ON us.rolname = current_user
WHERE c.oid = to_regclass('public.queue') AND us.rolsuper AND NOT owner.rolsuper

-- name: owners
-- Objects that only another role may move.
SELECT format('%%s %%s belongs to role %%s', lower(kind), name, owner::regrole),
    format('ALTER %%s %%s OWNER TO %%I', kind, name, current_user)
FROM (
    SELECT CASE relkind WHEN 'S' THEN 'SEQUENCE' WHEN 'v' THEN 'VIEW' WHEN 'f' THEN 'FOREIGN TABLE' ELSE 'TABLE' END,
        oid::regclass::text, relowner
    FROM pg_class WHERE oid IN ({moving})
    UNION ALL
    SELECT 'FUNCTION', proc::text, proowner FROM ({functions}) AS known JOIN pg_proc ON pg_proc.oid = proc
    WHERE md5 IS NOT NULL
) AS object (kind, name, owner)
WHERE NOT pg_has_role(owner, 'USAGE')
ORDER BY kind DESC, name

-- name: columns
-- Columns of operators with names that migrations give.
SELECT format('table public.%%s already has a column %%I', relation, name),
    format('ALTER TABLE public.%%s RENAME COLUMN %%I TO …', relation, name)
FROM (VALUES
    ('0006', 'queue', '{sender_domain,faults}'::text[]),
    ('0011', 'queue', '{send_at,tenant,on_failed,once,notify,orcpt,begun,held_under,exempt_from}'),
    ('0011', 'messages', '{tenant,format,template_id,params,message_id_header,envid,ret,requiretls,submitted_by,origin,tls_optional}'),
    ('0011', 'attempts', '{row_id,tenant,message_id_header,submitted_by,metadata}'),
    ('0011', 'attempts', '{address,tls_version,tls_cipher,tls_verified,dns_seconds,connect_seconds,tls_seconds,transaction_seconds}'),
    ('0011', 'attempts', '{class,returned_at,returned}')
) AS brought (since, relation, names) CROSS JOIN unnest(names) AS name
JOIN pg_attribute ON attrelid = to_regclass('public.' || relation) AND attname = name AND NOT attisdropped
WHERE since > %(last)s
ORDER BY relation, attnum

-- name: constraints
-- Constraints of operators with such names.
SELECT format('table %%s already has a constraint %%I', conrelid::regclass, name),
    format('ALTER TABLE %%s RENAME CONSTRAINT %%I TO …', conrelid::regclass, name)
FROM (VALUES ('0005', 'queue', 'queue_addresses'), ('0011', 'queue', 'queue_on_failed'),
    ('0011', 'messages', 'messages_ret')) AS brought (since, relation, name)
JOIN pg_constraint ON conrelid = to_regclass('public.' || relation) AND conname = name
WHERE since > %(last)s
ORDER BY name

-- name: names
-- Tables and indexes that would have the same name in schema pgmta.
WITH named AS (
    SELECT oid, relname, relkind IN ('i', 'I') AS is_index FROM pg_class WHERE oid IN ({moving})
        OR oid IN (SELECT indexrelid FROM pg_index WHERE indrelid IN ({moving}))
)
SELECT format('%%s and %%s have the same name', min(oid::regclass::text), max(oid::regclass::text)),
    format('ALTER %%s %%s RENAME TO …', CASE WHEN bool_and(is_index) THEN 'INDEX' ELSE 'TABLE' END,
        max(oid::regclass::text))
FROM named GROUP BY relname HAVING count(*) > 1
UNION ALL
SELECT format('%%s has a name that pgmta gives', oid::regclass),
    format('ALTER %%s %%s RENAME TO …', CASE WHEN relkind IN ('i', 'I') THEN 'INDEX' ELSE 'TABLE' END, oid::regclass)
FROM (VALUES ('0007', '{queue_urgent}'::text[]), ('0008', '{daemons}'),
    ('0011', '{queue_once,queue_scheduled,queue_scheduled_due,messages_message_id_header}'),
    ('0012', '{idempotency_keys,idempotency_keys_created_at}'), ('0014', '{submit_settings}'),
    ('0015', '{queue_states,message_status}'),
    ('0016', '{sts_policies,sts_policies_next_fetch,broken_tls,tls_reports}'),
    ('0017', '{transcripts,transcripts_default,transcripts_message_id,transcripts_traced,traces}'),
    ('0019', '{users,users_version,user_networks,login_failures}'), ('0020', '{recipients}'),
    ('0022', '{queue_report,queue_report_held_at,reports,reports_message_id,reports_report_id,reports_default,delays,delays_new,delays_message,report_counts}'),
    ('0023', '{dkim_keys,dkim_keys_version}'), ('0025', '{report_rates}'), ('0032', '{database_clock}'), ('0047', '{queue_hold_under}')
) AS brought (since, names)
JOIN pg_class ON relname = ANY (names)
WHERE since > %(last)s AND (oid IN (SELECT oid FROM named)
    OR since < '0011' AND relnamespace = 'public'::regnamespace)
ORDER BY 1

-- name: functions
-- Our functions: since which migration, and the MD5 of their text; null if they are gone. A test makes the list.
SELECT DISTINCT ON (signature) signature, md5, made.since, to_regprocedure('public.' || signature) AS proc
FROM (VALUES
    ('0001', 'attempts_partitions(integer)', '9850bf36f9f78ab7e0978164e72fa4c4'),
    ('0001', 'messages_refcount_func()', 'c787988f74ce8ed1eaec21a5282ed44e'),
    ('0002', 'attempts_expire(interval)', 'bdb090a13f7b4f89ed0d61aa30f0f217'),
    ('0002', 'queue_hold_stamp()', '43483f06e03faabc5e64ce715468daa0'),
    ('0002', 'rules_changed()', 'cbc733a883476421510caa9b0d30c3eb'),
    ('0003', 'postern_grants()', 'a674493e9fde3611ba2e357391fc9bf6'),
    ('0003', 'queue_change(text, text, text, text, jsonb)', '1ee5294cb875ccc6db56124b1cd886e2'),
    ('0003', 'queue_condition(text)', '094063d86a4b9058c952c2674b3483dc'),
    ('0003', 'queue_delete(text, text)', '61de5d1b3e7b8191e31d721ae7f23f7e'),
    ('0003', 'queue_hold(text, text, interval)', '023781647ed1634830c74b7e068cfc74'),
    ('0003', 'queue_quarantine(text, text, text, interval)', '424919995a097e87e0d6d6e66c10c07b'),
    ('0003', 'queue_quiet()', '6d36b805a8ab35cbbc3632f654dc4c38'),
    ('0003', 'queue_release(text)', '222ac6b97a39a00a42ee9b1eac5bbc81'),
    ('0003', 'queue_retry(text)', 'fb96b0f806ff3cc808faaa8299ea4c71'),
    ('0004', 'postern_grants()', '427ed3aedfbe5fc48fe4e249a2534cdb'),
    ('0004', 'postern_grants_basic()', 'a674493e9fde3611ba2e357391fc9bf6'),
    ('0005', 'postern_grants()', '001b9429c6214d32c0868db0fd4bebad'),
    ('0005', 'queue_hold_stamp()', '2afcc65a848ffba8ad9618355a546ad5'),
    ('0005', 'queue_malformed(text, text, text)', 'aaad03a02c137e8b2a364cb4517b6b31'),
    ('0005', 'queue_release(text)', '07af9e47c2aeae7d33b634c1e268c607'),
    ('0006', 'postern_grants()', '9c45e4479ce7f00c74a33f225952a10c'),
    ('0006', 'queue_hold_stamp()', '784470e66bcd3d456535a28518356bef'),
    ('0006', 'queue_sender_domain(text)', '49f15eeaf9120b6dcce2c82416041f49'),
    ('0006', 'queue_sender_domain_func()', '9ebd1e9bd9b12d142b88935108c79233'),
    ('0006', 'queue_test(text, bigint[])', '685b0228258866a1204c20c9eabe4b7c'),
    ('0006', 'rules_valid()', 'c0b74edaee276936b2f2a64d48b7423b'),
    ('0007', 'messages_refcount_func()', '74ea85800dbb20dd8e71e6764779d4d2'),
    ('0008', 'postern_grants()', 'b167cc0f4eb54de7a149cb7950f682ac'),
    ('0008', 'postern_grants_0007()', '9c45e4479ce7f00c74a33f225952a10c'),
    ('0009', 'queue_test(text, bigint[])', '17acd54c70925ad3b892f1e26f4c55d4'),
    ('0010', 'postern_grants()', '173377fba77240ad27855333751bc35f'),
    ('0010', 'postern_grants_0008()', 'b167cc0f4eb54de7a149cb7950f682ac'),
    ('0010', 'postern_grants_basic()', 'f7d1641c2f0c7b8a1a86466fc28d44cc'),
    ('0010', 'queue_change(text, text, jsonb)', '35b172294772d9cb3fb46885f4050f99'),
    ('0010', 'queue_change(text, text, text, text, jsonb)', NULL),
    ('0010', 'queue_change_rows(text, bigint[], text, jsonb)', '160a3657669e9285aa3827a488a3b0f0'),
    ('0010', 'queue_delete(text, text)', '3176c96a78f76d3757bb5701c0bd6916'),
    ('0010', 'queue_hold(text, text, interval)', 'f605910d9f01688c286c2d88fa442e81'),
    ('0010', 'queue_quarantine(text, text, text, interval)', 'f975dd704439bb40eedec31f429bb15d'),
    ('0010', 'queue_release(text)', 'eb0a61debbf83e02b2b47818b495c954'),
    ('0010', 'queue_retry(text)', '1ce495d30abc8b71494de9717dd15367'),
    ('0010', 'queue_takes(text)', '4d0537bbb958974b325111ca89743ca5')
) AS made (since, signature, md5)
WHERE made.since <= {until}
ORDER BY signature, made.since DESC

-- name: texts
-- Functions whose text is not of a migration. This migration would write it anew.
SELECT format('function public.%%s was changed', signature),
    format('restore its text of sql/migrations/%%s_*.sql', since)
FROM ({functions}) AS known JOIN pg_proc ON pg_proc.oid = proc
WHERE md5(prosrc) <> md5
UNION ALL
SELECT format('function public.%%s is gone', signature),
    format('restore it from sql/migrations/%%s_*.sql', since)
FROM ({functions}) AS known WHERE md5 IS NOT NULL AND proc IS NULL
UNION ALL
SELECT format('function %%s has a name that pgmta gives', proc), format('ALTER FUNCTION %%s RENAME TO …', proc)
FROM ({coming}) AS coming
WHERE md5 IS NOT NULL AND proc IS NOT NULL
    AND signature NOT IN (SELECT signature FROM ({functions}) AS known WHERE md5 IS NOT NULL)
ORDER BY 1

-- name: roles
-- Roles without which the logins of now would lose their rights.
SELECT CASE WHEN to_regrole(new) IS NULL THEN format('role %%I cannot be made', new)
        ELSE format('role %%I cannot be granted to %%I', new, old) END,
    format('as a superuser: %%sGRANT %%I TO %%I',
        CASE WHEN to_regrole(new) IS NULL THEN format('CREATE ROLE %%I NOLOGIN; ', new) END, new, old)
FROM unnest(ARRAY['smtpd', 'queued', 'operator', 'reader']) AS part,
    LATERAL (SELECT 'postern_' || part, 'pgmta_' || part) AS roles (old, new), pg_roles AS us
WHERE us.rolname = current_user AND NOT us.rolsuper
    AND EXISTS (SELECT FROM pg_shdepend JOIN pg_database ON pg_database.oid = dbid
        WHERE datname = current_database() AND refclassid = 'pg_authid'::regclass AND refobjid = to_regrole(old))
    AND NOT CASE
        WHEN to_regrole(new) IS NULL THEN us.rolcreaterole
        ELSE pg_has_role(to_regrole(old), to_regrole(new), 'MEMBER')
            OR pg_has_role(to_regrole(new), 'MEMBER WITH ADMIN OPTION')
            OR us.rolcreaterole AND current_setting('server_version_num')::integer < 160000 END
ORDER BY 1

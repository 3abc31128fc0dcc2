-- What pg_catalog says of tables whose name may be meant; no row of a table is read.
WITH RECURSIVE bases (type, base) AS (
    SELECT oid, oid FROM pg_type WHERE typtype <> 'd'
    UNION ALL
    SELECT t.oid, b.base FROM pg_type AS t JOIN bases AS b ON b.type = t.typbasetype WHERE t.typtype = 'd'
)
SELECT n.nspname AS schema, c.relname AS name, quote_ident(n.nspname) AS schema_sql,
    format('%%I.%%I', n.nspname, c.relname) AS sql,
    c.relkind AS kind, c.relispartition AS is_partition, c.relpersistence AS persistence,
    c.relrowsecurity AND c.relforcerowsecurity AND NOT (o.rolsuper OR o.rolbypassrls) AS hides_rows,
    o.rolname AS owner, quote_ident(o.rolname) AS owner_sql, o.rolsuper AS of_superuser,
    pg_has_role(o.oid, m.nspowner, 'MEMBER') AS of_mail_owner, o.oid = l.nspowner AS same_owner,
    lo.rolname AS lifecycle_owner, quote_ident(lo.rolname) AS lifecycle_owner_sql,
    quote_ident(current_user) AS login_sql,
    (SELECT array_agg(a.attname ORDER BY k.place) FROM pg_index AS i, unnest(i.indkey) WITH ORDINALITY AS k (number, place)
        JOIN pg_attribute AS a ON a.attnum = k.number
        WHERE i.indrelid = c.oid AND i.indisprimary AND a.attrelid = c.oid) AS primary_key,
    coalesce((SELECT json_agg(json_build_array(pg_get_indexdef(i.indexrelid, 1, true),
            i.indisunique AND i.indnkeyatts = 1 AND i.indpred IS NULL AND i.indisvalid))
        FROM pg_index AS i WHERE i.indrelid = c.oid AND i.indpred IS NULL), '[]') AS indexes,
    (SELECT json_agg(json_build_object('name', a.attname, 'sql', quote_ident(a.attname),
            'type', format_type(a.atttypid, a.atttypmod),
            'base', CASE WHEN tn.nspname = 'pg_catalog' THEN format_type(t.oid, NULL)
                ELSE format('%%I.%%I', tn.nspname, t.typname) END,
            'category', t.typcategory, 'generated', a.attgenerated <> '', 'not_null', a.attnotnull,
            'has_default', a.atthasdef OR a.attidentity <> '',
            -- null for types such as varchar, which are compared as text
            'equals', (SELECT format('OPERATOR(%%I.%%s)', pn.nspname, p.oprname)
                FROM pg_opclass AS f JOIN pg_am AS m ON m.oid = f.opcmethod AND m.amname = 'btree'
                    JOIN pg_amop AS s ON s.amopfamily = f.opcfamily AND s.amopstrategy = 3
                        AND s.amoplefttype = f.opcintype AND s.amoprighttype = f.opcintype
                    JOIN pg_operator AS p ON p.oid = s.amopopr JOIN pg_namespace AS pn ON pn.oid = p.oprnamespace
                WHERE f.opcdefault AND f.opcintype = t.oid),
            'labels', (SELECT json_agg(e.enumlabel ORDER BY e.enumsortorder) FROM pg_enum AS e WHERE e.enumtypid = t.oid))
            ORDER BY a.attnum)
        FROM pg_attribute AS a JOIN bases AS b ON b.type = a.atttypid JOIN pg_type AS t ON t.oid = b.base
            JOIN pg_namespace AS tn ON tn.oid = t.typnamespace
        WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped) AS columns,
    -- roles that get rights to what the owner makes here
    coalesce((SELECT array_agg(DISTINCT g.grantee::regrole::text) FROM pg_default_acl AS d, aclexplode(d.defaclacl) AS g
        WHERE d.defaclrole = o.oid AND d.defaclnamespace IN (0, n.oid) AND d.defaclobjtype IN ('r', 'f')
            AND g.grantee NOT IN (0, o.oid)), '{}') AS grantees,
    -- functions that would have the rights of the owner
    coalesce((SELECT array_agg(DISTINCT p.oid::regprocedure::text) FROM pg_trigger AS t JOIN pg_proc AS p ON p.oid = t.tgfoid
            JOIN pg_roles AS r ON r.oid = p.proowner
        WHERE (t.tgrelid = c.oid OR t.tgrelid IN (SELECT relid FROM pg_partition_tree(c.oid))) AND NOT t.tgisinternal
            AND NOT (p.proowner = o.oid OR r.rolsuper OR p.prosecdef)), '{}') AS strangers,
    -- objects of others under the names of ours
    coalesce((SELECT array_agg(t.taken) FROM (
        SELECT format('%%I.pgmta_accounts', n.nspname) FROM pg_class AS x
        WHERE x.relnamespace = n.oid AND x.relname = 'pgmta_accounts'
        UNION ALL
        SELECT x.oid::regprocedure::text FROM pg_proc AS x
        WHERE x.pronamespace = n.oid AND (x.proname, oidvectortypes(x.proargtypes))
            IN (('pgmta_activate', 'text, text, jsonb'), ('pgmta_account_changed', ''))
        UNION ALL
        SELECT format('trigger %%I on %%s', x.tgname, c.oid::regclass) FROM pg_trigger AS x
        WHERE x.tgrelid = c.oid AND x.tgname IN
            ('pgmta_account_inserted', 'pgmta_account_updated', 'pgmta_account_deleted', 'pgmta_accounts_truncated')
        ) AS t (taken)), '{}') AS taken
FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace JOIN pg_roles AS o ON o.oid = c.relowner,
    pg_namespace AS l JOIN pg_roles AS lo ON lo.oid = l.nspowner, pg_namespace AS m
WHERE l.nspname = 'lifecycle' AND m.nspname = 'pgmta' AND c.relkind IN ('r', 'p', 'v', 'm', 'f')
    AND n.nspname !~ '^(pg_|information_schema$|pgmta$|lifecycle)'
    AND lower(c.relname) = lower(%(name)s) AND lower(n.nspname) = lower(coalesce(%(schema)s, n.nspname))
ORDER BY c.relname <> %(name)s, n.nspname <> coalesce(%(schema)s, n.nspname), 1

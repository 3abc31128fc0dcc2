-- The schema, the roles of pgmta, and their rights.

COMMENT ON SCHEMA pgmta IS 'pgmta, a mail relay whose queue is a PostgreSQL table.';

CREATE FUNCTION grants() RETURNS text[] LANGUAGE plpgsql SET search_path = pgmta, pg_catalog, pg_temp AS $$
DECLARE
    role text;
    given record;
    missing text[] := '{}';
BEGIN
    FOR role IN SELECT DISTINCT r.role FROM rights AS r WHERE r.role <> 'PUBLIC' ORDER BY 1 LOOP
        IF to_regrole(role) IS NULL THEN
            missing := missing || role;
            CONTINUE;
        END IF;
        EXECUTE format('REVOKE ALL ON ALL TABLES IN SCHEMA pgmta FROM %I', role);
        EXECUTE format('REVOKE ALL ON ALL SEQUENCES IN SCHEMA pgmta FROM %I', role);
        EXECUTE format('REVOKE ALL ON ALL FUNCTIONS IN SCHEMA pgmta FROM %I', role);
        EXECUTE format('GRANT USAGE ON SCHEMA pgmta TO %I', role);
    END LOOP;
    REVOKE ALL ON ALL FUNCTIONS IN SCHEMA pgmta FROM PUBLIC;
    FOR given IN
        SELECT r.privileges, r.object, CASE r.role WHEN 'PUBLIC' THEN r.role ELSE quote_ident(r.role) END AS grantee
        FROM rights AS r
        WHERE r.role <> ALL (missing)
            AND (r.privileges <> 'MAINTAIN' OR current_setting('server_version_num')::integer >= 170000)
        ORDER BY r.object, r.role, r.privileges
    LOOP
        EXECUTE format('GRANT %s ON %s TO %s', given.privileges, given.object, given.grantee);
    END LOOP;
    RETURN missing;
END $$;
COMMENT ON FUNCTION grants IS
    'Gives the roles of pgmta the rights of the table rights and takes all others in this schema away; to be called by '
    'the owner of the tables. Returns the roles that do not exist.';

CREATE FUNCTION missing_rights(in_schema text DEFAULT 'pgmta', OUT role text, OUT privilege text, OUT object text)
    RETURNS SETOF record LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pgmta, pg_catalog, pg_temp AS $$
DECLARE
    wanted CONSTANT regclass := to_regclass(format('%I.rights', in_schema));
BEGIN
    -- a caller may have made a table of that name, whose code would run here with the rights of the owner
    IF NOT EXISTS (SELECT FROM pg_class AS c JOIN pg_class AS ours ON ours.oid = 'pgmta.rights'::regclass
            WHERE c.oid = wanted AND c.relkind = 'r' AND c.relowner = ours.relowner) THEN
        RETURN;
    END IF;
    RETURN QUERY EXECUTE format($query$
        WITH wanted AS (
            SELECT who.role, hit[1] AS privilege, string_to_array(hit[2], ', ') AS columns,
                r.object, split_part(r.object, ' ', -1) AS name
            FROM %1$s AS r CROSS JOIN LATERAL (SELECT CASE r.role WHEN 'PUBLIC' THEN 'public' ELSE r.role END) AS who (role),
                regexp_matches(r.privileges, '([A-Z]+)(?: [(]([^)]*)[)])?', 'g') AS hit
            WHERE (who.role = 'public' OR to_regrole(who.role) IS NOT NULL)
                AND (hit[1] <> 'MAINTAIN' OR current_setting('server_version_num')::integer >= 170000)
        )
        SELECT DISTINCT r.role, NULL, NULL FROM %1$s AS r WHERE r.role <> 'PUBLIC' AND to_regrole(r.role) IS NULL
        UNION ALL
        SELECT DISTINCT w.role, 'USAGE', 'SCHEMA ' || $1 FROM wanted AS w
        WHERE w.role <> 'public' AND NOT has_schema_privilege(w.role, $1, 'USAGE')
        UNION ALL
        SELECT w.role, w.privilege, w.object FROM wanted AS w
        WHERE NOT CASE
            WHEN w.object LIKE 'FUNCTION %%' THEN has_function_privilege(w.role, (
                SELECT p.oid FROM pg_proc AS p
                WHERE p.proname = w.name AND p.pronamespace = to_regnamespace(quote_ident($1))), w.privilege)
            WHEN w.object LIKE 'SEQUENCE %%' THEN has_sequence_privilege(w.role, format('%%I.%%I', $1, w.name), w.privilege)
            WHEN w.columns IS NULL THEN has_table_privilege(w.role, format('%%I.%%I', $1, w.name), w.privilege)
            ELSE (SELECT bool_and(has_column_privilege(w.role, format('%%I.%%I', $1, w.name), each, w.privilege))
                FROM unnest(w.columns) AS each) END
        ORDER BY 1, 3, 2
    $query$, wanted) USING in_schema;
END $$;
COMMENT ON FUNCTION missing_rights IS
    'The rights of the table rights of a schema that a role lacks, as after a restore without privileges; grants() of that '
    'schema gives them. A role that does not exist has one row with nulls.';
INSERT INTO rights VALUES ('FUNCTION missing_rights', 'PUBLIC', 'EXECUTE');

-- A key of the HTTP API submits as a login of pgmta_submit does.
INSERT INTO rights (object, role, privileges)
SELECT object, 'pgmta_api', privileges FROM rights AS r
WHERE r.role = 'pgmta_submit' AND NOT EXISTS (
    SELECT FROM rights AS has WHERE has.object = r.object AND has.role = 'pgmta_api' AND has.privileges = r.privileges);

-- Roles belong to the cluster, so another database may have made them. Not each login may make roles.
DO $$
DECLARE
    name text;
    missing text[];
BEGIN
    FOREACH name IN ARRAY '{pgmta_smtpd,pgmta_queued,pgmta_operator,pgmta_reader,pgmta_submit,pgmta_web,pgmta_api}'::text[] LOOP
        BEGIN
            EXECUTE format('CREATE ROLE %I NOLOGIN', name);
        EXCEPTION WHEN duplicate_object OR unique_violation OR insufficient_privilege THEN
            NULL;
        END;
    END LOOP;
    missing := grants();
    IF missing <> '{}' THEN
        RAISE WARNING 'roles that could not be made: %', array_to_string(missing, ', ')
            USING HINT = 'Create them (NOLOGIN) and call pgmta.grants() as owner of the tables.';
    END IF;
END $$;

-- In a database that has nothing but this, statements find the tables without the schema's name.
DO $$
BEGIN
    IF EXISTS (SELECT FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
            WHERE n.nspname !~ '^(pgmta$|pg_|information_schema$)' AND c.relkind IN ('r', 'p', 'v', 'm', 'f')
                AND NOT EXISTS (SELECT FROM pg_depend AS d
                    WHERE d.classid = 'pg_class'::regclass AND d.objid = c.oid AND d.deptype = 'e')) THEN
        RAISE WARNING 'the database has other tables, so its search_path stays: write pgmta.queue, or SET search_path = pgmta, public';
        RETURN;
    END IF;
    EXECUTE format('ALTER DATABASE %I SET search_path = pgmta, public', current_database());
EXCEPTION WHEN insufficient_privilege THEN
    RAISE WARNING 'the search_path of the database could not be set'
        USING HINT = format('Its owner does that: ALTER DATABASE %I SET search_path = pgmta, public;', current_database());
END $$;

-- All that is known of accounts. bind() replaces these functions by those of an application.

CREATE FUNCTION account_rows(ids bigint[]) RETURNS TABLE (id bigint, email text, login text, status text)
LANGUAGE sql STABLE ROWS 10 SET search_path = pg_catalog, pg_temp AS $$
    SELECT a.id, a.email, a.login, a.status::text FROM lifecycle.accounts AS a WHERE a.id = ANY (ids)
$$;
COMMENT ON FUNCTION account_rows IS 'Accounts by id.';

CREATE FUNCTION account_named(name text) RETURNS bigint[] LANGUAGE sql STABLE
    SET search_path = pg_catalog, pg_temp AS $$
    SELECT array_agg(a.id ORDER BY a.id) FROM lifecycle.accounts AS a WHERE a.login = name OR pgmta.mailbox_key(a.email) = pgmta.mailbox_key(name)
$$;
COMMENT ON FUNCTION account_named IS
    'The ids of the accounts with a login, or with a mailbox in any spelling, in the order in which recover() locks them; '
    'null if there is none.';

CREATE FUNCTION account_status(account bigint) RETURNS text STABLE
RETURN (SELECT a.status::text FROM lifecycle.accounts AS a WHERE a.id = account);
COMMENT ON FUNCTION account_status IS
    'The status of an account; null if there is none; unknown if an application is bound and the role sees all mail.';

CREATE FUNCTION account_lock(account bigint) RETURNS text LANGUAGE sql VOLATILE
    SET search_path = pg_catalog, pg_temp AS $$
    SELECT a.status::text FROM lifecycle.accounts AS a WHERE a.id = account FOR NO KEY UPDATE
$$;
COMMENT ON FUNCTION account_lock IS
    'The same; the status of one of lifecycle.accounts stays until the transaction ends. That of a bound application may '
    'change: its function decides whether it activates.';

CREATE FUNCTION account_activate(account bigint) RETURNS boolean LANGUAGE sql VOLATILE
    SET search_path = pg_catalog, pg_temp AS $$
    WITH changed AS (
        UPDATE lifecycle.accounts AS a SET status = 'active' WHERE a.id = account AND a.status = 'provisioned'
        RETURNING true
    )
    SELECT count(*) > 0 FROM changed
$$;
COMMENT ON FUNCTION account_activate IS 'Activates a provisioned account; returns whether it was one.';

CREATE FUNCTION accounts_check() RETURNS void LANGUAGE plpgsql STABLE SECURITY DEFINER
    SET search_path = lifecycle, pg_catalog, pg_temp AS $$
BEGIN
    PERFORM account_rows('{}');
END $$;
COMMENT ON FUNCTION accounts_check IS
    'Raises the error that each question about an account would meet, for example because an application is bound and the '
    'role sees all mail.';

CREATE FUNCTION binding_role() RETURNS text LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    -- since PostgreSQL 16, to give objects to a role takes more than the right to administer the role
    needs text[] := CASE WHEN current_setting('server_version_num')::integer < 160000 THEN '{USAGE}' ELSE '{USAGE,SET}' END;
BEGIN
    IF to_regrole('pgmta_binding') IS NULL THEN
        BEGIN
            CREATE ROLE pgmta_binding NOLOGIN;
        EXCEPTION WHEN duplicate_object OR unique_violation THEN
            NULL;  -- roles belong to the cluster, so another database may make it at the same time
        WHEN insufficient_privilege THEN
            RETURN format('CREATE ROLE pgmta_binding; GRANT pgmta_binding TO %I;', current_user);
        END;
    END IF;
    IF NOT (SELECT bool_and(pg_has_role('pgmta_binding', need)) FROM unnest(needs) AS need) THEN
        BEGIN  -- a role that made pgmta_binding may do this
            EXECUTE 'GRANT pgmta_binding TO CURRENT_USER' || CASE WHEN needs <> '{USAGE}' THEN ' WITH INHERIT TRUE, SET TRUE' ELSE '' END;
        EXCEPTION WHEN insufficient_privilege THEN
            RETURN format('GRANT pgmta_binding TO %I;', current_user);
        END;
    END IF;
    RETURN NULL;
END $$;
COMMENT ON FUNCTION binding_role IS
    'Makes the role pgmta_binding, and the caller a member. Returns null, or what a superuser has to run before.';

CREATE FUNCTION binding_lacks(accounts regclass, activate regprocedure) RETURNS text[] LANGUAGE sql STABLE
    SET search_path = pg_catalog, pg_temp AS $$
    SELECT array_agg(g.command ORDER BY g.number)
    FROM pg_class AS c JOIN pg_namespace AS v ON v.oid = c.relnamespace,
        pg_proc AS p JOIN pg_namespace AS f ON f.oid = p.pronamespace,
        LATERAL (VALUES
            (1, format('GRANT USAGE ON SCHEMA %I TO pgmta_binding;', v.nspname),
                has_schema_privilege('pgmta_binding', v.oid, 'USAGE')),
            (2, format('GRANT USAGE ON SCHEMA %I TO pgmta_binding;', f.nspname),
                v.oid = f.oid OR has_schema_privilege('pgmta_binding', f.oid, 'USAGE')),
            (3, format('GRANT SELECT ON %I.%I TO pgmta_binding;', v.nspname, c.relname),
                has_table_privilege('pgmta_binding', c.oid, 'SELECT')),
            (4, format('GRANT EXECUTE ON FUNCTION %I.%I(bigint) TO pgmta_binding;', f.nspname, p.proname),
                has_function_privilege('pgmta_binding', p.oid, 'EXECUTE'))
        ) AS g (number, command, has)
    WHERE c.oid = binding_lacks.accounts AND p.oid = binding_lacks.activate AND NOT g.has
$$;
COMMENT ON FUNCTION binding_lacks IS
    'The statements that give the role pgmta_binding the rights to a view and a function that it lacks; null if it has all.';

CREATE FUNCTION bind(accounts regclass, activate regprocedure) RETURNS void LANGUAGE plpgsql
    SET search_path = lifecycle, pg_catalog, pg_temp AS $$
DECLARE
    -- names have their schema, because the caller may have any search_path
    place text := (SELECT format('%I.%I', n.nspname, c.relname) FROM pg_class AS c
        JOIN pg_namespace AS n ON n.oid = c.relnamespace WHERE c.oid = bind.accounts);
    call text := (SELECT format('%I.%I', n.nspname, p.proname) FROM pg_proc AS p
        JOIN pg_namespace AS n ON n.oid = p.pronamespace WHERE p.oid = bind.activate);
    again boolean := (SELECT (i.accounts_view, i.activate_function) = (place, call) FROM lifecycle.installation AS i);
    -- A database that was restored without owners would run the code of the application with the rights of its own.
    -- With its schema the operator is PostgreSQL's, whatever the search_path is.
    guard text := 'IF current_user OPERATOR(pg_catalog.<>) ''pgmta_binding'' THEN RAISE EXCEPTION '
        '''the functions about accounts lost their owner'' USING ERRCODE = ''insufficient_privilege'', '
        'HINT = ''Call lifecycle.bind() again.''; END IF;';
    -- judged by session_user: after SET ROLE, code could leave a prepared statement that the login runs later
    refusal text := 'IF pgmta.sees_all_mail(role => SESSION_USER) THEN RAISE EXCEPTION ''code of an application does not run for a login '
        'that sees all mail'' USING ERRCODE = ''insufficient_privilege'', HINT = ''Log in as a member of pgmta_queued, '
        'pgmta_web or of the application.''; END IF;';
    -- later the collector looks, with a login of its own
    later text := 'IF pgmta.sees_all_mail(role => SESSION_USER) THEN RETURN ''unknown''; END IF;';
    -- functions of the owner go on behind it, and a setting that was changed for the session outlives their own
    unchanged text := 'IF pg_catalog.current_setting(''search_path'') OPERATOR(pg_catalog.<>) path THEN RAISE EXCEPTION '
        '''the application changed search_path'' USING ERRCODE = ''insufficient_privilege''; END IF;';
    misfit text := (
        SELECT format('column %I of %s is %s, and has to be %s', a.attname, place, format_type(a.atttypid, a.atttypmod),
            CASE a.attname WHEN 'id' THEN 'a whole number' ELSE 'text' END)
        FROM pg_attribute AS a JOIN pg_type AS t ON t.oid = a.atttypid
        WHERE a.attrelid = bind.accounts AND CASE a.attname
            WHEN 'id' THEN a.atttypid <> ALL ('{int2,int4,int8}'::regtype[])
            ELSE a.attname IN ('email', 'login', 'status') AND t.typcategory NOT IN ('S', 'E') END
        ORDER BY a.attnum LIMIT 1);
    fault text;
    command text;
    made record;
BEGIN
    SELECT CASE
        WHEN EXISTS (SELECT FROM lifecycle.accounts) THEN 'lifecycle.accounts has accounts'
        WHEN again IS NOT TRUE AND EXISTS (SELECT FROM lifecycle.tokens) THEN 'there are tokens'
        WHEN c.relkind <> 'v' THEN format('%s is no view', place)
        WHEN (SELECT count(*) FROM pg_attribute AS a WHERE a.attrelid = c.oid AND NOT a.attisdropped
                AND a.attname IN ('id', 'email', 'login', 'status')) < 4
            THEN format('%s lacks columns: it needs id bigint, email text, login text and status text', place)
        WHEN misfit IS NOT NULL THEN misfit
        WHEN p.prorettype <> 'boolean'::regtype OR oidvectortypes(p.proargtypes) <> 'bigint'
            OR p.proretset OR p.prokind <> 'f'
            THEN format('%s is no function of a bigint that returns a boolean', call)
        WHEN NOT p.prosecdef THEN format('%s has no SECURITY DEFINER, so it would not run as its owner', call)
        WHEN r.rolsuper OR pg_has_role(r.oid, (SELECT nspowner FROM pg_namespace WHERE nspname = 'pgmta'), 'MEMBER')
            THEN format('%s belongs to %I, who owns the mail too', call, r.rolname)
        WHEN c.relowner <> p.proowner THEN format('%s and %s have two owners', place, call)
        END
    INTO fault
    FROM pg_class AS c, pg_proc AS p, pg_roles AS r
    WHERE c.oid = bind.accounts AND p.oid = bind.activate AND r.oid = p.proowner;
    IF fault IS NOT NULL THEN
        RAISE EXCEPTION '%', fault USING ERRCODE = 'object_not_in_prerequisite_state',
            HINT = 'docs/programs/lifecycle.md has an example: "Accounts of your own".';
    END IF;
    fault := binding_role();
    IF fault IS NOT NULL THEN
        RAISE EXCEPTION '% is no member of the role pgmta_binding', current_user USING ERRCODE = 'insufficient_privilege',
            HINT = format('A superuser runs: %s', fault);
    END IF;
    FOREACH command IN ARRAY coalesce(binding_lacks(accounts, activate), '{}') LOOP
        BEGIN
            EXECUTE command;
        EXCEPTION WHEN insufficient_privilege THEN
            NULL;  -- the functions belong to another owner
        END;
    END LOOP;
    fault := array_to_string(binding_lacks(accounts, activate), ' ');
    IF fault IS NOT NULL THEN
        RAISE EXCEPTION 'the role pgmta_binding lacks rights to % and %', place, call USING
            ERRCODE = 'insufficient_privilege', HINT = format('Their owner runs: %s', fault);
    END IF;
    GRANT USAGE ON SCHEMA pgmta TO pgmta_binding;
    ALTER TABLE lifecycle.tokens DROP CONSTRAINT IF EXISTS tokens_account_fkey;  -- another view was bound
    -- The code of the application has the rights of pgmta_binding and of its owner, and no others. It may not use the
    -- schema of the functions that run it, so it can't name them to alter them.
    GRANT CREATE ON SCHEMA lifecycle_bound TO pgmta_binding;
    FOR made IN SELECT f.*, f.name = 'account_rows' AS many FROM (VALUES
        -- an account with two rows may have the mailbox of another owner
        ('account_rows', 'ids bigint[]', 'TABLE (id bigint, email text, login text, status text)', 'STABLE ROWS 10', refusal,
            'SELECT a.id::bigint, CASE WHEN count(*) = 1 THEN min(a.email::text) END, min(a.login::text), '
            'min(a.status::text) FROM %1$s AS a WHERE a.id = ANY ($1) GROUP BY a.id'),
        ('account_named', 'name text', 'bigint[]', 'STABLE', refusal,
            'SELECT array_agg(a.id::bigint ORDER BY a.id) FROM %1$s AS a WHERE a.login::text = $1 '
            'OR pgmta.mailbox_key(a.email::text) = pgmta.mailbox_key($1)'),
        ('account_status', 'account bigint', 'text', 'STABLE', later, 'SELECT a.status::text FROM %1$s AS a WHERE a.id = $1'),
        ('account_lock', 'account bigint', 'text', 'VOLATILE', later, 'SELECT a.status::text FROM %1$s AS a WHERE a.id = $1'),
        ('account_activate', 'account bigint', 'boolean', 'VOLATILE', refusal, 'SELECT %2$s($1)')
        ) AS f (name, argument, type, kind, before, query) LOOP
        EXECUTE format('CREATE OR REPLACE FUNCTION lifecycle_bound.%I(%s) RETURNS %s %s LANGUAGE plpgsql SECURITY DEFINER '
            'SET search_path = pg_catalog, pg_temp AS %L', made.name, made.argument, made.type, made.kind,
            concat_ws(' ', 'BEGIN', guard, 'RETURN', CASE WHEN made.many THEN 'QUERY' END,
                '(' || format(made.query, place, call) || '); END'));
        EXECUTE format('ALTER FUNCTION lifecycle_bound.%I OWNER TO pgmta_binding', made.name);
        -- the owner's own function looks at the session before and after the code of the application
        EXECUTE format('CREATE OR REPLACE FUNCTION lifecycle.%I(%s) RETURNS %s %s LANGUAGE plpgsql AS %L', made.name,
            made.argument, made.type, made.kind,
            concat_ws(' ', 'DECLARE path text := pg_catalog.current_setting(''search_path'');',
                'result ' || CASE WHEN NOT made.many THEN made.type END || ';', 'BEGIN', made.before,
                CASE WHEN made.many THEN 'RETURN QUERY SELECT * FROM' ELSE 'result :=' END,
                format('lifecycle_bound.%I($1);', made.name), unchanged, CASE WHEN NOT made.many THEN 'RETURN result;' END, 'END'));
    END LOOP;
    REVOKE CREATE ON SCHEMA lifecycle_bound FROM pgmta_binding;
    UPDATE lifecycle.installation SET accounts_view = place, activate_function = call;
END $$;
COMMENT ON FUNCTION bind IS
    'Takes the accounts from a view of an application, and activates them by its function. Both run with its rights. The '
    'owner of the schema calls it, or a superuser. Their owner gives pgmta_binding the rights to them before.';

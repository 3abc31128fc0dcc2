-- All that is known of accounts. bind() replaces these functions by those of an application.

CREATE FUNCTION account_rows(ids bigint[]) RETURNS TABLE (id bigint, email text, login text, status text)
LANGUAGE sql STABLE ROWS 10 SET search_path = pg_catalog, pg_temp AS $$
    SELECT a.id, a.email, a.login, a.status::text FROM lifecycle.accounts AS a WHERE a.id = ANY (ids)
$$;
COMMENT ON FUNCTION account_rows IS 'Accounts by id.';

CREATE FUNCTION account_named(name text) RETURNS bigint[] LANGUAGE sql STABLE
    SET search_path = pg_catalog, pg_temp AS $$
    SELECT array_agg(a.id ORDER BY a.id) FROM lifecycle.accounts AS a WHERE a.login = name OR a.email = name
$$;
COMMENT ON FUNCTION account_named IS
    'The ids of the accounts with a login or mailbox, in the order in which recover() locks them; null if there is none.';

CREATE FUNCTION account_status(account bigint) RETURNS text STABLE
RETURN (SELECT a.status::text FROM lifecycle.accounts AS a WHERE a.id = account);
COMMENT ON FUNCTION account_status IS 'The status of an account; null if there is none.';

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

CREATE FUNCTION bind(accounts regclass, activate regprocedure) RETURNS void LANGUAGE plpgsql
    SET search_path = lifecycle, pg_catalog, pg_temp AS $$
DECLARE
    -- with the schema, whatever the search_path of the caller is
    place text := (SELECT format('%I.%I', n.nspname, c.relname) FROM pg_class AS c
        JOIN pg_namespace AS n ON n.oid = c.relnamespace WHERE c.oid = bind.accounts);
    call text := (SELECT format('%I.%I', n.nspname, p.proname) FROM pg_proc AS p
        JOIN pg_namespace AS n ON n.oid = p.pronamespace WHERE p.oid = bind.activate);
    guard text := 'IF pgmta.sees_all_mail() THEN RAISE EXCEPTION ''code of an application does not run for a login '
        'that sees all mail'' USING ERRCODE = ''insufficient_privilege'', HINT = ''Log in as a member of pgmta_queued, '
        'pgmta_web or of the application.''; END IF;';
    -- functions of the owner go on behind it, and a setting that was changed for the session outlives their own
    unchanged text := 'IF pg_catalog.current_setting(''search_path'') OPERATOR(pg_catalog.<>) '
        '''pg_catalog, pg_temp'' THEN RAISE EXCEPTION ''the application changed search_path'' USING ERRCODE = ''insufficient_privilege''; END IF;';
    fault text;
BEGIN
    SELECT CASE
        WHEN EXISTS (SELECT FROM lifecycle.accounts) THEN 'lifecycle.accounts has accounts'
        WHEN EXISTS (SELECT FROM lifecycle.tokens) THEN 'there are tokens'
        WHEN c.relkind <> 'v' THEN format('%s is no view', place)
        WHEN (SELECT array_agg(a.attname::text || ' ' || format_type(a.atttypid, NULL) ORDER BY a.attname)
                FROM pg_attribute AS a WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
                    AND a.attname IN ('id', 'email', 'login', 'status'))
            IS DISTINCT FROM '{email text,id bigint,login text,status text}'
            THEN format('%s lacks columns: it needs id bigint, email text, login text and status text', place)
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
    BEGIN  -- roles belong to the cluster, so another database may make it at the same time
        CREATE ROLE pgmta_binding NOLOGIN;
    EXCEPTION WHEN duplicate_object OR unique_violation THEN
        NULL;
    END;
    EXECUTE (
        SELECT format('GRANT USAGE ON SCHEMA %I, %I TO pgmta_binding', v.nspname, f.nspname)
        FROM pg_class AS c JOIN pg_namespace AS v ON v.oid = c.relnamespace,
            pg_proc AS p JOIN pg_namespace AS f ON f.oid = p.pronamespace
        WHERE c.oid = bind.accounts AND p.oid = bind.activate);
    EXECUTE format('GRANT SELECT ON %s TO pgmta_binding', place);
    EXECUTE format('GRANT EXECUTE ON FUNCTION %s(bigint) TO pgmta_binding', call);
    GRANT USAGE ON SCHEMA pgmta, lifecycle TO pgmta_binding;
    ALTER TABLE lifecycle.tokens DROP CONSTRAINT IF EXISTS tokens_account_fkey;  -- another view was bound
    EXECUTE format($f$
        CREATE OR REPLACE FUNCTION lifecycle.account_rows(ids bigint[])
        RETURNS TABLE (id bigint, email text, login text, status text)
        LANGUAGE plpgsql STABLE ROWS 10 SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $b$
        BEGIN
            -- an account with two rows may have the mailbox of another owner
            %1$s RETURN QUERY SELECT a.id, CASE WHEN count(*) = 1 THEN min(a.email) END, min(a.login), min(a.status)
                FROM %2$s AS a WHERE a.id = ANY (ids) GROUP BY a.id; %4$s
        END $b$;
        CREATE OR REPLACE FUNCTION lifecycle.account_named(name text) RETURNS bigint[]
        LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $b$
        DECLARE found bigint[];
        BEGIN %1$s found := (SELECT array_agg(a.id ORDER BY a.id) FROM %2$s AS a
                WHERE a.login = name OR a.email = name);
            %4$s RETURN found; END $b$;
        CREATE OR REPLACE FUNCTION lifecycle.account_status(account bigint) RETURNS text
        LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $b$
        DECLARE found text;
        BEGIN %1$s found := (SELECT a.status FROM %2$s AS a WHERE a.id = account); %4$s RETURN found; END $b$;
        CREATE OR REPLACE FUNCTION lifecycle.account_lock(account bigint) RETURNS text
        LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $b$
        DECLARE found text;
        BEGIN %1$s found := (SELECT a.status FROM %2$s AS a WHERE a.id = account); %4$s RETURN found; END $b$;
        CREATE OR REPLACE FUNCTION lifecycle.account_activate(account bigint) RETURNS boolean
        LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $b$
        DECLARE done boolean;
        BEGIN %1$s done := %3$s(account); %4$s RETURN done; END $b$;
        $f$, guard, place, call, unchanged);
    -- the code of the application has the rights of pgmta_binding and of its owner, and no others
    GRANT CREATE ON SCHEMA lifecycle TO pgmta_binding;
    ALTER FUNCTION lifecycle.account_rows(bigint[]) OWNER TO pgmta_binding;
    ALTER FUNCTION lifecycle.account_named(text) OWNER TO pgmta_binding;
    ALTER FUNCTION lifecycle.account_status(bigint) OWNER TO pgmta_binding;
    ALTER FUNCTION lifecycle.account_lock(bigint) OWNER TO pgmta_binding;
    ALTER FUNCTION lifecycle.account_activate(bigint) OWNER TO pgmta_binding;
    REVOKE CREATE ON SCHEMA lifecycle FROM pgmta_binding;
    UPDATE lifecycle.installation SET accounts_view = place, activate_function = call;
END $$;
COMMENT ON FUNCTION bind IS
    'Takes the accounts from a view of an application, and activates them by its function. Both run with its rights.';

-- All that is known of accounts. A binding replaces these functions by those of an application.

CREATE FUNCTION account_rows(numbers bigint[]) RETURNS TABLE (
    number bigint, id text, email text, login text, status text, language text, words jsonb
) LANGUAGE sql STABLE ROWS 10 SET search_path = pg_catalog, pg_temp AS $$
    SELECT a.id, a.id::text, a.email, a.login, a.status::text, NULL::text, NULL::jsonb
    FROM lifecycle.accounts AS a WHERE a.id = ANY (numbers)
$$;
COMMENT ON FUNCTION account_rows IS
    'Accounts by number: the id in their own table, mailbox, login, status, the language of their mail, and more words for it.';

CREATE FUNCTION account_named(name text) RETURNS bigint[] LANGUAGE sql STABLE
    SET search_path = pg_catalog, pg_temp AS $$
    SELECT array_agg(a.id ORDER BY a.id) FROM lifecycle.accounts AS a WHERE a.login = name OR pgmta.mailbox_key(a.email) = pgmta.mailbox_key(name)
$$;
COMMENT ON FUNCTION account_named IS
    'The numbers of the accounts with a login, or with a mailbox in any spelling, in the order in which ask_named() locks them; '
    'null if there is none.';

CREATE FUNCTION account_number(id text) RETURNS bigint LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
    SELECT a.id FROM lifecycle.accounts AS a
    WHERE a.id = CASE WHEN account_number.id ~ '^[0-9]{1,18}$' THEN account_number.id::bigint END
$$;
COMMENT ON FUNCTION account_number IS 'The number of the account with an id, which a bound application may give as any text; null if there is none.';

CREATE FUNCTION account_id(number bigint) RETURNS jsonb IMMUTABLE RETURN to_jsonb(number);
COMMENT ON FUNCTION account_id IS 'The id of the account with a number, as a JSON number or text; null if there is none.';

CREATE FUNCTION account_status(number bigint) RETURNS text STABLE
RETURN (SELECT a.status::text FROM lifecycle.accounts AS a WHERE a.id = number);
COMMENT ON FUNCTION account_status IS
    'The status of an account; null if there is none; unknown if an application is bound and the role sees all mail.';

CREATE FUNCTION account_lock(number bigint) RETURNS text LANGUAGE sql VOLATILE
    SET search_path = pg_catalog, pg_temp AS $$
    SELECT a.status::text FROM lifecycle.accounts AS a WHERE a.id = number FOR NO KEY UPDATE
$$;
COMMENT ON FUNCTION account_lock IS
    'The same; the status of one of lifecycle.accounts stays until the transaction ends. That of a bound application may '
    'change: its function decides whether it activates.';

CREATE FUNCTION account_activate(number bigint) RETURNS boolean LANGUAGE sql VOLATILE
    SET search_path = pg_catalog, pg_temp AS $$
    WITH changed AS (
        UPDATE lifecycle.accounts AS a SET status = 'active' WHERE a.id = number AND a.status = 'provisioned'
        RETURNING true
    )
    SELECT count(*) > 0 FROM changed
$$;
COMMENT ON FUNCTION account_activate IS 'Activates a provisioned account; returns whether it was one.';

CREATE FUNCTION calls_fault(calls text) RETURNS text LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    parts text[] := CASE WHEN calls ~ '^("([^"]|"")+"|[A-Za-z_][A-Za-z0-9_$]*)[.]("([^"]|"")+"|[A-Za-z_][A-Za-z0-9_$]*)$'
        THEN parse_ident(calls) END;
    owner oid := (SELECT n.nspowner FROM pg_namespace AS n WHERE n.nspname = 'lifecycle');
    known text[];
    function record;
BEGIN
    IF parts IS NULL THEN RETURN format('%s is no name of a function with its schema', to_json(left(calls, 100))); END IF;
    SELECT p.prorettype = 'boolean'::regtype AND NOT p.proretset AND p.prokind = 'f' AS fits,
        -- nobody else may put another function in its place, which would run with the rights of the owner
        p.proowner = owner AND (n.nspowner = owner OR r.rolsuper OR r.rolname = 'pg_database_owner'
            AND owner = (SELECT d.datdba FROM pg_database AS d WHERE d.datname = current_database())) AS ours
    INTO function
    FROM pg_proc AS p JOIN pg_namespace AS n ON n.oid = p.pronamespace JOIN pg_roles AS r ON r.oid = n.nspowner
    WHERE p.oid = to_regprocedure(format('%I.%I(text,text,jsonb)', parts[1], parts[2]));
    IF NOT FOUND THEN
        known := ARRAY(SELECT DISTINCT format('%I.%I', n.nspname, p.proname)
            FROM pg_proc AS p JOIN pg_namespace AS n ON n.oid = p.pronamespace
            WHERE oidvectortypes(p.proargtypes) = 'text, text, jsonb' AND p.prorettype = 'boolean'::regtype);
        RETURN format('there is no function %s(text, text, jsonb)', calls)
            || coalesce(': did you mean ' || pgmta.nearest_word(calls, known) || '?', '');
    END IF;
    RETURN CASE WHEN NOT function.fits THEN format('%s(text, text, jsonb) does not return one boolean', calls)
        WHEN NOT function.ours THEN format('%s and its schema have to belong to %s, who runs it', calls, owner::regrole) END;
END $$;
COMMENT ON FUNCTION calls_fault IS 'Why a function of the application can''t be called by redeem(); null if it can.';

CREATE FUNCTION redeem(calls text, account text, email text, data jsonb) RETURNS boolean LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    parts text[] := parse_ident(calls);
    fault text := lifecycle.calls_fault(calls);
    result boolean;
BEGIN
    IF fault IS NOT NULL THEN RAISE EXCEPTION '%', fault USING ERRCODE = 'undefined_function'; END IF;
    EXECUTE format('SELECT %I.%I($1, $2, $3)', parts[1], parts[2]) INTO result USING account, email, data;
    RETURN result;
END $$;
COMMENT ON FUNCTION redeem IS 'Calls a function of the application for a token, with the rights of the owner; returns what it says.';

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

-- Accounts of an application's own table.

CREATE FUNCTION holder_status(status text, fresh boolean) RETURNS text IMMUTABLE PARALLEL SAFE
RETURN CASE WHEN status = 'inactive' AND fresh THEN 'provisioned' WHEN status = 'inactive' THEN 'suspended' ELSE status END;
COMMENT ON FUNCTION holder_status IS
    'The status of an account of a bound table. One that is inactive is provisioned if it was never active since its insert.';

CREATE FUNCTION account_inserted(id text, status text) RETURNS void LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = lifecycle, pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    new bigint;
BEGIN
    DELETE FROM holders AS h WHERE h.id = account_inserted.id;
    IF account_inserted.status NOT IN ('provisioned', 'inactive') THEN RETURN; END IF;
    INSERT INTO holders (id, fresh) VALUES (account_inserted.id, true) RETURNING number INTO new;
    INSERT INTO tokens (action, account) SELECT a.name, new FROM actions AS a WHERE a.name = 'activation';
END $$;
COMMENT ON FUNCTION account_inserted IS
    'For the trigger of a bound table: makes the activation of a new account. An earlier one with this id is forgotten with '
    'its tokens, so that ids may be used again.';

CREATE FUNCTION account_changed(id text, status text) RETURNS void LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = lifecycle, pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    holder holders := (SELECT h FROM holders AS h WHERE h.id = account_changed.id);
BEGIN
    IF account_changed.status NOT IN ('provisioned', 'active', 'suspended', 'inactive') THEN
        RAISE EXCEPTION 'an account has no such status' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF holder.number IS NULL AND account_changed.status = 'provisioned' THEN
        INSERT INTO holders (id) VALUES (account_changed.id)
        ON CONFLICT (id) DO UPDATE SET id = excluded.id RETURNING * INTO holder;
    ELSIF holder.fresh AND account_changed.status = 'active' THEN
        UPDATE holders AS h SET fresh = false WHERE h.number = holder.number;
    END IF;
    PERFORM status_follow(holder.number, holder_status(account_changed.status, holder.fresh)) WHERE holder.number IS NOT NULL;
END $$;
COMMENT ON FUNCTION account_changed IS
    'For the trigger of a bound table: withdraws mail that does not fit the new status of an account, lets tokens that fit '
    'again wait for theirs, and makes an activation if none is left.';

CREATE FUNCTION mailbox_changed(id text) RETURNS void LANGUAGE sql SECURITY DEFINER
    SET search_path = lifecycle, pg_catalog, pg_temp AS $$
    SELECT mailbox_left(h.number) FROM holders AS h WHERE h.id = mailbox_changed.id
$$;
COMMENT ON FUNCTION mailbox_changed IS
    'For the trigger of a bound table, before account_changed(): the tokens of an account end, their mail is withdrawn, and its '
    'proofs are deleted.';

CREATE FUNCTION account_deleted(id text) RETURNS void LANGUAGE sql SECURITY DEFINER
    SET search_path = lifecycle, pg_catalog, pg_temp AS $$
    DELETE FROM holders AS h WHERE h.id = account_deleted.id
$$;
COMMENT ON FUNCTION account_deleted IS 'For the trigger of a bound table: the tokens of an account go, and their mail.';

CREATE FUNCTION accounts_truncated() RETURNS void LANGUAGE sql SECURITY DEFINER
    SET search_path = lifecycle, pg_catalog, pg_temp AS $$
    DELETE FROM holders
$$;
COMMENT ON FUNCTION accounts_truncated IS 'For the trigger of a bound table: the same for all accounts.';

CREATE FUNCTION application_code() RETURNS void LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    -- judged by session_user: after SET ROLE, code could leave a prepared statement that the login runs later
    IF pgmta.sees_all_mail(role => SESSION_USER) THEN
        RAISE EXCEPTION 'code of an application does not run for a login that sees all mail' USING
            ERRCODE = 'insufficient_privilege',
            HINT = 'Log in as a member of pgmta_queued, pgmta_web or of the application.';
    END IF;
END $$;
COMMENT ON FUNCTION application_code IS 'Raises an error if code of an application may not run in this session.';

-- without a search_path of its own, because it looks at that of the function that calls it
CREATE FUNCTION path_unchanged(path text) RETURNS void LANGUAGE plpgsql STABLE AS $$
BEGIN
    -- functions of the owner go on, and a setting that was changed for the session outlives those of a function
    IF pg_catalog.current_setting('search_path') OPERATOR(pg_catalog.<>) path THEN
        RAISE EXCEPTION 'the application changed search_path' USING ERRCODE = 'insufficient_privilege';
    END IF;
END $$;
COMMENT ON FUNCTION path_unchanged IS 'Raises an error if search_path is no longer what it was.';

CREATE FUNCTION settings_now() RETURNS jsonb LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT jsonb_object_agg(s.name, s.setting) FROM pg_settings AS s WHERE s.context IN ('user', 'superuser')
        AND s.name <> 'search_path'
$$;
COMMENT ON FUNCTION settings_now IS 'The settings of the session, by name, without search_path.';

CREATE FUNCTION settings_restore(settings jsonb) RETURNS void LANGUAGE sql SET search_path = pg_catalog, pg_temp AS $$
    SELECT set_config(w.name, w.setting, false)
    FROM jsonb_each_text(lifecycle.settings_now()) AS n (name, setting)
        JOIN jsonb_each_text(settings) AS w (name, setting) ON w.name = n.name AND w.setting <> n.setting
$$;
COMMENT ON FUNCTION settings_restore IS
    'Gives the session these settings again, so that the next client of its connection has them.';

CREATE FUNCTION binding_role_has(role oid) RETURNS text LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT min(format('%s of %s', pg_describe_object(d.classid, d.objid, 0), o.owner::regrole))
    FROM pg_shdepend AS d, LATERAL (
        SELECT CASE WHEN d.deptype = 'o' THEN d.refobjid
            ELSE coalesce((SELECT p.proowner FROM pg_proc AS p WHERE d.classid = 'pg_proc'::regclass AND p.oid = d.objid),
                (SELECT c.relowner FROM pg_class AS c WHERE d.classid = 'pg_class'::regclass AND c.oid = d.objid)) END
    ) AS o (owner)
    WHERE d.refclassid = 'pg_authid'::regclass AND d.refobjid = to_regrole('pgmta_binding') AND d.deptype IN ('o', 'a')
        AND d.dbid = (SELECT b.oid FROM pg_database AS b WHERE b.datname = current_database())
        AND o.owner NOT IN (role, (SELECT n.nspowner FROM pg_namespace AS n WHERE n.nspname = 'lifecycle'))
        AND NOT EXISTS (SELECT FROM pg_proc AS p
            WHERE d.classid = 'pg_proc'::regclass AND p.oid = d.objid AND p.pronamespace = 'lifecycle_bound'::regnamespace)
$$;
COMMENT ON FUNCTION binding_role_has IS
    'Something that pgmta_binding owns beside our functions, or was granted by another role than this one; null: nothing. '
    'Code of one role could use it against another.';

CREATE FUNCTION calls_found(calls text, action text DEFAULT NULL, OUT ours boolean, OUT fault text) LANGUAGE plpgsql STABLE
    SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    parts text[] := CASE WHEN calls ~ '^("([^"]|"")+"|[A-Za-z_][A-Za-z0-9_$]*)[.]("([^"]|"")+"|[A-Za-z_][A-Za-z0-9_$]*)$'
        THEN parse_ident(calls) END;
    owner oid := (SELECT n.nspowner FROM pg_namespace AS n WHERE n.nspname = 'lifecycle');
    known text[];
    function record;
    other record;
    has text;
BEGIN
    IF parts IS NULL THEN
        fault := format('%s is no name of a function with its schema', to_json(left(calls, 100)));
        RETURN;
    END IF;
    SELECT p.prorettype = 'boolean'::regtype AND NOT p.proretset AND p.prokind = 'f' AS fits, p.prosecdef AS as_owner,
        p.proowner = owner AS of_owner, f.oid AS role_id, f.rolname AS role,
        f.rolsuper OR pg_has_role(f.oid, owner, 'MEMBER') AS powerful,
        -- nobody else may put another function in its place, which would run with the rights of the owner
        p.proowner = owner AND (n.nspowner = owner OR r.rolsuper OR r.rolname = 'pg_database_owner'
            AND owner = (SELECT d.datdba FROM pg_database AS d WHERE d.datname = current_database())) AS ours,
        (SELECT min(format('%I.%I(%s)', n.nspname, o.proname, oidvectortypes(o.proargtypes))) FROM pg_proc AS o
            WHERE o.pronamespace = n.oid AND o.proname = p.proname AND o.pronargs - o.pronargdefaults <= 3
                AND oidvectortypes(o.proargtypes) LIKE 'text, text, jsonb, %') AS twin,
        (SELECT string_agg(g.command, ' ') FROM (VALUES
            (format('GRANT USAGE ON SCHEMA %I TO pgmta_binding;', n.nspname),
                has_schema_privilege(b.oid, n.oid, 'USAGE')),
            (format('GRANT EXECUTE ON FUNCTION %s(text, text, jsonb) TO pgmta_binding;', calls),
                has_function_privilege(b.oid, p.oid, 'EXECUTE'))) AS g (command, has) WHERE g.has IS NOT TRUE) AS lacks,
        EXISTS (SELECT FROM pg_proc AS o WHERE o.oid = to_regprocedure('lifecycle_bound.redeem(text, text, text, jsonb)')
            AND o.proowner = b.oid) AS prepared
    INTO function
    FROM pg_proc AS p JOIN pg_namespace AS n ON n.oid = p.pronamespace JOIN pg_roles AS r ON r.oid = n.nspowner
        JOIN pg_roles AS f ON f.oid = p.proowner LEFT JOIN pg_roles AS b ON b.rolname = 'pgmta_binding'
    -- without to_regprocedure(), which asks for a right to the schema
    WHERE n.nspname = parts[1] AND p.proname = parts[2] AND oidvectortypes(p.proargtypes) = 'text, text, jsonb';
    IF NOT FOUND THEN
        known := ARRAY(SELECT DISTINCT format('%I.%I', n.nspname, p.proname)
            FROM pg_proc AS p JOIN pg_namespace AS n ON n.oid = p.pronamespace
            WHERE oidvectortypes(p.proargtypes) = 'text, text, jsonb' AND p.prorettype = 'boolean'::regtype);
        fault := format('there is no function %s(text, text, jsonb)', calls)
            || coalesce(': did you mean ' || pgmta.nearest_word(calls, known) || '?', '');
        RETURN;
    END IF;
    ours := function.ours;
    fault := CASE WHEN NOT function.fits THEN format('%s(text, text, jsonb) does not return one boolean', calls)
        WHEN function.twin IS NOT NULL THEN format('a call with three arguments may mean %s too', function.twin)
        WHEN ours THEN NULL
        WHEN function.of_owner THEN format('the schema of %s has to belong to %s, who runs it', calls, owner::regrole)
        WHEN function.powerful
            THEN format('%s belongs to %I, who has the rights of %s too', calls, function.role, owner::regrole)
        WHEN NOT function.as_owner THEN format('%s has no SECURITY DEFINER, so it would not run as %I', calls, function.role)
        END;
    IF ours OR fault IS NOT NULL THEN RETURN; END IF;
    -- Its owner may take SECURITY DEFINER away between this look and the call. So pgmta_binding has no rights to what is of
    -- further roles.
    SELECT i.bound ->> 'table' AS table, c.relowner INTO other
    FROM lifecycle.installation AS i, LATERAL (SELECT parse_ident(i.bound ->> 'table') AS parts) AS t
        LEFT JOIN pg_namespace AS n ON n.nspname = t.parts[1]
        LEFT JOIN pg_class AS c ON c.relnamespace = n.oid AND c.relname = t.parts[2]
    WHERE (i.bound ->> 'apart')::boolean;
    IF FOUND THEN
        fault := format('%s belongs to %I, and not to the owner of %s, which is bound', calls, function.role, other.table)
        WHERE function.role_id IS DISTINCT FROM other.relowner;
    ELSE
        SELECT a.name, p.proowner INTO other
        FROM lifecycle.actions AS a, LATERAL (SELECT parse_ident(a.calls) AS parts) AS t
            JOIN pg_namespace AS n ON n.nspname = t.parts[1]
            JOIN pg_proc AS p ON p.pronamespace = n.oid AND p.proname = t.parts[2]
        WHERE a.name IS DISTINCT FROM calls_found.action AND oidvectortypes(p.proargtypes) = 'text, text, jsonb'
            AND p.proowner NOT IN (owner, function.role_id)
        ORDER BY a.name LIMIT 1;
        fault := format('%s belongs to %I, and the function of the action %s to %s: those of one other role are called',
            calls, function.role, other.name, other.proowner::regrole) WHERE FOUND;
    END IF;
    IF fault IS NOT NULL THEN RETURN; END IF;
    has := lifecycle.binding_role_has(function.role_id);
    fault := CASE WHEN NOT function.prepared THEN
            'the role pgmta_binding calls functions of other roles, after SELECT lifecycle.binding_role_redeems()'
        WHEN function.lacks IS NOT NULL
            THEN format('the role pgmta_binding may not call it: %I runs %s', function.role, function.lacks)
        WHEN has IS NOT NULL
            THEN format('the role pgmta_binding has the %s, which code of %I could use: drop or revoke it', has, function.role)
        END;
END $$;
COMMENT ON FUNCTION calls_found IS
    'Whether a function of the application belongs to the owner of the schema, and why redeem() can''t call it; null if it can. '
    'It is meant for an action, or is that of one.';

CREATE FUNCTION redeem_own(calls text, account text, email text, data jsonb) RETURNS boolean LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    parts text[] := parse_ident(calls);
    result boolean;
BEGIN
    EXECUTE format('SELECT %I.%I($1, $2, $3)', parts[1], parts[2]) INTO result USING account, email, data;
    RETURN result;
END $$;
COMMENT ON FUNCTION redeem_own IS 'Calls a function of the owner of the schema.';

CREATE FUNCTION lifecycle_bound.redeem(calls text, account text, email text, data jsonb) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    parts text[] := parse_ident(calls);
    result boolean;
BEGIN
    -- before binding_role_redeems(), and in a database that was restored without owners, it would have the rights of the owner
    IF current_user <> 'pgmta_binding' THEN
        RAISE EXCEPTION 'the function that calls those of other roles lost its owner' USING
            ERRCODE = 'insufficient_privilege', HINT = 'The owner runs: SELECT lifecycle.binding_role_redeems();';
    END IF;
    EXECUTE format('SELECT %I.%I($1, $2, $3)', parts[1], parts[2]) INTO result USING account, email, data;
    RETURN result;
END $$;
COMMENT ON FUNCTION lifecycle_bound.redeem IS 'Calls a function of another role, which runs with the rights of that role.';

-- without a search_path of its own, so that it notices whether that of its caller was changed
CREATE FUNCTION redeem(calls text, account text, email text, data jsonb) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    path pg_catalog.text := pg_catalog.current_setting('search_path');
    found pg_catalog.record;
    settings pg_catalog.jsonb;
    result pg_catalog.bool;
BEGIN
    SELECT f.ours, f.fault INTO found FROM lifecycle.calls_found($1) AS f;
    IF found.fault IS NOT NULL THEN
        RAISE EXCEPTION '%', found.fault USING ERRCODE = 'undefined_function';
    ELSIF found.ours THEN
        RETURN lifecycle.redeem_own($1, $2, $3, $4);
    END IF;
    PERFORM lifecycle.application_code();
    settings := lifecycle.settings_now();
    result := lifecycle_bound.redeem($1, $2, $3, $4);
    PERFORM lifecycle.path_unchanged(path), lifecycle.settings_restore(settings);
    RETURN result;
END $$;
COMMENT ON FUNCTION redeem IS
    'Calls a function of the application for a token, and returns what it says. One of the owner of the schema runs with '
    'the rights of the owner, one of another role with those of that role.';

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
            EXECUTE 'GRANT pgmta_binding TO CURRENT_USER'
                || CASE WHEN needs <> '{USAGE}' THEN ' WITH INHERIT TRUE, SET TRUE' ELSE '' END;
        EXCEPTION WHEN insufficient_privilege THEN
            RETURN format('GRANT pgmta_binding TO %I;', current_user);
        END;
    END IF;
    RETURN NULL;
END $$;
COMMENT ON FUNCTION binding_role IS
    'Makes the role pgmta_binding, and the caller a member. Returns null, or what a superuser has to run before.';

CREATE FUNCTION binding_role_redeems(application text DEFAULT NULL) RETURNS void LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    before text := lifecycle.binding_role();
    has text := lifecycle.binding_role_has(to_regrole(quote_ident(application)));
BEGIN
    IF before IS NOT NULL THEN
        RAISE EXCEPTION 'functions of other roles are called by pgmta_binding' USING
            ERRCODE = 'insufficient_privilege', HINT = format('A superuser runs: %s', before);
    ELSIF has IS NOT NULL THEN
        RAISE EXCEPTION 'the role pgmta_binding has the %, which code of % could use', has, application USING
            ERRCODE = 'object_not_in_prerequisite_state', HINT = 'Drop it, or revoke the right to it.';
    ELSIF pg_get_userbyid((SELECT p.proowner FROM pg_proc AS p
            WHERE p.oid = 'lifecycle_bound.redeem(text, text, text, jsonb)'::regprocedure)) <> 'pgmta_binding' THEN
        -- who owns functions may create some; the code that they call may not use the schema, so that it can't alter them
        GRANT CREATE ON SCHEMA lifecycle_bound TO pgmta_binding;
        ALTER FUNCTION lifecycle_bound.redeem(text, text, text, jsonb) OWNER TO pgmta_binding;
        REVOKE CREATE ON SCHEMA lifecycle_bound FROM pgmta_binding;
    END IF;
END $$;
COMMENT ON FUNCTION binding_role_redeems IS
    'Lets functions of other roles be called for tokens. The owner of the schema calls it once; a binding calls it with the '
    'owner of its table, for whom nothing of others may be left to the role.';

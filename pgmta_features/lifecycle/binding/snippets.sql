-- Parts of the other files, by name.

-- name: moved_here
IF current_setting('pgmta.moved', true) = NEW.@id@::text THEN  -- from another partition
    PERFORM set_config('pgmta.moved', '', true), lifecycle.account_changed(NEW.@id@::text, @status_of_new@);
    RETURN NULL;
END IF;

-- name: moved_away
IF EXISTS (SELECT FROM @table@ AS u WHERE u.@id@ = OLD.@id@) THEN  -- to another partition
    PERFORM lifecycle.mailbox_changed(OLD.@id@::text) WHERE NOT EXISTS (
        SELECT FROM @table@ AS u WHERE u.@id@ = OLD.@id@ AND u.@email@::text IS NOT DISTINCT FROM OLD.@email@::text);
    PERFORM set_config('pgmta.moved', OLD.@id@::text, true);
    RETURN NULL;
END IF;

-- name: guard
-- a database that was restored without owners would run this with the rights of its own
IF current_user OPERATOR(pg_catalog.<>) 'pgmta_binding' THEN
    RAISE EXCEPTION 'the functions about accounts lost their owner' USING ERRCODE = 'insufficient_privilege',
        HINT = 'Bind the table again by `queuectl lifecycle bind`.';
END IF;

-- name: refusal
PERFORM lifecycle.application_code();

-- name: later
-- the collector looks, with a login of its own
IF pgmta.sees_all_mail(role => SESSION_USER) THEN RETURN 'unknown'; END IF;

-- name: path
DECLARE
    path pg_catalog.text := pg_catalog.current_setting('search_path');

-- name: path_only
path pg_catalog.text := pg_catalog.current_setting('search_path');

-- name: unchanged
PERFORM lifecycle.path_unchanged(path);

-- name: table_grants

GRANT USAGE ON SCHEMA @place@ TO pgmta_binding;
-- a lock of a row needs UPDATE; this column is an expression, which no UPDATE can set
GRANT SELECT, UPDATE (status) ON @view@ TO pgmta_binding;
GRANT EXECUTE ON FUNCTION @place@.pgmta_activate(text, text, jsonb) TO pgmta_binding;

-- name: apart

SELECT lifecycle.binding_role_redeems(@owner_name@);  -- functions of actions are of that role, too
GRANT USAGE ON SCHEMA pgmta TO pgmta_binding;
-- who owns functions may create some; this code may not use the schema, so that it can't alter them
GRANT CREATE ON SCHEMA lifecycle_bound TO pgmta_binding;
ALTER FUNCTION lifecycle_bound.account_rows(text[]) OWNER TO pgmta_binding;
ALTER FUNCTION lifecycle_bound.account_named(text) OWNER TO pgmta_binding;
ALTER FUNCTION lifecycle_bound.account_lock(text) OWNER TO pgmta_binding;
ALTER FUNCTION lifecycle_bound.account_activate(text, text) OWNER TO pgmta_binding;
REVOKE CREATE ON SCHEMA lifecycle_bound FROM pgmta_binding;
GRANT USAGE ON SCHEMA lifecycle TO @owner@;
GRANT EXECUTE ON FUNCTION @called@ TO @owner@;

-- All that is known of accounts. `queuectl lifecycle bind` replaces these functions, and `unbind` makes them again.

CREATE OR REPLACE FUNCTION account_rows(numbers bigint[]) RETURNS TABLE (
    number bigint, id text, email text, login text, status text, language text, words jsonb
) LANGUAGE sql STABLE ROWS 10 SET search_path = pg_catalog, pg_temp AS $$
    SELECT a.id, a.id::text, a.email, a.login, a.status::text, NULL::text, NULL::jsonb
    FROM lifecycle.accounts AS a WHERE a.id = ANY (numbers)
$$;
COMMENT ON FUNCTION account_rows IS
    'Accounts by number: the id in their own table, mailbox, login, status, the language of their mail, and more words for it.';

CREATE OR REPLACE FUNCTION account_named(name text) RETURNS bigint[] LANGUAGE sql STABLE
    SET search_path = pg_catalog, pg_temp AS $$
    SELECT array_agg(a.id ORDER BY a.id) FROM lifecycle.accounts AS a
    WHERE a.login = name OR pgmta.mailbox_key(a.email) = pgmta.mailbox_key(name)
$$;
COMMENT ON FUNCTION account_named IS
    'The numbers of the accounts with a login, or with a mailbox in any spelling, in the order in which ask_named() locks them; '
    'null if there is none.';

CREATE OR REPLACE FUNCTION account_number(id text)
    RETURNS bigint LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
    SELECT a.id FROM lifecycle.accounts AS a
    WHERE a.id = CASE WHEN account_number.id ~ '^[0-9]{1,18}$' THEN account_number.id::bigint END
$$;
COMMENT ON FUNCTION account_number IS
    'The number of the account with an id, which a bound application may give as any text; null if there is none.';

CREATE OR REPLACE FUNCTION account_id(number bigint) RETURNS jsonb IMMUTABLE RETURN to_jsonb(number);
COMMENT ON FUNCTION account_id IS 'The id of the account with a number, as a JSON number or text; null if there is none.';

CREATE OR REPLACE FUNCTION account_status(number bigint) RETURNS text STABLE
RETURN (SELECT a.status::text FROM lifecycle.accounts AS a WHERE a.id = number);
COMMENT ON FUNCTION account_status IS
    'The status of an account; null if there is none; unknown if an application is bound and the role sees all mail.';

CREATE OR REPLACE FUNCTION account_lock(number bigint) RETURNS text LANGUAGE sql VOLATILE
    SET search_path = pg_catalog, pg_temp AS $$
    SELECT a.status::text FROM lifecycle.accounts AS a WHERE a.id = number FOR NO KEY UPDATE
$$;
COMMENT ON FUNCTION account_lock IS
    'Locks an account until the end of the transaction and returns its status; if that is unknown, nothing is locked.';

CREATE OR REPLACE FUNCTION account_activate(number bigint) RETURNS boolean LANGUAGE sql VOLATILE
    SET search_path = pg_catalog, pg_temp AS $$
    WITH changed AS (
        UPDATE lifecycle.accounts AS a SET status = 'active' WHERE a.id = number AND a.status = 'provisioned'
        RETURNING true
    )
    SELECT count(*) > 0 FROM changed
$$;
COMMENT ON FUNCTION account_activate IS 'Activates a provisioned account; returns whether it was one.';

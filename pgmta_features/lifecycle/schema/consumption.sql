-- How a token is asked for, consumed and refused.

CREATE TABLE proofs (
    hash bytea PRIMARY KEY,
    account bigint NOT NULL,
    action text NOT NULL,
    expires_at timestamptz NOT NULL DEFAULT now() + interval '15 minutes'
);
COMMENT ON TABLE proofs IS 'Proofs that the application has not taken yet.';
COMMENT ON COLUMN proofs.hash IS 'SHA-256 of the proof.';
COMMENT ON COLUMN proofs.account IS 'The account whose owner has proved to have its mailbox.';
COMMENT ON COLUMN proofs.action IS 'The action whose link was used.';
COMMENT ON COLUMN proofs.expires_at IS 'The proof can''t be taken from then on.';

CREATE FUNCTION token_consume(
    secret bytea, action text, OUT account jsonb, OUT login text, OUT proof text, OUT why text, OUT missing integer
) LANGUAGE plpgsql SECURITY DEFINER SET search_path = lifecycle, pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    token tokens;
    asked actions;
    state text;
    failed text;
BEGIN
    SELECT * INTO asked FROM actions AS a WHERE a.name = token_consume.action;
    SELECT * INTO token FROM tokens AS t WHERE t.secret = token_consume.secret AND t.action = token_consume.action;
    -- without locks, which would need a commit to disk: each refusal takes the same time
    why := token_refusal(token, asked, account_status(token.account));
    IF why IS NOT NULL THEN RETURN; END IF;
    -- the account first, as a change of its status does, and the use of another token
    state := account_lock(token.account);
    SELECT * INTO token FROM tokens AS t WHERE t.id = token.id FOR NO KEY UPDATE;
    why := token_refusal(token, asked, state);
    IF why IS NOT NULL THEN RETURN; END IF;
    -- before the function of the application, which may delete the account
    account := account_id(token.account);
    SELECT a.login INTO login FROM account_rows(ARRAY[token.account]) AS a WHERE token.account IS NOT NULL;
    BEGIN
        UPDATE tokens AS t SET consumed_at = epoch() WHERE t.id = token.id;
        IF NOT FOUND THEN why := 'expired'; END IF;  -- between the look and this statement
    EXCEPTION WHEN object_not_in_prerequisite_state THEN
        GET STACKED DIAGNOSTICS failed = CONSTRAINT_NAME;
        IF failed <> 'tokens_refused' THEN RAISE; END IF;
        why := 'refused';
    END;
    IF why IS NOT NULL THEN
        account := NULL;
        login := NULL;
        RETURN;
    END IF;
    missing := (SELECT count(*) FROM tokens AS t WHERE t.id = token.id AND t.request IS NOT NULL);
    IF asked.proof THEN
        proof := translate(encode(token_secret(), 'base64'), '+/=', '-_');
        INSERT INTO proofs (hash, account, action)
        VALUES (sha256(convert_to(proof, 'UTF8')), token.account, token.action);
        DELETE FROM proofs WHERE expires_at < now() - interval '1 hour';
    END IF;
END $$;
COMMENT ON FUNCTION token_consume IS
    'Consumes a token whose signature was verified, once, with all that its action does, and returns its account, a proof '
    'for proof_take() if the action has one, and how many confirmations the request still lacks. `why` '
    'is null, or why it was refused: unknown, consumed, expired, locked, ineligible, or refused by the application.';

CREATE FUNCTION action_pages() RETURNS TABLE (name text, code boolean, proof boolean, returns_to text, titles jsonb)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = lifecycle, pg_catalog, pg_temp AS $$
    SELECT a.name, a.code, a.proof, a.returns_to, a.titles FROM actions AS a
$$;
COMMENT ON FUNCTION action_pages IS 'What the pages of all actions need.';

CREATE FUNCTION token_failed(secret bytea) RETURNS boolean LANGUAGE sql SECURITY DEFINER
    SET search_path = lifecycle, pg_catalog, pg_temp AS $$
    WITH counted AS (
        UPDATE tokens AS t SET failures = t.failures + 1 FROM actions AS a
        WHERE t.secret = token_failed.secret AND a.name = t.action AND a.code AND t.consumed_at IS NULL AND t.failures < 5
        RETURNING true
    )
    SELECT count(*) > 0 FROM counted
$$;
COMMENT ON FUNCTION token_failed IS
    'Counts a wrong code for a token whose action has one, and returns whether there is one that is not locked. The code is '
    'part of the signature, so who verifies it calls this.';

CREATE FUNCTION token_locked(secret bytea) RETURNS boolean LANGUAGE sql SECURITY DEFINER
    SET search_path = lifecycle, pg_catalog, pg_temp AS $$
    -- a write, because it fails whenever a wrong code could not be counted either
    WITH asked AS (UPDATE tokens AS t SET failures = t.failures WHERE t.secret = token_locked.secret RETURNING t.failures)
    SELECT count(*) > 0 FROM asked WHERE failures >= 5
$$;
COMMENT ON FUNCTION token_locked IS
    'Whether too many codes were wrong for a token. Who says that a code is right asks this before, so that nobody learns '
    'a code while wrong ones can''t be counted.';

CREATE FUNCTION ask_action(name text) RETURNS actions LANGUAGE plpgsql STABLE
    SET search_path = lifecycle, pg_catalog, pg_temp AS $$
DECLARE
    found actions := (SELECT a FROM actions AS a WHERE a.name = ask_action.name);
BEGIN
    IF found.name IS NULL THEN PERFORM action_unknown(name); END IF;
    IF to_regrole(quote_ident(found.asker)) IS NULL AND found.asker IS NOT NULL THEN
        RAISE EXCEPTION 'action %: there is no role %, its asker', found.name, found.asker USING ERRCODE = 'undefined_object';
    ELSIF found.asker IS NOT NULL AND NOT pgmta.acting_in(to_regrole(quote_ident(found.asker))) THEN
        RAISE EXCEPTION 'action %: % is no member of %', found.name, pgmta.acting(), found.asker
            USING ERRCODE = 'insufficient_privilege';
    END IF;
    RETURN found;
END $$;
COMMENT ON FUNCTION ask_action IS 'An action by its name. Raises an error if there is none, or if the role may not ask for it.';

CREATE FUNCTION token_recent(token tokens, action actions) RETURNS boolean STABLE
RETURN token.action = action.name AND token.consumed_at IS NULL AND token.failures < 5
    AND token.expires_at > token.created_at  -- it was not ended
    -- a later time is of a clock that was set back
    AND abs(token.created_at - epoch()) < extract(epoch FROM action.every);
COMMENT ON FUNCTION token_recent IS 'Whether a token of an action is too new, and too good, for another one.';

CREATE FUNCTION ask_token(action actions, account bigint, email text, data jsonb) RETURNS bigint LANGUAGE plpgsql
    SET search_path = lifecycle, pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    first bigint;
    recent boolean;
BEGIN
    IF account IS NOT NULL AND NOT token_fits(action.statuses, account_lock(ask_token.account)) THEN
        PERFORM pgmta.prove_earlier();
        RETURN NULL;
    END IF;
    -- of clients that ask together the second sees the token of the first: the next statement has a new snapshot
    PERFORM pg_advisory_xact_lock('lifecycle.actions'::regclass::oid::integer, hashtext(pgmta.mailbox_key(ask_token.email)))
    WHERE ask_token.email IS NOT NULL;
    -- Nobody gets more mail, however often a client asks and for however many accounts. Two queries, because each has its index.
    recent := EXISTS (SELECT FROM tokens AS t WHERE t.account = ask_token.account AND token_recent(t, ask_token.action))
        OR EXISTS (
            SELECT FROM tokens AS t WHERE t.email IS NOT NULL AND pgmta.mailbox_key(t.email) = pgmta.mailbox_key(ask_token.email)
                AND token_recent(t, ask_token.action));
    IF recent THEN
        PERFORM pgmta.prove_earlier();
        RETURN NULL;
    END IF;
    first := nextval('tokens_id_seq');
    INSERT INTO tokens (id, action, account, email, data, request) VALUES (
        first, action.name, ask_token.account, CASE action.confirmed_by WHEN 'email' THEN ask_token.email END, ask_token.data,
        CASE action.confirmed_by WHEN 'both' THEN first END);
    INSERT INTO tokens (action, account, email, data, request)
    SELECT action.name, ask_token.account, ask_token.email, ask_token.data, first WHERE action.confirmed_by = 'both';
    RETURN first;
END $$;
COMMENT ON FUNCTION ask_token IS
    'Makes a token, or the two of a request, and returns the first; null if the status of the account does not fit, or if '
    'it was asked too recently.';

CREATE FUNCTION ask(action text, account text DEFAULT NULL, email text DEFAULT NULL, data jsonb DEFAULT '{}') RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = lifecycle, pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    asked actions := ask_action(ask.action);
    number bigint;
    lacks text[];
BEGIN
    IF ask.account IS NULL AND asked.confirmed_by <> 'email' THEN
        PERFORM action_refuse(asked.name, '', 'it needs an account');
    ELSIF ask.email IS NULL AND asked.confirmed_by <> 'account' THEN
        PERFORM action_refuse(asked.name, '', 'it needs an email');
    ELSIF ask.email IS NOT NULL AND asked.confirmed_by = 'account' THEN
        PERFORM action_refuse(asked.name, '', 'its mail goes to the mailbox of the account', 'Give other addresses in data.');
    ELSIF nullif(pgmta.mailbox_domain(ask.email COLLATE "C"), 'sms') IS NULL AND ask.email IS NOT NULL THEN
        PERFORM action_refuse(asked.name, '', format('%s is no mailbox', to_json(left(ask.email, 100))));
    ELSIF jsonb_typeof(ask.data) IS DISTINCT FROM 'object' THEN
        PERFORM action_refuse(asked.name, '', 'data is no JSON object', 'Give words by name: {"team": "Sales"}.');
    ELSIF octet_length(ask.data::text) > 8192 THEN
        PERFORM action_refuse(asked.name, '', 'data is over 8 KB');
    END IF;
    IF ask.account IS NOT NULL THEN
        number := account_number(ask.account);
        IF number IS NULL THEN
            PERFORM action_refuse(asked.name, '', format('there is no account %s', to_json(left(ask.account, 100))));
        END IF;
    END IF;
    lacks := ARRAY(SELECT w FROM jsonb_object_keys(action_words(asked.template)) AS w
        WHERE w <> ALL ('{link,token,login,email,new_email,code,minutes}') AND ask.data ->> w IS NULL ORDER BY w);
    IF number IS NOT NULL AND lacks <> '{}' THEN
        lacks := ARRAY(SELECT w FROM unnest(lacks) AS w, account_rows(ARRAY[number]) AS a WHERE a.words ->> w IS NULL);
    END IF;
    IF lacks <> '{}' THEN
        PERFORM action_refuse(asked.name, '', format('data lacks %s', array_to_string(lacks, ', ')),
            format('The template %s has these words.', asked.template));
    END IF;
    RETURN ask_token(asked, number, ask.email, ask.data);
END $$;
COMMENT ON FUNCTION ask IS
    'Asks for the mail of an action, about an account by its id, to an address, or both, as the action says. `data` has further '
    'words of the mail, and the function of the application gets it. Returns the token, the first one if both mailboxes '
    'confirm; null if the status of the account does not fit, or if it was asked too recently.';

CREATE FUNCTION ask_named(action text, name text) RETURNS void LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = lifecycle, pg_catalog, pg_temp AS $$
DECLARE
    asked actions := ask_action(ask_named.action);
BEGIN
    IF asked.confirmed_by <> 'account' THEN
        PERFORM action_refuse(asked.name, '', 'it needs an email', 'Call lifecycle.ask().');
    END IF;
    PERFORM ask_token(asked, number, NULL, '{}') FROM unnest(account_named(ask_named.name)) AS number;
END $$;
COMMENT ON FUNCTION ask_named IS
    'Asks for the mail of an action for the accounts with this login, or with this mailbox in any spelling. Says nothing of '
    'whether there is one.';

CREATE FUNCTION recover(name text) RETURNS void LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = lifecycle, pg_catalog, pg_temp AS $$
BEGIN
    PERFORM ask_named('password_recovery', recover.name);
END $$;
COMMENT ON FUNCTION recover IS
    'Asks for the recovery mail of the accounts with this login, or with this mailbox in any spelling.';

CREATE FUNCTION activate_again(account text) RETURNS bigint LANGUAGE sql SECURITY DEFINER
    SET search_path = lifecycle, pg_catalog, pg_temp AS $$
    SELECT ask('activation', activate_again.account)
$$;
COMMENT ON FUNCTION activate_again IS
    'Asks for another activation mail of an account by its id.';

CREATE FUNCTION attempts_since() RETURNS timestamptz LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT coalesce(min(to_date(right(c.relname, 8), 'YYYYMMDD'))::timestamp AT TIME ZONE 'UTC', '-infinity')
    FROM pg_inherits AS i JOIN pg_class AS c ON c.oid = i.inhrelid
    WHERE i.inhparent = 'pgmta.attempts'::regclass AND c.relname ~ '_[0-9]{8}$'
$$;
COMMENT ON FUNCTION attempts_since IS 'Since when the log of attempts is kept; earlier days were dropped.';

CREATE FUNCTION tokens_unsent(since interval, OUT token bigint, OUT action text) RETURNS SETOF record LANGUAGE sql STABLE
    SECURITY DEFINER SET search_path = lifecycle, pg_catalog, pg_temp SET jit = off AS $$
    SELECT t.id, t.action FROM tokens AS t JOIN actions AS a ON a.name = t.action
    WHERE t.consumed_at IS NULL
        AND least(t.expires_at, t.created_at + a.sent_within) BETWEEN extract(epoch FROM now() - since) AND epoch()
        AND t.expires_at > t.created_at  -- it was not ended
        AND (t.collected_at IS NULL OR t.message_id IS NOT NULL AND t.collected_at >= attempts_since() AND NOT EXISTS (
            -- mail that was refused for good, withdrawn or deleted is not late; ended_at names the partitions
            SELECT FROM pgmta.attempts AS m WHERE m.message_id = t.message_id AND m.ended_at >= to_timestamp(t.created_at)
                AND m.event NOT IN ('deferred', 'expired') AND m.class IS DISTINCT FROM 'expired'))
        AND NOT EXISTS (
            SELECT FROM tokens AS n WHERE n.account = t.account AND n.action = t.action AND n.id > t.id
                AND n.expires_at > n.created_at
                -- of a request the other mailbox counts no more than another request; without one it is another affair
                AND CASE WHEN t.request IS NULL THEN pgmta.mailbox_key(n.email) IS NOT DISTINCT FROM pgmta.mailbox_key(t.email)
                    ELSE n.request IS DISTINCT FROM t.request OR (n.email IS NULL) = (t.email IS NULL) END)
        AND NOT EXISTS (
            SELECT FROM tokens AS n WHERE pgmta.mailbox_key(n.email) = pgmta.mailbox_key(t.email) AND n.email IS NOT NULL
                AND n.account IS NULL AND t.account IS NULL AND n.action = t.action AND n.id > t.id
                AND n.expires_at > n.created_at)
        AND (t.account IS NULL OR token_fits(a.statuses, account_status(t.account)))
$$;
COMMENT ON FUNCTION tokens_unsent IS
    'Tokens that expired in this time before their mail left, if their account still fits and there is no newer one.';

CREATE FUNCTION mail_again(action text DEFAULT NULL, since interval DEFAULT '1 day') RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path = lifecycle, pg_catalog, pg_temp
    SET lock_timeout = '5s' AS $$  -- it holds the locks of other accounts meanwhile
#variable_conflict use_column
DECLARE
    numbers bigint[];
    made integer;
BEGIN
    IF mail_again.action IS NOT NULL AND NOT EXISTS (SELECT FROM actions AS a WHERE a.name = mail_again.action) THEN
        PERFORM action_unknown(mail_again.action);
    END IF;
    -- two calls would make two tokens of one
    PERFORM pg_advisory_xact_lock('lifecycle.tokens'::regclass::oid::bigint);
    SELECT array_agg(DISTINCT t.account ORDER BY t.account) INTO numbers
    FROM tokens AS t JOIN tokens_unsent(since) AS u ON u.token = t.id WHERE t.action = coalesce(mail_again.action, t.action);
    -- An account that is deleted after its token is made would make the COMMIT fail. The INSERT no longer sees the tokens of
    -- one that was deleted while these locks waited.
    PERFORM account_lock(number) FROM unnest(numbers) AS number;
    -- also where account_lock() locks nothing, because the session sees all mail
    PERFORM FROM holders AS h WHERE h.number = ANY (numbers) ORDER BY h.number FOR KEY SHARE;
    INSERT INTO tokens (action, account, email, data, request)
    SELECT t.action, t.account, t.email, t.data, t.request
    FROM tokens AS t JOIN tokens_unsent(since) AS u ON u.token = t.id
    WHERE t.action = coalesce(mail_again.action, t.action) AND (t.account IS NULL OR t.account = ANY (numbers)) ORDER BY t.id;
    GET DIAGNOSTICS made = ROW_COUNT;
    RETURN made;
END $$;
COMMENT ON FUNCTION mail_again IS
    'Makes new tokens for those of tokens_unsent(), of one action or of all, and returns how many. They wait for a collector.';

CREATE FUNCTION proof_take(proof text, OUT account text, OUT login text, OUT action text) RETURNS SETOF record
LANGUAGE plpgsql SECURITY DEFINER SET search_path = lifecycle, pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    taken proofs;
BEGIN
    DELETE FROM proofs AS p WHERE p.hash = sha256(convert_to(proof_take.proof, 'UTF8')) RETURNING * INTO taken;
    IF taken.expires_at > now() THEN
        RETURN QUERY SELECT a.id, a.login, taken.action
        FROM account_rows(ARRAY[taken.account]) AS a WHERE a.status <> 'suspended';
    END IF;
END $$;
COMMENT ON FUNCTION proof_take IS
    'Takes a proof, once within 15 minutes, and returns the account, and the action whose link was used: the application '
    'compares it with what it is about to do. No row for any other text.';

-- Tokens, and those that have to be mailed.

CREATE FUNCTION token_secret() RETURNS bytea VOLATILE PARALLEL SAFE
RETURN sha256(uuid_send(gen_random_uuid()) || uuid_send(gen_random_uuid()) || uuid_send(gen_random_uuid()));
COMMENT ON FUNCTION token_secret IS '32 octets of the random numbers that PostgreSQL has for cryptography.';

CREATE FUNCTION token_code() RETURNS text VOLATILE PARALLEL SAFE
-- the last 48 bits of a UUID are random (RFC 9562, section 5.4)
RETURN lpad((('x' || right(gen_random_uuid()::text, 12))::bit(48)::bigint % 100000)::text, 5, '0');
COMMENT ON FUNCTION token_code IS 'Five digits, each number as likely as any other.';

CREATE TABLE holders (
    number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    id text NOT NULL UNIQUE,
    fresh boolean NOT NULL DEFAULT false
);
COMMENT ON TABLE holders IS 'Accounts of a bound application about which there was a question.';
COMMENT ON COLUMN holders.number IS 'Number of the account, as tokens.account has it.';
COMMENT ON COLUMN holders.id IS 'Its id in the table of the application, as text.';
COMMENT ON COLUMN holders.fresh IS 'Whether it was inserted since the table is bound, and was never active.';
COMMENT ON SEQUENCE holders_number_seq IS 'holders.number.';

CREATE TABLE tokens (
    id bigserial PRIMARY KEY,
    action text NOT NULL,
    secret bytea NOT NULL DEFAULT token_secret() UNIQUE CONSTRAINT tokens_secret CHECK (octet_length(secret) = 32),
    code varchar(5) DEFAULT token_code() CONSTRAINT tokens_code CHECK (code ~ '^[0-9]{5}$' COLLATE "C"),
    account bigint,
    expires_at bigint NOT NULL,
    consumed_at bigint,
    created_at bigint NOT NULL DEFAULT epoch(),
    collected_at timestamptz,
    message_id bigint,
    failures smallint NOT NULL DEFAULT 0,
    email text,
    data jsonb NOT NULL DEFAULT '{}',
    request bigint,
    CONSTRAINT tokens_mailbox CHECK (account IS NOT NULL OR email IS NOT NULL),
    CONSTRAINT tokens_account_fkey FOREIGN KEY (account) REFERENCES accounts (id)
        ON DELETE CASCADE DEFERRABLE INITIALLY DEFERRED
) WITH (fillfactor = 50);  -- an update of a mark stays in its page, because no index has its columns
COMMENT ON TABLE tokens IS 'Tokens of accounts. Times without a time zone are seconds since 1970.';
COMMENT ON COLUMN tokens.id IS 'Number of the token.';
COMMENT ON COLUMN tokens.action IS 'What it is for, actions.name.';
COMMENT ON COLUMN tokens.secret IS 'What its link has, with a signature that is in no table.';
COMMENT ON COLUMN tokens.code IS 'Digits that the owner types in, if its action has a code.';
COMMENT ON COLUMN tokens.account IS 'accounts.id, or holders.number of a bound application; null: it is of a mailbox alone.';
COMMENT ON COLUMN tokens.expires_at IS
    'It can''t be consumed from then on. Where the time counts from the delivery, this is its last bound.';
COMMENT ON COLUMN tokens.consumed_at IS 'When it was consumed; null: never.';
COMMENT ON COLUMN tokens.created_at IS 'When it was inserted.';
COMMENT ON COLUMN tokens.collected_at IS 'When its mail was made, or refused; null: not yet.';
COMMENT ON COLUMN tokens.message_id IS 'Its mail, messages.id; null: none, or it was printed.';
COMMENT ON COLUMN tokens.failures IS 'Wrong codes so far; five lock it.';
COMMENT ON COLUMN tokens.email IS 'Mailbox that gets its mail; null: that of the account.';
COMMENT ON COLUMN tokens.data IS 'Words of its mail, and an argument of the function of the application.';
COMMENT ON COLUMN tokens.request IS 'The first of two tokens that confirm one request; null: it is alone.';
COMMENT ON SEQUENCE tokens_id_seq IS 'tokens.id.';
COMMENT ON CONSTRAINT tokens_code ON tokens IS 'Five digits.';
COMMENT ON CONSTRAINT tokens_secret ON tokens IS '32 octets.';
COMMENT ON CONSTRAINT tokens_mailbox ON tokens IS 'There is somebody to mail to.';
CREATE INDEX tokens_account ON tokens (account);
COMMENT ON INDEX tokens_account IS 'A change of an account looks at its tokens.';
CREATE INDEX tokens_email ON tokens (pgmta.mailbox_key(email)) WHERE email IS NOT NULL;
COMMENT ON INDEX tokens_email IS 'How often a mailbox was mailed to.';

-- A row for each token, and not a number up to which they are done: a commit may come late.
CREATE TABLE waiting_tokens (
    action text NOT NULL,
    token bigint NOT NULL,
    lease_until timestamptz NOT NULL DEFAULT '-infinity',
    fault text,
    PRIMARY KEY (action, token)
) WITH (
    autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_vacuum_threshold = 2000,
    autovacuum_vacuum_cost_delay = 0
);
COMMENT ON TABLE waiting_tokens IS 'Tokens whose mail has to be made, and whose account fits now.';
COMMENT ON COLUMN waiting_tokens.action IS 'tokens.action: a collector of few actions reads only theirs.';
COMMENT ON COLUMN waiting_tokens.token IS 'tokens.id.';
COMMENT ON COLUMN waiting_tokens.lease_until IS
    'Until then a collector may be printing it, or it rests; -infinity: none ever did.';
COMMENT ON COLUMN waiting_tokens.fault IS 'Why it rests, or last did: what its template lacks; null: it never did for that.';

CREATE FUNCTION token_fits(statuses text[], status text) RETURNS boolean IMMUTABLE PARALLEL SAFE
RETURN (status = ANY (statuses) OR statuses IS NOT NULL AND status = 'unknown') IS TRUE;
COMMENT ON FUNCTION token_fits IS
    'Whether tokens of an action with these statuses can be mailed and consumed for an account of this status. One of '
    'unknown status may: the collector looks at it again. No tokens of an action that was deleted.';

-- SET search_path costs more than the rest, so all names have their schema, and operators too.
CREATE FUNCTION tokens_prepared() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
DECLARE
    fault text;
BEGIN
    -- one expression, because each costs as much as the whole
    SELECT CASE WHEN NEW.code IS NULL AND a.code THEN 'code'
            WHEN a.confirmed_by OPERATOR(pg_catalog.=) 'both' AND NEW.request IS NULL
                OR a.confirmed_by OPERATOR(pg_catalog.=) 'email' AND NEW.email IS NULL THEN 'email' ELSE '' END,
        coalesce(NEW.expires_at, NEW.created_at OPERATOR(pg_catalog.+) a.seconds
            OPERATOR(pg_catalog.+) coalesce(a.sent_within, 0))
    INTO fault, NEW.expires_at FROM lifecycle.actions AS a WHERE a.name OPERATOR(pg_catalog.=) NEW.action;
    IF fault OPERATOR(pg_catalog.<>) '' THEN
        RAISE EXCEPTION 'a token of % has no %', NEW.action, fault USING ERRCODE = 'check_violation',
            SCHEMA = 'lifecycle', TABLE = 'tokens', COLUMN = fault, HINT = 'lifecycle.ask() makes tokens.';
    ELSIF fault IS NULL THEN
        PERFORM lifecycle.action_unknown(NEW.action);
    END IF;
    RETURN NEW;
END $$;
COMMENT ON FUNCTION tokens_prepared IS
    'Sets the expiry of the action. Refuses an unknown one, and a token without a part that it needs.';
-- most tokens are first ones: accounts_made() gives their expiry, and an activation needs no address by actions_checked()
CREATE TRIGGER tokens_prepared BEFORE INSERT ON tokens FOR EACH ROW
    WHEN (NEW.expires_at IS NULL OR NEW.action <> 'activation') EXECUTE FUNCTION tokens_prepared();
COMMENT ON TRIGGER tokens_prepared ON tokens IS 'An application inserts an action and an account only.';

CREATE FUNCTION tokens_made() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
BEGIN
    INSERT INTO lifecycle.waiting_tokens (action, token)
    SELECT t.action, t.id FROM made AS t JOIN lifecycle.actions AS a ON a.name OPERATOR(pg_catalog.=) t.action
    WHERE t.consumed_at IS NULL AND t.collected_at IS NULL
        AND (t.account IS NULL OR lifecycle.token_fits(a.statuses, lifecycle.account_status(t.account)));
    PERFORM pgmta.notify_channel('token_insert'), pgmta.notify_channel('token_inserted');
    RETURN NULL;
END $$;
COMMENT ON FUNCTION tokens_made IS 'Lets new tokens wait for their mail, and wakes collectors on two channels.';
CREATE TRIGGER tokens_made AFTER INSERT ON tokens REFERENCING NEW TABLE AS made
    FOR EACH STATEMENT EXECUTE FUNCTION tokens_made();
COMMENT ON TRIGGER tokens_made ON tokens IS 'Their mail is made soon.';

CREATE FUNCTION token_ends(token tokens, action actions) RETURNS bigint LANGUAGE sql STABLE
    SET search_path = pgmta, pg_catalog, pg_temp AS $$
    SELECT CASE WHEN action.expiry_from = 'insert' THEN token.expires_at
        ELSE least(token.expires_at, action.seconds + CASE
            WHEN token.message_id IS NULL THEN floor(extract(epoch FROM token.collected_at))
            ELSE (SELECT floor(extract(epoch FROM min(a.ended_at))) FROM attempts AS a
                WHERE a.message_id = token.message_id AND a.event = 'delivered'
                    AND a.ended_at >= to_timestamp(token.created_at)) END)::bigint END
$$;
COMMENT ON FUNCTION token_ends IS
    'When a token expires: where the time counts from the delivery, that long after the attempt that delivered its mail, or '
    'after it was printed.';

CREATE FUNCTION token_refusal(token tokens, action actions, status text) RETURNS text LANGUAGE sql VOLATILE
    SET search_path = lifecycle, pg_catalog, pg_temp AS $$
    SELECT CASE WHEN token.id IS NULL THEN 'unknown'
        WHEN token.consumed_at IS NOT NULL THEN 'consumed'
        WHEN token_ends(token, action) <= floor(extract(epoch FROM clock_timestamp())) THEN 'expired'
        WHEN token.failures >= 5 AND action.code THEN 'locked'
        WHEN action.name IS NULL OR token.account IS NOT NULL AND NOT token_fits(action.statuses, status) THEN 'ineligible' END
$$;
COMMENT ON FUNCTION token_refusal IS
    'Why a token can''t be consumed while its account has a status: unknown, consumed, expired, locked or ineligible; '
    'null if it can.';

CREATE FUNCTION tokens_consumable() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = lifecycle, pg_catalog, pg_temp AS $$
DECLARE
    action actions := (SELECT a FROM actions AS a WHERE a.name = NEW.action);
    why text;
BEGIN
    why := token_refusal(OLD, action, account_lock(NEW.account));
    -- The second of two confirmations sees the first, also if the account could not be locked: a session that sees all mail
    -- does not ask for those of another role.
    PERFORM pg_advisory_xact_lock('lifecycle.tokens'::regclass::oid::integer, hashint8(NEW.request))
    WHERE NEW.request IS NOT NULL;
    IF why IS NULL OR why = 'locked' THEN RETURN NEW; END IF;
    RAISE WARNING 'token % is not consumed: %', NEW.id, CASE why WHEN 'expired' THEN 'it is expired'
        ELSE 'the status of its account does not fit' END;
    RETURN NULL;
END $$;
COMMENT ON FUNCTION tokens_consumable IS
    'Leaves out the update of a token that is expired, or whose account does not fit, with a warning.';
CREATE TRIGGER tokens_consumable BEFORE UPDATE OF consumed_at ON tokens FOR EACH ROW
    WHEN (OLD.consumed_at IS NULL AND NEW.consumed_at IS NOT NULL) EXECUTE FUNCTION tokens_consumable();
COMMENT ON TRIGGER tokens_consumable ON tokens IS 'An expired token activates nothing, and a suspension burns none.';

CREATE FUNCTION tokens_consumed() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = lifecycle, pg_catalog, pg_temp AS $$
DECLARE
    action actions := (SELECT a FROM actions AS a WHERE a.name = NEW.action);
    address text := NEW.email;
    confirmed integer;
    done boolean := true;
BEGIN
    DELETE FROM waiting_tokens AS w WHERE w.action = NEW.action AND w.token = NEW.id;
    PERFORM pgmta.withdraw(ARRAY[NEW.message_id], 'its token was consumed') WHERE NEW.message_id IS NOT NULL;
    -- others may have seen the mail of earlier tokens
    IF action.proof THEN PERFORM tokens_end(NEW.account, 'another link of its account was used', NEW.action); END IF;
    IF NEW.request IS NOT NULL THEN
        IF current_setting('transaction_isolation') <> 'read committed' THEN
            -- an old snapshot does not show a confirmation that was committed meanwhile; this lock fails then
            PERFORM FROM tokens AS t WHERE t.account = NEW.account AND t.request = NEW.request FOR NO KEY UPDATE;
        END IF;
        SELECT max(t.email), count(DISTINCT t.email IS NULL) FILTER (WHERE t.consumed_at IS NOT NULL)
        INTO address, confirmed FROM tokens AS t WHERE t.account = NEW.account AND t.request = NEW.request;
        IF confirmed < 2 THEN RETURN NULL; END IF;
        -- one statement may consume both
        UPDATE tokens AS t SET request = NULL WHERE t.account = NEW.account AND t.request = NEW.request;
    END IF;
    IF action.calls IS NOT NULL THEN
        done := redeem(action.calls, account_id(NEW.account) #>> '{}', address, NEW.data);
    ELSIF action.name = 'activation' THEN
        -- one statement may consume several tokens of an account
        done := account_activate(NEW.account) OR account_status(NEW.account) = 'active';
    END IF;
    IF done IS NOT TRUE THEN
        RAISE EXCEPTION 'token % of % is refused by the application', NEW.id, action.name USING
            ERRCODE = 'object_not_in_prerequisite_state', SCHEMA = 'lifecycle', TABLE = 'tokens', CONSTRAINT = 'tokens_refused';
    END IF;
    RETURN NULL;
END $$;
COMMENT ON FUNCTION tokens_consumed IS
    'Does what the action is for: calls the function of the application, or activates the account. Withdraws mail that is '
    'not sent yet. Raises an error if the application refuses, so that nothing is consumed.';
CREATE TRIGGER tokens_consumed AFTER UPDATE OF consumed_at ON tokens FOR EACH ROW
    WHEN (OLD.consumed_at IS NULL AND NEW.consumed_at IS NOT NULL) EXECUTE FUNCTION tokens_consumed();
COMMENT ON TRIGGER tokens_consumed ON tokens IS 'The effect is in the transaction of its token: exactly once.';

CREATE FUNCTION tokens_deleted() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = lifecycle, pg_catalog, pg_temp AS $$
BEGIN
    DELETE FROM waiting_tokens AS w WHERE w.action = OLD.action AND w.token = OLD.id;
    PERFORM pgmta.withdraw(ARRAY[OLD.message_id], 'its token was deleted') WHERE OLD.message_id IS NOT NULL;
    RETURN NULL;
END $$;
COMMENT ON FUNCTION tokens_deleted IS 'Withdraws mail that is not sent yet.';
CREATE TRIGGER tokens_deleted AFTER DELETE ON tokens FOR EACH ROW EXECUTE FUNCTION tokens_deleted();
COMMENT ON TRIGGER tokens_deleted ON tokens IS 'Also if its account was deleted.';
CREATE TRIGGER tokens_truncated BEFORE TRUNCATE ON tokens EXECUTE FUNCTION truncate_refused();
COMMENT ON TRIGGER tokens_truncated ON tokens IS 'Mail is withdrawn row by row.';

CREATE FUNCTION tokens_end(account bigint, why text, action text DEFAULT NULL) RETURNS void LANGUAGE plpgsql
    SET search_path = lifecycle, pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    mails bigint[];
BEGIN
    -- waits for a collector that has locked such a token, and sees its mail
    WITH ended AS (
        -- not later than the insert, which tells it from a token whose time is over
        UPDATE tokens AS t SET expires_at = least(t.created_at, epoch())
        WHERE t.account = tokens_end.account AND t.action = coalesce(tokens_end.action, t.action)
            AND t.consumed_at IS NULL AND t.expires_at > epoch()
        RETURNING t.message_id
    )
    SELECT array_agg(message_id ORDER BY message_id) INTO mails FROM ended WHERE message_id IS NOT NULL;
    DELETE FROM waiting_tokens AS w USING tokens AS t
    WHERE t.account = tokens_end.account AND t.action = coalesce(tokens_end.action, t.action)
        AND w.action = t.action AND w.token = t.id;
    PERFORM pgmta.withdraw(mails, why) WHERE mails IS NOT NULL;
END $$;
COMMENT ON FUNCTION tokens_end IS
    'Ends the tokens of an account, or those of one action, that were not consumed, and withdraws mail that is not sent yet.';

CREATE FUNCTION mailbox_left(account bigint) RETURNS void LANGUAGE plpgsql SET search_path = lifecycle, pg_catalog, pg_temp AS $$
#variable_conflict use_column
BEGIN
    PERFORM tokens_end(mailbox_left.account, 'its account has another mailbox');
    DELETE FROM proofs AS p WHERE p.account = mailbox_left.account;
    PERFORM pgmta.prove_earlier();
END $$;
COMMENT ON FUNCTION mailbox_left IS
    'Ends the tokens of an account whose mailbox changed, with their mail and its proofs: who has only the earlier mailbox '
    'can neither activate nor recover it.';

CREATE FUNCTION status_follow(account bigint, status text DEFAULT NULL)
    RETURNS void LANGUAGE plpgsql SET search_path = lifecycle, pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    state text := coalesce(status_follow.status, account_status(status_follow.account));
    mails bigint[];
BEGIN
    -- This statement waits for a collector that has locked such a token; the next one sees its mail.
    DELETE FROM waiting_tokens AS w USING tokens AS t, actions AS a
    WHERE t.account = status_follow.account AND w.action = t.action AND w.token = t.id AND a.name = t.action
        AND NOT token_fits(a.statuses, state);
    SELECT array_agg(t.message_id ORDER BY t.message_id) INTO mails FROM tokens AS t JOIN actions AS a ON a.name = t.action
    WHERE t.account = status_follow.account AND t.consumed_at IS NULL AND t.message_id IS NOT NULL
        AND NOT token_fits(a.statuses, state);
    PERFORM pgmta.withdraw(mails, 'its account is ' || coalesce(state, 'deleted')) WHERE mails IS NOT NULL;
    INSERT INTO waiting_tokens (action, token)
    SELECT t.action, t.id FROM tokens AS t JOIN actions AS a ON a.name = t.action
    WHERE t.account = status_follow.account AND t.consumed_at IS NULL AND t.collected_at IS NULL
        AND t.expires_at > epoch() AND token_fits(a.statuses, state)
    ON CONFLICT DO NOTHING;
    IF FOUND THEN
        PERFORM pgmta.notify_channel('token_insert');
        PERFORM pgmta.notify_channel('token_inserted');
    END IF;
    -- the mail of an earlier token was withdrawn, or never made
    INSERT INTO tokens (action, account)
    SELECT a.name, status_follow.account FROM actions AS a
    WHERE a.name = 'activation' AND token_fits(a.statuses, state) AND NOT EXISTS (
        SELECT FROM tokens AS t WHERE t.account = status_follow.account AND t.action = 'activation'
            AND t.consumed_at IS NULL AND t.collected_at IS NULL AND t.expires_at > epoch());
    PERFORM pgmta.prove_earlier();
END $$;
COMMENT ON FUNCTION status_follow IS
    'Withdraws mail of an account that no longer fits its status, which may be given, lets tokens that fit again wait for '
    'theirs, and makes an activation if none is left.';

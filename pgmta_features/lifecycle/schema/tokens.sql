-- Tokens, and those that have to be mailed.

CREATE FUNCTION token_secret() RETURNS bytea VOLATILE PARALLEL SAFE
RETURN sha256(uuid_send(gen_random_uuid()) || uuid_send(gen_random_uuid()) || uuid_send(gen_random_uuid()));
COMMENT ON FUNCTION token_secret IS '32 octets of the random numbers that PostgreSQL has for cryptography.';

CREATE FUNCTION token_code() RETURNS text VOLATILE PARALLEL SAFE
-- the last 48 bits of a UUID are random (RFC 9562, section 5.4)
RETURN lpad((('x' || right(gen_random_uuid()::text, 12))::bit(48)::bigint % 100000)::text, 5, '0');
COMMENT ON FUNCTION token_code IS 'Five digits, each number as likely as any other.';

CREATE TABLE tokens (
    id bigserial PRIMARY KEY,
    action token_action NOT NULL,
    secret bytea NOT NULL DEFAULT token_secret() UNIQUE CONSTRAINT tokens_secret CHECK (octet_length(secret) = 32),
    code varchar(5) DEFAULT token_code() CONSTRAINT tokens_code CHECK (code ~ '^[0-9]{5}$' COLLATE "C"),
    account bigint NOT NULL,
    expires_at bigint NOT NULL DEFAULT epoch() + 900,
    consumed_at bigint,
    created_at bigint NOT NULL DEFAULT epoch(),
    collected_at timestamptz,
    message_id bigint,
    failures smallint NOT NULL DEFAULT 0,
    CONSTRAINT tokens_recovery_code CHECK (code IS NOT NULL OR action = 'activation'),
    CONSTRAINT tokens_account_fkey FOREIGN KEY (account) REFERENCES accounts (id)
        ON DELETE CASCADE DEFERRABLE INITIALLY DEFERRED
) WITH (fillfactor = 50);  -- an update of a mark stays in its page, because no index has its columns
COMMENT ON TABLE tokens IS 'Tokens of accounts. Times without a time zone are seconds since 1970.';
COMMENT ON COLUMN tokens.id IS 'Number of the token.';
COMMENT ON COLUMN tokens.action IS 'What it is for.';
COMMENT ON COLUMN tokens.secret IS 'What its link has, with a signature that is in no table.';
COMMENT ON COLUMN tokens.code IS 'Digits that the owner types in for a recovery.';
COMMENT ON COLUMN tokens.account IS 'accounts.id, or the id of a bound application.';
COMMENT ON COLUMN tokens.expires_at IS 'It can''t be consumed from then on.';
COMMENT ON COLUMN tokens.consumed_at IS 'When it was consumed; null: never.';
COMMENT ON COLUMN tokens.created_at IS 'When it was inserted.';
COMMENT ON COLUMN tokens.collected_at IS 'When its mail was made, or refused; null: not yet.';
COMMENT ON COLUMN tokens.message_id IS 'Its mail, messages.id; null: none, or it was printed.';
COMMENT ON COLUMN tokens.failures IS 'Wrong codes so far; five lock it.';
COMMENT ON SEQUENCE tokens_id_seq IS 'tokens.id.';
COMMENT ON CONSTRAINT tokens_code ON tokens IS 'Five digits.';
COMMENT ON CONSTRAINT tokens_secret ON tokens IS '32 octets.';
COMMENT ON CONSTRAINT tokens_recovery_code ON tokens IS 'A recovery needs its code.';
CREATE INDEX tokens_account ON tokens (account);
COMMENT ON INDEX tokens_account IS 'A change of an account looks at its tokens.';

-- A row for each token, and not a number up to which they are done: a commit may come late.
CREATE TABLE waiting_tokens (
    priority smallint NOT NULL,
    token bigint NOT NULL,
    lease_until timestamptz NOT NULL DEFAULT '-infinity',
    PRIMARY KEY (priority, token)
) WITH (
    autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_vacuum_threshold = 2000,
    autovacuum_vacuum_cost_delay = 0
);
COMMENT ON TABLE waiting_tokens IS 'Tokens whose mail has to be made, and whose account fits now.';
COMMENT ON COLUMN waiting_tokens.priority IS '0: recovery, 3: activation.';
COMMENT ON COLUMN waiting_tokens.token IS 'tokens.id.';
COMMENT ON COLUMN waiting_tokens.lease_until IS 'Until then a collector may be printing it; -infinity: none ever did.';

CREATE FUNCTION token_priority(action token_action) RETURNS smallint IMMUTABLE PARALLEL SAFE
RETURN CASE action WHEN 'password_recovery' THEN 0::smallint ELSE 3::smallint END;
COMMENT ON FUNCTION token_priority IS 'Which tokens are collected first: lower numbers.';

CREATE FUNCTION token_fits(action token_action, status text) RETURNS boolean IMMUTABLE PARALLEL SAFE
RETURN (action = 'activation' AND status = 'provisioned' OR action = 'password_recovery' AND status = 'active'
    OR status = 'unknown') IS TRUE;
COMMENT ON FUNCTION token_fits IS
    'Whether the token of an account with a status can be mailed and consumed. One of unknown status may: the collector '
    'looks at it again.';

-- SET search_path costs more than the rest, so names have their schema, and there are no operators.
CREATE FUNCTION tokens_made() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
BEGIN
    IF NEW.consumed_at IS NULL AND NEW.collected_at IS NULL
            AND lifecycle.token_fits(NEW.action, lifecycle.account_status(NEW.account)) THEN
        INSERT INTO lifecycle.waiting_tokens (priority, token) VALUES (lifecycle.token_priority(NEW.action), NEW.id);
    END IF;
    PERFORM pgmta.notify_channel('token_insert');
    PERFORM pgmta.notify_channel('token_inserted');
    RETURN NULL;
END $$;
COMMENT ON FUNCTION tokens_made IS 'Lets a new token wait for its mail, and wakes collectors on two channels.';
CREATE TRIGGER tokens_made AFTER INSERT ON tokens FOR EACH ROW EXECUTE FUNCTION tokens_made();
COMMENT ON TRIGGER tokens_made ON tokens IS 'Its mail is made soon.';

CREATE FUNCTION tokens_consumable() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = lifecycle, pg_catalog, pg_temp AS $$
DECLARE
    why text := CASE WHEN NEW.expires_at <= floor(extract(epoch FROM clock_timestamp())) THEN 'expired'
        WHEN NOT token_fits(NEW.action, account_lock(NEW.account)) THEN 'ineligible' END;
BEGIN
    IF why IS NULL THEN RETURN NEW; END IF;
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
BEGIN
    DELETE FROM waiting_tokens WHERE priority = token_priority(NEW.action) AND token = NEW.id;
    PERFORM pgmta.withdraw(ARRAY[NEW.message_id], 'its token was consumed') WHERE NEW.message_id IS NOT NULL;
    IF NEW.action = 'password_recovery' THEN
        -- others may have seen the mail of earlier tokens
        PERFORM tokens_end(NEW.account, '{password_recovery}', 'another recovery of its account was used');
    -- one statement may consume several tokens of an account
    ELSIF NOT account_activate(NEW.account) AND account_status(NEW.account) IS DISTINCT FROM 'active' THEN
        RAISE EXCEPTION 'account % of token % can''t be activated now', NEW.account, NEW.id
            USING ERRCODE = 'serialization_failure', SCHEMA = 'lifecycle', TABLE = 'tokens';
    END IF;
    RETURN NULL;
END $$;
COMMENT ON FUNCTION tokens_consumed IS
    'Activates the account, or ends its other recoveries, and withdraws mail that is not sent yet.';
CREATE TRIGGER tokens_consumed AFTER UPDATE OF consumed_at ON tokens FOR EACH ROW
    WHEN (OLD.consumed_at IS NULL AND NEW.consumed_at IS NOT NULL) EXECUTE FUNCTION tokens_consumed();
COMMENT ON TRIGGER tokens_consumed ON tokens IS 'The account is activated in the transaction of its token.';

CREATE FUNCTION tokens_deleted() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = lifecycle, pg_catalog, pg_temp AS $$
BEGIN
    DELETE FROM waiting_tokens WHERE priority = token_priority(OLD.action) AND token = OLD.id;
    PERFORM pgmta.withdraw(ARRAY[OLD.message_id], 'its token was deleted') WHERE OLD.message_id IS NOT NULL;
    RETURN NULL;
END $$;
COMMENT ON FUNCTION tokens_deleted IS 'Withdraws mail that is not sent yet.';
CREATE TRIGGER tokens_deleted AFTER DELETE ON tokens FOR EACH ROW EXECUTE FUNCTION tokens_deleted();
COMMENT ON TRIGGER tokens_deleted ON tokens IS 'Also if its account was deleted.';
CREATE TRIGGER tokens_truncated BEFORE TRUNCATE ON tokens EXECUTE FUNCTION truncate_refused();
COMMENT ON TRIGGER tokens_truncated ON tokens IS 'Mail is withdrawn row by row.';

CREATE FUNCTION tokens_end(account bigint, actions token_action[], why text) RETURNS void LANGUAGE plpgsql
    SET search_path = lifecycle, pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    mails bigint[];
BEGIN
    -- This statement waits for a collector that has locked such a token; the next one sees its mail.
    DELETE FROM waiting_tokens AS w USING tokens AS t
    WHERE t.account = tokens_end.account AND t.action = ANY (actions) AND w.token = t.id
        AND w.priority = token_priority(t.action);
    WITH ended AS (
        UPDATE tokens AS t SET expires_at = epoch()
        WHERE t.account = tokens_end.account AND t.action = ANY (actions) AND t.consumed_at IS NULL
            AND t.expires_at > epoch()
        RETURNING t.message_id
    )
    SELECT array_agg(message_id ORDER BY message_id) INTO mails FROM ended WHERE message_id IS NOT NULL;
    PERFORM pgmta.withdraw(mails, why);
END $$;
COMMENT ON FUNCTION tokens_end IS
    'Lets the tokens of an account expire that were not consumed, and withdraws mail that is not sent yet.';

CREATE FUNCTION mailbox_changed(account bigint) RETURNS void LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = lifecycle, pg_catalog, pg_temp AS $$
#variable_conflict use_column
BEGIN
    PERFORM tokens_end(mailbox_changed.account, '{activation,password_recovery}', 'its account has another mailbox');
    DELETE FROM proofs AS p WHERE p.account = mailbox_changed.account;
    PERFORM pgmta.prove_earlier();
END $$;
COMMENT ON FUNCTION mailbox_changed IS
    'To be called after the mailbox of an account changed, before account_changed(): who has only the earlier mailbox '
    'can neither activate nor recover the account. Its tokens end, their mail is withdrawn, and its proofs are deleted. '
    'A bound application calls it in a trigger of its own.';

CREATE FUNCTION account_changed(account bigint) RETURNS void LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = lifecycle, pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    state text := account_status(account_changed.account);
    mails bigint[];
BEGIN
    -- This statement waits for a collector that has locked such a token; the next one sees its mail.
    DELETE FROM waiting_tokens AS w USING tokens AS t
    WHERE t.account = account_changed.account AND w.token = t.id AND w.priority = token_priority(t.action)
        AND NOT token_fits(t.action, state);
    SELECT array_agg(t.message_id ORDER BY t.message_id) INTO mails FROM tokens AS t
    WHERE t.account = account_changed.account AND t.consumed_at IS NULL AND t.message_id IS NOT NULL
        AND NOT token_fits(t.action, state);
    PERFORM pgmta.withdraw(mails, 'its account is ' || coalesce(state, 'deleted'));
    INSERT INTO waiting_tokens (priority, token)
    SELECT token_priority(t.action), t.id FROM tokens AS t
    WHERE t.account = account_changed.account AND t.consumed_at IS NULL AND t.collected_at IS NULL
        AND t.expires_at > epoch() AND token_fits(t.action, state)
    ON CONFLICT DO NOTHING;
    IF FOUND THEN
        PERFORM pgmta.notify_channel('token_insert');
        PERFORM pgmta.notify_channel('token_inserted');
    END IF;
    -- the mail of an earlier token was withdrawn, or never made
    IF token_fits('activation', state) AND NOT EXISTS (
            SELECT FROM tokens AS t WHERE t.account = account_changed.account AND t.action = 'activation'
                AND t.consumed_at IS NULL AND t.collected_at IS NULL AND t.expires_at > epoch()) THEN
        INSERT INTO tokens (action, account) VALUES ('activation', account_changed.account);
    END IF;
    PERFORM pgmta.prove_earlier();
END $$;
COMMENT ON FUNCTION account_changed IS
    'To be called after the status of an account changed: withdraws mail that no longer fits, lets tokens that fit '
    'again wait for theirs, and makes one if none is left. A bound application calls it in a trigger of its own.';

-- How a token is asked for, consumed and refused.

CREATE TABLE proofs (
    hash bytea PRIMARY KEY,
    account bigint NOT NULL,
    expires_at timestamptz NOT NULL DEFAULT now() + interval '15 minutes'
);
COMMENT ON TABLE proofs IS 'Recoveries that the application has not taken yet.';
COMMENT ON COLUMN proofs.hash IS 'SHA-256 of the proof.';
COMMENT ON COLUMN proofs.account IS 'The account whose owner has proved to have its mailbox.';
COMMENT ON COLUMN proofs.expires_at IS 'The proof can''t be taken from then on.';

CREATE FUNCTION token_refusal(token tokens, status text) RETURNS text VOLATILE
RETURN CASE WHEN token.id IS NULL THEN 'unknown'
    WHEN token.consumed_at IS NOT NULL THEN 'consumed'
    WHEN token.expires_at <= floor(extract(epoch FROM clock_timestamp())) THEN 'expired'
    WHEN token.failures >= 5 THEN 'locked'
    WHEN NOT token_fits(token.action, status) THEN 'ineligible' END;
COMMENT ON FUNCTION token_refusal IS
    'Why a token can''t be consumed while its account has a status: unknown, consumed, expired, locked or ineligible; '
    'null if it can.';

CREATE FUNCTION token_consume(
    secret bytea, action text, OUT account bigint, OUT login text, OUT proof text, OUT why text
) LANGUAGE plpgsql SECURITY DEFINER SET search_path = lifecycle, pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    token tokens;
    status text;
BEGIN
    SELECT * INTO token FROM tokens AS t WHERE t.secret = token_consume.secret AND t.action::text = token_consume.action;
    -- without locks, which would need a commit to disk: each refusal takes the same time
    why := token_refusal(token, account_status(token.account));
    IF why IS NOT NULL THEN RETURN; END IF;
    -- the account first, as a change of its status does
    status := account_lock(token.account);
    -- a bound application does not lock its accounts, and the use of a recovery ends the others
    PERFORM pg_advisory_xact_lock('lifecycle.tokens'::regclass::oid::integer, hashint8(token.account))
    WHERE token.action = 'password_recovery';
    SELECT * INTO token FROM tokens AS t WHERE t.id = token.id FOR NO KEY UPDATE;
    why := token_refusal(token, status);
    IF why IS NOT NULL THEN RETURN; END IF;
    UPDATE tokens AS t SET consumed_at = epoch() WHERE t.id = token.id;
    IF NOT FOUND THEN
        why := 'expired';  -- between the look and this statement
        RETURN;
    END IF;
    account := token.account;
    SELECT a.login INTO login FROM account_rows(ARRAY[token.account]) AS a;
    IF token.action = 'password_recovery' THEN
        proof := translate(encode(token_secret(), 'base64'), '+/=', '-_');
        INSERT INTO proofs (hash, account) VALUES (sha256(convert_to(proof, 'UTF8')), token.account);
        DELETE FROM proofs WHERE expires_at < now() - interval '1 hour';
    END IF;
END $$;
COMMENT ON FUNCTION token_consume IS
    'Consumes a token whose signature was verified, once, and returns its account and, for a recovery, a proof for '
    'proof_take(). `why` is null, or why it was refused: unknown, consumed, expired, locked or ineligible.';

CREATE FUNCTION token_failed(secret bytea) RETURNS boolean LANGUAGE sql SECURITY DEFINER
    SET search_path = lifecycle, pg_catalog, pg_temp AS $$
    WITH counted AS (
        UPDATE tokens AS t SET failures = t.failures + 1
        WHERE t.secret = token_failed.secret AND t.action = 'password_recovery' AND t.consumed_at IS NULL
            AND t.failures < 5
        RETURNING true
    )
    SELECT count(*) > 0 FROM counted
$$;
COMMENT ON FUNCTION token_failed IS
    'Counts a wrong code for a token of recovery, and returns whether there is one that is not locked. The code is part '
    'of the signature, so who verifies it calls this.';

CREATE FUNCTION token_locked(secret bytea) RETURNS boolean LANGUAGE sql SECURITY DEFINER
    SET search_path = lifecycle, pg_catalog, pg_temp AS $$
    -- a write, because it fails whenever a wrong code could not be counted either
    WITH asked AS (UPDATE tokens AS t SET failures = t.failures WHERE t.secret = token_locked.secret RETURNING t.failures)
    SELECT count(*) > 0 FROM asked WHERE failures >= 5
$$;
COMMENT ON FUNCTION token_locked IS
    'Whether too many codes were wrong for a token. Who says that a code is right asks this before, so that nobody learns '
    'a code while wrong ones can''t be counted.';

CREATE FUNCTION token_again(account bigint, wanted token_action) RETURNS void LANGUAGE plpgsql
    SET search_path = lifecycle, pg_catalog, pg_temp AS $$
#variable_conflict use_column
BEGIN
    IF NOT token_fits(wanted, account_lock(token_again.account)) THEN
        PERFORM pgmta.prove_earlier();
        RETURN;
    END IF;
    -- of clients that ask together the second sees the token of the first: the next statement has a new
    -- snapshot. A bound application does not lock its accounts
    PERFORM pg_advisory_xact_lock('lifecycle.tokens'::regclass::oid::integer, hashint8(token_again.account));
    -- the owner gets one mail, however often a client asks
    INSERT INTO tokens (action, account) SELECT wanted, token_again.account
    WHERE NOT EXISTS (
        SELECT FROM tokens AS t WHERE t.account = token_again.account AND t.action = wanted
            AND t.consumed_at IS NULL AND t.failures < 5 AND t.expires_at > epoch()
            AND abs(t.created_at - epoch()) < 60);  -- a later time is of a clock that was set back
    IF NOT FOUND THEN PERFORM pgmta.prove_earlier(); END IF;
END $$;
COMMENT ON FUNCTION token_again IS 'Makes a token for an account whose status fits, at most one per minute.';

CREATE FUNCTION recover(name text) RETURNS void LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = lifecycle, pg_catalog, pg_temp AS $$
DECLARE
    found bigint;
BEGIN
    FOREACH found IN ARRAY coalesce(account_named(recover.name), '{}') LOOP
        PERFORM token_again(found, 'password_recovery');
    END LOOP;
END $$;
COMMENT ON FUNCTION recover IS
    'Makes a token of recovery for the active account with this login, or with this mailbox in any spelling, at most one '
    'per minute. Says nothing of whether there is one.';

CREATE FUNCTION activate_again(account bigint) RETURNS void LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = lifecycle, pg_catalog, pg_temp AS $$
BEGIN
    PERFORM token_again(activate_again.account, 'activation');
END $$;
COMMENT ON FUNCTION activate_again IS
    'Makes another token of activation for an account that is provisioned, at most one per minute.';

CREATE FUNCTION proof_take(proof text, OUT account bigint, OUT login text) RETURNS SETOF record
LANGUAGE plpgsql SECURITY DEFINER SET search_path = lifecycle, pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    taken proofs;
BEGIN
    DELETE FROM proofs AS p WHERE p.hash = sha256(convert_to(proof_take.proof, 'UTF8')) RETURNING * INTO taken;
    IF taken.expires_at > now() THEN
        RETURN QUERY SELECT a.id, a.login FROM account_rows(ARRAY[taken.account]) AS a WHERE a.status = 'active';
    END IF;
END $$;
COMMENT ON FUNCTION proof_take IS
    'Takes the proof of a recovery, once within 15 minutes, and returns the account; no row for any other text.';

-- Tokens and collections of the schema lifecycle are kept for a time, and go in batches.

CREATE FUNCTION lifecycle_installed() RETURNS boolean LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    -- a schema that another login made is none of ours
    SELECT EXISTS (
        SELECT FROM pg_class AS c JOIN pg_class AS ours ON ours.oid = 'pgmta.messages'::regclass
        WHERE c.oid = to_regclass('lifecycle.installation') AND c.relowner = ours.relowner)
$$;
COMMENT ON FUNCTION lifecycle_installed IS 'Whether there is a schema lifecycle of the owner of the queue.';

CREATE FUNCTION lifecycle_expire(tokens interval, collections interval, batch integer) RETURNS integer LANGUAGE plpgsql
    SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET jit = off AS $$
DECLARE
    removed integer;
    more integer;
BEGIN
    IF NOT pgmta.lifecycle_installed() THEN RETURN 0; END IF;
    EXECUTE 'DELETE FROM lifecycle.tokens AS t WHERE t.id = ANY (ARRAY(
            SELECT o.id FROM lifecycle.tokens AS o WHERE o.expires_at < extract(epoch FROM now() - $1)
            ORDER BY o.id LIMIT $2 FOR UPDATE SKIP LOCKED))' USING tokens, batch;
    GET DIAGNOSTICS removed = ROW_COUNT;
    EXECUTE 'DELETE FROM lifecycle.collections AS c WHERE c.id = ANY (ARRAY(
            SELECT o.id FROM lifecycle.collections AS o WHERE o.ended_at < now() - $1
            ORDER BY o.id LIMIT $2 FOR UPDATE SKIP LOCKED))' USING collections, batch;
    GET DIAGNOSTICS more = ROW_COUNT;
    RETURN removed + more;
END $$;
COMMENT ON FUNCTION lifecycle_expire IS
    'Removes one batch of old tokens and collections of the schema lifecycle, if it is installed; returns how many.';

INSERT INTO rights (object, role, privileges) VALUES
    ('FUNCTION lifecycle_expire', 'pgmta_queued', 'EXECUTE');

CREATE FUNCTION forget_tokens(key text, part text, dry boolean) RETURNS jsonb LANGUAGE plpgsql
    SET search_path = pgmta, pg_catalog, pg_temp SET jit = off AS $$
DECLARE
    number bigint := 0;
BEGIN
    IF lifecycle_installed() THEN
        IF dry THEN
            EXECUTE 'SELECT count(*) FROM lifecycle.tokens AS t WHERE t.email IS NOT NULL AND mailbox_key(t.email) = $1'
                INTO number USING key;
        ELSE
            EXECUTE 'DELETE FROM lifecycle.tokens AS t WHERE t.email IS NOT NULL AND mailbox_key(t.email) = $1' USING key;
            GET DIAGNOSTICS number = ROW_COUNT;
        END IF;
    END IF;
    RETURN jsonb_build_object('tokens', number);
END $$;
COMMENT ON FUNCTION forget_tokens IS
    'The part of forget() for tokens that were mailed to an address without an account. Accounts are the application''s affair.';
INSERT INTO forget_functions (name, place, function) VALUES ('tokens', 3, 'forget_tokens');

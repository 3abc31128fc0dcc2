-- Tokens and collections of the schema lifecycle are kept for a time, and go in batches.

CREATE FUNCTION lifecycle_expire(tokens interval, collections interval, batch integer) RETURNS integer LANGUAGE plpgsql
    SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET jit = off AS $$
DECLARE
    removed integer;
    more integer;
BEGIN
    -- a schema that another login made is none of ours
    IF NOT EXISTS (
            SELECT FROM pg_class AS c JOIN pg_class AS ours ON ours.oid = 'pgmta.messages'::regclass
            WHERE c.oid = to_regclass('lifecycle.installation') AND c.relowner = ours.relowner) THEN
        RETURN 0;
    END IF;
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

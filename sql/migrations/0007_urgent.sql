-- Urgent mail has an index of its own: docs/decisions/0023-urgent.md.

-- Few rows are in it, so that it costs intake nothing. Its key is an expression that only claims of
-- urgent rows name: with the plain column the planner may take queue_domain_due for them.
CREATE INDEX queue_urgent ON queue (lower(domain), priority, next_attempt) WHERE priority <= 3;
COMMENT ON INDEX queue_urgent IS
    'Claims of urgent rows, destination by destination, where many are due.';

-- A row trigger of that name belongs to schemas that count for each row. Here bodies are counted once,
-- by the statement.
CREATE OR REPLACE FUNCTION messages_refcount_func() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER
    SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off
    SET search_path = pg_catalog, pg_temp
    AS $$
DECLARE
    ids bigint[];
    large bigint[];
BEGIN
    IF TG_LEVEL = 'ROW' OR TG_OP <> 'DELETE' THEN
        RETURN coalesce(NEW, OLD);
    END IF;
    SELECT array_agg(DISTINCT message_id) INTO ids FROM gone;
    -- Locks in id order: of two transactions that delete the last two rows of a message, the
    -- second waits here and then sees what the first has left.
    PERFORM FROM public.messages WHERE id = ANY (ids) ORDER BY id FOR UPDATE;
    -- No join, which NOT EXISTS would be: a partition that was empty when the plan was made would
    -- later be read as a whole for each message (docs/decisions/0005).
    ids := ARRAY(SELECT one FROM unnest(ids) AS one
        WHERE (SELECT true FROM public.queue AS q WHERE q.message_id = one LIMIT 1) IS NULL);
    WITH unreferenced AS (
        DELETE FROM public.messages WHERE id = ANY (ids) RETURNING id, chunks
    )
    SELECT array_agg(id) INTO large FROM unreferenced WHERE chunks > 0;
    IF large IS NOT NULL THEN
        DELETE FROM public.message_chunks WHERE message_id = ANY (large);
    END IF;
    RETURN NULL;
END $$;
COMMENT ON FUNCTION messages_refcount_func() IS
    'Removes the bodies that the deleted rows were the last to refer to. A statement trigger: rows '
    'that move between partitions do not fire it. As a row trigger it does nothing.';

-- A condition may fail on the values of one row with any error: docs/decisions/0022-faults.md.

CREATE OR REPLACE FUNCTION queue_test(condition text, ids bigint[])
    RETURNS TABLE (id bigint, error text) LANGUAGE plpgsql STABLE AS $$
DECLARE
    matching bigint[];
    blank public.queue;
    one public.queue;
    says boolean;
    state text := '00000';
    half integer := cardinality(ids) / 2;
    single text := format(
        E'SELECT (\n%s\n) FROM (SELECT ($1).*) AS queue',
        regexp_replace(condition, '\mpublic\s*\.\s*queue\M', 'queue', 'gi'));
BEGIN
    IF cardinality(ids) = 0 THEN RETURN; END IF;
    BEGIN
        -- In FILTER the parts of the condition are evaluated as they are written: WHERE orders them.
        EXECUTE format(
            E'SELECT array_agg(id) FILTER (WHERE (\n%s\n)) FROM public.queue WHERE id = ANY ($1)', condition)
            INTO matching USING ids;
    EXCEPTION WHEN OTHERS THEN
        -- what the server can't do now is about no row
        IF SQLSTATE ~ '^(08|25|40|53|57|58|55P03|XX001|XX002)' THEN RAISE; END IF;
        state := SQLSTATE;
    END;
    IF state ~ '^(0A|2F|3F|42)' OR 0 = ANY (ids) THEN
        -- Casts to jsonpath, tsquery or regconfig blame the text of the statement for a value. What is
        -- refused on a row without values as well is refused whatever the row.
        blank.id := 0;
        blank.message_id := 0;
        blank.ts := now();
        blank.next_attempt := now();
        blank.attempts := 0;
        blank.priority := 5;
        blank.status := 'QUEUED';
        blank.sender := '';
        blank.sender_domain := '';
        blank.recipient := '';
        blank.domain := '';
        blank.metadata := '{}';
        BEGIN
            EXECUTE single INTO says USING blank;
        EXCEPTION WHEN OTHERS THEN
            IF SQLSTATE ~ '^(0A|2F|3F|42|08|25|40|53|57|58|55P03|XX001|XX002)' THEN RAISE; END IF;
        END;
    END IF;
    IF state = '00000' THEN
        RETURN QUERY SELECT hit, NULL::text FROM unnest(matching) AS hit;
        RETURN;
    ELSIF half > 8 THEN
        RETURN QUERY SELECT * FROM public.queue_test(condition, ids[:half]);
        RETURN QUERY SELECT * FROM public.queue_test(condition, ids[half + 1:]);
        RETURN;
    END IF;
    -- Few rows are tried singly, each as a row of its own: to plan for the partitions costs most.
    FOR one IN SELECT * FROM public.queue AS q WHERE q.id = ANY (ids) LOOP
        id := one.id;
        error := NULL;
        BEGIN
            EXECUTE single INTO says USING one;
        EXCEPTION WHEN OTHERS THEN
            IF SQLSTATE ~ '^(08|25|40|53|57|58|55P03|XX001|XX002)' THEN RAISE; END IF;
            says := true;
            error := left(SQLERRM, 500);
        END;
        IF says THEN RETURN NEXT; END IF;
    END LOOP;
END $$;
COMMENT ON FUNCTION queue_test(text, bigint[]) IS
    'Of these rows of queue those that the condition matches, and those on which it fails, with the '
    'error. Where it fails it tries the halves, and few rows singly. Fails itself where PostgreSQL '
    'refuses the condition for a row without values as well; the id 0 asks for that alone.';

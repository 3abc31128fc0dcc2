-- Callbacks: what a provider says later of mail that it took.

CREATE FUNCTION callbacks_note(
    hosts text[], tenants text[],
    -- arrays with a value for each event
    messages bigint[], rows bigint[], kinds text[], classes text[], codes text[], sub_types text[], words text[], ats timestamptz[]
) RETURNS text[] LANGUAGE plpgsql SECURITY DEFINER SET search_path = pgmta, pg_catalog, pg_temp SET jit = off
    -- a plan that was made while the partition of a day was small would later read all of it
    SET enable_seqscan = off AS $$
DECLARE
    event record;
    taker text;
    rows_metadata jsonb[] := array_fill(NULL::jsonb, ARRAY[cardinality(messages)]);
    outcomes text[] := array_fill('unknown'::text, ARRAY[cardinality(messages)]);
BEGIN
    FOR event IN
        SELECT e.place, e.message, e.row_id, e.kind, e.code, e.sub_type, e.words,
            CASE e.kind WHEN 'bounced' THEN 'unknown_user' WHEN 'failed' THEN coalesce(nullif(e.class, ''), 'other') END AS class,
            least(greatest(coalesce(e.at, now()), a.started_at), now()) AS at,
            a.ended_at, a.lease_token, a.event, a.metadata,
            -- by the same snapshot as the log: the outcome comes with the end of the lease
            a.ended_at IS NULL AND EXISTS (
                SELECT FROM queue AS q WHERE q.id = e.row_id AND q.message_id = e.message AND q.lease_until IS NOT NULL
            ) AS early
        FROM unnest(messages, rows, kinds, classes, codes, sub_types, words, ats) WITH ORDINALITY
            AS e (message, row_id, kind, class, code, sub_type, words, at, place)
        LEFT JOIN LATERAL (
            SELECT a.started_at, a.ended_at, a.lease_token, a.event, a.recipient, a.domain, a.tenant, a.metadata FROM attempts AS a
            WHERE a.message_id = e.message AND a.row_id = e.row_id AND a.event IN ('delivered', 'unknown')
                AND a.host = ANY (hosts) AND (tenants IS NULL OR a.tenant = ANY (tenants))
            ORDER BY a.ended_at DESC LIMIT 1
        ) AS a ON true
        -- all lock in this order: first addresses as suppressions_put() does, because triggers of the log suppress
        ORDER BY mailbox_key(left(a.recipient, -length(split_part(a.recipient, '@', -1))) || a.domain),
            a.tenant COLLATE "default", e.message, e.row_id, e.place
    LOOP
        IF event.ended_at IS NULL THEN
            IF event.early THEN outcomes[event.place] := 'early'; END IF;
            CONTINUE;
        END IF;
        UPDATE attempts AS a SET
            class = coalesce(event.class, a.class),
            returned_at = CASE WHEN event.class IS NULL THEN a.returned_at ELSE event.at END,
            returned = CASE WHEN event.class IS NULL THEN a.returned
                ELSE left(concat_ws(' ', nullif(event.code, ''), nullif(event.sub_type, ''), nullif(event.words, '')), 1020) END,
            confirmed_at = CASE event.kind WHEN 'delivered' THEN event.at ELSE a.confirmed_at END,
            complained_at = CASE event.kind WHEN 'complained' THEN event.at ELSE a.complained_at END
        WHERE a.message_id = event.message AND a.row_id = event.row_id AND a.ended_at = event.ended_at
            AND a.lease_token = event.lease_token AND CASE event.kind WHEN 'delivered' THEN a.confirmed_at IS NULL
                WHEN 'complained' THEN a.complained_at IS NULL WHEN 'failed' THEN a.returned_at IS NULL
                -- this class wins over whatever came first, because there is no such mailbox
                ELSE a.returned_at IS NULL OR NOT is_hard_bounce(a.class) END;
        IF NOT FOUND THEN
            outcomes[event.place] := 'known';
            PERFORM prove_earlier();
            CONTINUE;
        END IF;
        outcomes[event.place] := 'new';
        IF event.kind = 'delivered' AND event.event = 'unknown' THEN
            -- as a late outcome of the worker would do; a row in flight is settled by its own outcome
            DELETE FROM queue AS q WHERE q.id = (
                SELECT w.id FROM queue AS w
                WHERE w.id = event.row_id AND w.message_id = event.message AND w.lease_until IS NULL
                    AND w.status IN ('QUEUED', 'DEFERRED', 'HOLD') AND coalesce(w.notify COLLATE "C" !~* 'success', true)
                FOR UPDATE SKIP LOCKED);
            UPDATE attempts AS a SET event = 'delivered'
            WHERE a.message_id = event.message AND a.row_id = event.row_id AND a.ended_at = event.ended_at
                AND a.lease_token = event.lease_token AND NOT EXISTS (SELECT FROM queue AS q WHERE q.id = event.row_id);
        END IF;
        rows_metadata[event.place] := event.metadata;
        ats[event.place] := event.at;
    END LOOP;
    -- Triggers of the log have suppressed addresses by now: all who write outcomes lock suppressions first.
    FOR event IN
        SELECT e.place, e.message, e.kind, e.code, coalesce(nullif(e.sub_type, ''), e.class) AS sub_type
        FROM unnest(messages, rows, kinds, classes, codes, sub_types) WITH ORDINALITY
            AS e (message, row_id, kind, class, code, sub_type, place)
        WHERE outcomes[e.place] = 'new' ORDER BY e.message, e.row_id, e.place
    LOOP
        FOR taker IN SELECT f.function FROM event_functions AS f LOOP
            EXECUTE format('SELECT %I($1, $2, $3, $4, $5, $6)', taker)
            USING event.message, rows_metadata[event.place], event.kind, event.code, event.sub_type, ats[event.place];
        END LOOP;
    END LOOP;
    RETURN outcomes;
END $$;
COMMENT ON FUNCTION callbacks_note IS
    'Notes in the log what a provider says of mail that it took: delivered, bounced, failed or complained. A failure may have '
    'an answer class, else it is other. The attempt has to have gone to one of the hosts, and be of one of the tenants (null: '
    'of any). Returns of each event: new; known (it was noted before); early (the attempt is not in the log yet); or unknown '
    '(the log has none). A proof of the caller comes first.';

INSERT INTO rights (object, role, privileges) VALUES
    ('FUNCTION callbacks_note', 'pgmta_web', 'EXECUTE');

-- What keys of the HTTP API see of mail, and the changes that they make. A key has no right to a table of the queue.

CREATE FUNCTION api_view(OUT who text, OUT tenant text, OUT sees text) LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path = pgmta, pg_catalog, pg_temp AS $$
    SELECT 'key:' || k.name, k.tenant, k.sees FROM api_keys AS k
    WHERE k.name = CASE WHEN acting() LIKE 'key:%' THEN substr(acting()::text, 5) END AND k.revoked_at IS NULL
$$;
COMMENT ON FUNCTION api_view IS 'For which key this session acts, and whose mail that key sees; nulls if it acts for none.';

CREATE FUNCTION api_in_view(who text, own_tenant text, sees text, submitted_by text, tenant text) RETURNS boolean
    IMMUTABLE PARALLEL SAFE
RETURN coalesce(submitted_by = who OR sees = 'all' OR sees = 'tenant' AND tenant = own_tenant, false);
COMMENT ON FUNCTION api_in_view IS
    'Whether a key sees mail: what it submitted itself, and by `sees` that of its tenant or all.';

CREATE FUNCTION api_message(id bigint) RETURNS TABLE (
    accepted_at timestamptz, size bigint, sender text, tenant text, message_id_header text, submitted_by text, template text,
    version integer, metadata jsonb
) LANGUAGE plpgsql STABLE SECURITY DEFINER ROWS 1 SET search_path = pgmta, pg_catalog, pg_temp SET jit = off AS $$
#variable_conflict use_column
DECLARE
    viewer record;
BEGIN
    SELECT v.* INTO viewer FROM api_view() AS v;
    RETURN QUERY
        SELECT m.received_at, m.size, coalesce(q.sender, a.sender), f.tenant, coalesce(m.message_id_header, a.message_id_header),
            f.submitted_by, t.name, t.version, event_metadata(coalesce(q.metadata, a.metadata)) -> 'metadata'
        FROM (SELECT api_message.id AS id) AS g
        LEFT JOIN messages AS m ON m.id = g.id
        LEFT JOIN templates AS t ON t.id = m.template_id
        LEFT JOIN LATERAL (
            SELECT o.sender, o.metadata FROM queue AS o WHERE o.message_id = g.id ORDER BY o.id LIMIT 1
        ) AS q ON true
        LEFT JOIN LATERAL (
            SELECT o.message_id, o.sender, o.tenant, o.message_id_header, o.submitted_by, o.metadata
            FROM attempts AS o WHERE o.message_id = g.id ORDER BY o.ended_at LIMIT 1
        ) AS a ON true
        CROSS JOIN LATERAL (SELECT CASE WHEN m.id IS NULL THEN a.tenant ELSE m.tenant END AS tenant,
            CASE WHEN m.id IS NULL THEN a.submitted_by ELSE m.submitted_by END AS submitted_by) AS f
        WHERE (m.id IS NOT NULL OR a.message_id IS NOT NULL)
            AND api_in_view(viewer.who, viewer.tenant, viewer.sees, f.submitted_by, f.tenant);
END $$;
COMMENT ON FUNCTION api_message IS
    'A message, in the queue or gone, if the key sees it. One that is gone has no time, size and template.';

CREATE FUNCTION api_rows(messages bigint[], rows bigint[]) RETURNS TABLE (
    place bigint, message_id bigint, row_id bigint, recipient text, state text, attempts integer, next_attempt timestamptz,
    at timestamptz, code integer, enhanced text, reply text, class text, host text, returned_at timestamptz, returned text,
    complained_at timestamptz, sender text, tenant text, message_id_header text, submitted_by text, metadata jsonb,
    status text, lease_until timestamptz, send_at timestamptz, held_by text, hold_reason text, hold_until timestamptz,
    report_kind text, priority smallint, last_reply text, malformed boolean, domain text
) LANGUAGE sql STABLE SET search_path = pgmta, pg_catalog, pg_temp AS $$
    SELECT w.place, w.message_id, w.row_id, coalesce(q.recipient, a.recipient),
        -- as its event
        CASE WHEN s.state = 'failed' AND a.event = 'failed' AND a.class = 'expired' THEN 'expired' ELSE s.state END,
        coalesce(q.attempts, a.attempt), q.next_attempt,
        CASE WHEN q.row_id IS NULL THEN a.ended_at
            ELSE coalesce(q.since, CASE WHEN q.attempts > 0 THEN a.ended_at END, q.ts) END,
        CASE WHEN q.row_id IS NULL THEN nullif(a.code, 0) ELSE q.code END, nullif(a.enhanced, ''),
        CASE WHEN q.row_id IS NULL THEN nullif(a.reply, '') ELSE nullif(q.reply, '') END, a.class, nullif(a.host, ''),
        a.returned_at, a.returned, a.complained_at, coalesce(r.sender, a.sender), coalesce(r.tenant, a.tenant),
        coalesce(m.message_id_header, a.message_id_header), CASE WHEN m.id IS NULL THEN a.submitted_by ELSE m.submitted_by END,
        event_metadata(CASE WHEN r.id IS NULL THEN a.metadata ELSE r.metadata END) -> 'metadata',
        -- of a row in the queue
        r.status, r.lease_until, r.send_at, CASE WHEN r.held_by LIKE 'key:%' AND r.held_under IS NULL THEN r.held_by
            WHEN r.held_under IS NOT NULL THEN 'a rule' WHEN r.report_kind IS NOT NULL THEN 'queued' ELSE 'an operator' END,
        r.hold_reason, r.hold_until, r.report_kind, r.priority, r.last_reply,
        queue_malformed(r.sender, r.recipient, r.domain), r.domain
    FROM unnest(messages, rows) WITH ORDINALITY AS w (message_id, row_id, place)
    LEFT JOIN LATERAL (
        SELECT s.* FROM queue_states AS s WHERE s.row_id = w.row_id AND s.message_id = w.message_id LIMIT 1
    ) AS q ON true
    LEFT JOIN LATERAL (SELECT o.* FROM queue AS o WHERE o.id = q.row_id LIMIT 1) AS r ON true
    LEFT JOIN messages AS m ON m.id = w.message_id
    LEFT JOIN LATERAL (
        SELECT o.* FROM attempts AS o WHERE o.message_id = w.message_id AND o.row_id = w.row_id
        ORDER BY o.attempt DESC, o.event = 'deferred', o.ended_at DESC, o.event <> 'unknown' LIMIT 1
    ) AS a ON true
    CROSS JOIN LATERAL (SELECT CASE WHEN q.row_id IS NULL THEN log_state(a.event)
        ELSE row_state(q.status, q.lease_until, q.report_kind, q.once, q.attempts, a.attempt, a.event) END) AS s (state)
    WHERE q.row_id IS NOT NULL OR a.row_id IS NOT NULL
$$;
COMMENT ON FUNCTION api_rows IS
    'Recipients by message and row, each with its state as message_status has it, but expired as its event. The caller checks '
    'who may see them. '
    'Names of operators, rules and workers stay here.';

CREATE FUNCTION api_recipients(message bigint, after bigint, most integer) RETURNS TABLE (
    row_id bigint, recipient text, state text, attempts integer, next_attempt timestamptz, at timestamptz, code integer,
    enhanced text, reply text, class text, host text, returned_at timestamptz, returned text, complained_at timestamptz,
    status text, lease_until timestamptz, send_at timestamptz, held_by text, hold_reason text, hold_until timestamptz,
    report_kind text, priority smallint, last_reply text, malformed boolean, sender text, suppressed text, worker boolean
) LANGUAGE plpgsql STABLE SECURITY DEFINER ROWS 100 SET search_path = pgmta, pg_catalog, pg_temp SET jit = off
    SET enable_seqscan = off AS $$
#variable_conflict use_column
DECLARE
    ids bigint[];
    worker CONSTANT boolean := EXISTS (SELECT FROM workers AS w
        WHERE w.action = 'deliver' AND w.seen_at > now() - interval '1 minute');
BEGIN
    PERFORM FROM api_message(message);
    IF NOT FOUND THEN RETURN; END IF;
    ids := ARRAY(
        SELECT q.id FROM queue AS q WHERE q.message_id = message AND q.id > after
        UNION SELECT a.row_id FROM attempts AS a WHERE a.message_id = message AND a.row_id > after
        ORDER BY 1 LIMIT most);
    RETURN QUERY
        WITH found AS MATERIALIZED (
            SELECT * FROM api_rows(array_fill(message, ARRAY[cardinality(ids)]), ids)
        ), words AS MATERIALIZED (
            SELECT suppressed_because(array_agg(f.tenant ORDER BY f.place), array_agg(mail_scope(q.metadata) ORDER BY f.place),
                array_agg(row_address(f.recipient, f.domain) ORDER BY f.place)) AS words,
                array_agg(f.row_id ORDER BY f.place) AS rows
            FROM found AS f JOIN queue AS q ON q.id = f.row_id
            WHERE f.status IN ('QUEUED', 'DEFERRED', 'SCHEDULED', 'HOLD') AND NOT q.metadata ? '_exempt'
        )
        SELECT f.row_id, f.recipient, f.state, f.attempts, f.next_attempt, f.at, f.code, f.enhanced, f.reply, f.class, f.host,
            f.returned_at, f.returned, f.complained_at, f.status, f.lease_until, f.send_at, f.held_by, f.hold_reason,
            f.hold_until, f.report_kind, f.priority, f.last_reply, f.malformed, f.sender,
            w.words[array_position(w.rows, f.row_id)], worker
        FROM found AS f CROSS JOIN words AS w ORDER BY f.row_id;
END $$;
COMMENT ON FUNCTION api_recipients IS
    'The recipients of a message behind a row, each with its state and what a sentence on its wait needs: `suppressed` says '
    'why it gets no mail, `worker` whether one that delivers runs. Nothing if the key does not see the message.';

CREATE FUNCTION api_attempts(message bigint, after_at timestamptz, after_row bigint, after_token bigint, most integer)
RETURNS TABLE (
    ended_at timestamptz, row_id bigint, lease_token bigint, recipient text, attempt integer, started_at timestamptz, event text,
    code integer, enhanced text, reply text, class text, command text, host text, tls_version text, tls_verified text,
    returned_at timestamptz, returned text, confirmed_at timestamptz, complained_at timestamptz
) LANGUAGE plpgsql STABLE SECURITY DEFINER ROWS 100 SET search_path = pgmta, pg_catalog, pg_temp SET jit = off AS $$
#variable_conflict use_column
BEGIN
    PERFORM FROM api_message(message);
    IF NOT FOUND THEN RETURN; END IF;
    RETURN QUERY
        SELECT a.ended_at, a.row_id, a.lease_token, a.recipient, a.attempt, a.started_at, a.event, nullif(a.code, 0)::integer,
            nullif(a.enhanced, ''), nullif(a.reply, ''), a.class, nullif(a.command, ''), nullif(a.host, ''), a.tls_version,
            a.tls_verified, a.returned_at, a.returned, a.confirmed_at, a.complained_at
        FROM attempts AS a
        WHERE a.message_id = message
            AND (after_at IS NULL OR (a.ended_at, a.row_id, a.lease_token) > (after_at, after_row, after_token))
        ORDER BY a.ended_at, a.row_id, a.lease_token LIMIT most;
END $$;
COMMENT ON FUNCTION api_attempts IS
    'The log of a message behind an entry, the oldest one first. Nothing if the key does not see the message.';

CREATE FUNCTION api_search(
    states text[], ids bigint[], recipients text[], reverse_path text, header text, words jsonb, owner text, since timestamptz,
    until timestamptz, before bigint, after bigint, most integer, seconds double precision
) RETURNS TABLE (
    message_id bigint, row_id bigint, recipient text, state text, attempts integer, next_attempt timestamptz, at timestamptz,
    code integer, enhanced text, reply text, class text, sender text, tenant text, message_id_header text, metadata jsonb
) LANGUAGE plpgsql STABLE SECURITY DEFINER ROWS 100 SET search_path = pgmta, pg_catalog, pg_temp SET jit = off
    -- days that the time range leaves out are not planned for; fresh days have no statistics
    SET plan_cache_mode = force_custom_plan SET enable_seqscan = off SET max_parallel_workers_per_gather = 0 AS $$
#variable_conflict use_variable
DECLARE
    judged CONSTANT integer := 200;  -- rows whose states are looked up at a time
    begun CONSTANT timestamptz := clock_timestamp();
    -- where rows in these states are: row_state() and log_state()
    statuses CONSTANT text[] := CASE WHEN states IS NULL OR 'sending' = ANY (states)
        THEN '{QUEUED,DEFERRED,SENDING,HOLD,DELETE,SCHEDULED,REPORT}'
        ELSE ARRAY(SELECT DISTINCT unnest(CASE WHEN s IN ('scheduled', 'queued') THEN '{QUEUED,SCHEDULED}'
            WHEN s = 'deferred' THEN '{DEFERRED}' WHEN s = 'held' THEN '{HOLD}' WHEN s = 'cancelled' THEN '{DELETE}'
            WHEN s = 'suppressed' THEN '{DELETE,REPORT}' ELSE '{HOLD,REPORT}' END::text[])
            FROM unnest(states) AS s) END;
    events CONSTANT text[] := ARRAY(SELECT DISTINCT unnest(CASE s WHEN 'unknown' THEN '{unknown,deferred}'
            WHEN 'cancelled' THEN '{cancelled,deleted}' WHEN 'expired' THEN '{expired,failed}' ELSE ARRAY[s] END::text[])
        FROM unnest(states) AS s WHERE s NOT IN ('scheduled', 'queued', 'deferred', 'sending', 'held'));
    by_index CONSTANT boolean := ids IS NOT NULL OR recipients IS NOT NULL;
    chunk CONSTANT integer := CASE WHEN by_index THEN 2147483647 ELSE 2000 END;
    oldest CONSTANT timestamptz := coalesce(since, CASE WHEN by_index THEN '-infinity' ELSE least(until, now()) - interval '1 day' END);
    viewer record;
    top bigint := before;
    after_row bigint := after;
    bottom bigint;
    messages bigint[];
    rows bigint[];
    number integer := 0;
    each record;
BEGIN
    SELECT v.* INTO viewer FROM api_view() AS v;
    IF viewer.who IS NULL THEN RETURN; END IF;
    LOOP
        -- Down the ids of messages, which never change, whatever becomes of a row. Each part ends with a whole message.
        WITH queued AS MATERIALIZED (
            SELECT q.message_id, q.id AS row_id, q.sender, q.recipient, q.tenant, q.metadata, q.ts
            FROM queue AS q
            WHERE q.message_id <= top AND q.status = ANY (statuses)
                AND (ids IS NULL OR q.message_id = ANY (ids)) AND (recipients IS NULL OR q.recipient = ANY (recipients))
            ORDER BY q.message_id DESC FETCH FIRST (chunk) ROWS WITH TIES
        ), logged AS MATERIALIZED (
            SELECT a.message_id, a.row_id, a.sender, a.tenant, a.metadata, a.submitted_by, a.message_id_header
            FROM attempts AS a
            WHERE (states IS NULL OR a.event = ANY (events)) AND a.message_id <= top
                -- below that the next part begins
                AND a.message_id >= coalesce((
                    SELECT CASE WHEN count(*) >= chunk THEN min(q.message_id) END FROM queued AS q), 0)
                AND a.ended_at >= oldest AND a.ended_at < until
                AND (ids IS NULL OR a.message_id = ANY (ids)) AND (recipients IS NULL OR a.recipient = ANY (recipients))
            ORDER BY a.message_id DESC FETCH FIRST (chunk) ROWS WITH TIES
        ), part AS (
            SELECT greatest(
                (SELECT CASE WHEN count(*) >= chunk THEN min(q.message_id) END FROM queued AS q),
                (SELECT CASE WHEN count(*) >= chunk THEN min(l.message_id) END FROM logged AS l)) AS bottom
        ), found AS (
            SELECT q.message_id, q.row_id
            FROM queued AS q JOIN messages AS m ON m.id = q.message_id
            WHERE api_in_view(viewer.who, viewer.tenant, viewer.sees, m.submitted_by, q.tenant)
                AND q.ts < until
                AND (reverse_path IS NULL OR q.sender = reverse_path) AND (owner IS NULL OR q.tenant = owner)
                AND (header IS NULL OR m.message_id_header = header) AND (words IS NULL OR api_has_words(q.metadata, words))
            UNION
            SELECT l.message_id, l.row_id FROM logged AS l
            WHERE api_in_view(viewer.who, viewer.tenant, viewer.sees, l.submitted_by, l.tenant)
                AND (reverse_path IS NULL OR l.sender = reverse_path) AND (owner IS NULL OR l.tenant = owner)
                AND (header IS NULL OR l.message_id_header = header) AND (words IS NULL OR api_has_words(l.metadata, words))
        )
        SELECT array_agg(f.message_id ORDER BY f.message_id DESC, f.row_id),
            array_agg(f.row_id ORDER BY f.message_id DESC, f.row_id), min(p.bottom)
        INTO messages, rows, bottom
        FROM part AS p LEFT JOIN found AS f ON f.message_id >= coalesce(p.bottom, f.message_id)
            AND (f.message_id < before OR f.row_id > after);
        FOR start IN 1 .. coalesce(cardinality(rows), 0) BY judged LOOP
            FOR each IN
                SELECT r.* FROM api_rows(messages[start : start + judged - 1], rows[start : start + judged - 1]) AS r
                ORDER BY r.place
            LOOP
                CONTINUE WHEN each.at < since
                    OR states IS NOT NULL AND each.state <> ALL (states)
                        -- failed mail that waits for a release has the state of its outcome
                        AND NOT ('held' = ANY (states) AND each.status IS NOT DISTINCT FROM 'HOLD');
                IF number >= most THEN  -- there is another one, so the page has a next one
                    message_id := top;
                    row_id := after_row;
                    RETURN NEXT;
                    RETURN;
                END IF;
                number := number + 1;
                top := each.message_id;
                after_row := each.row_id;
                RETURN QUERY SELECT each.message_id, each.row_id, each.recipient, each.state, each.attempts, each.next_attempt,
                    each.at, each.code, each.enhanced, each.reply, each.class, each.sender, each.tenant, each.message_id_header,
                    each.metadata;
            END LOOP;
            -- all that was judged needs no second look
            top := messages[least(start + judged - 1, cardinality(rows))];
            after_row := rows[least(start + judged - 1, cardinality(rows))];
            IF clock_timestamp() > begun + seconds * interval '1 second' AND start + judged - 1 < cardinality(rows) THEN
                message_id := top;
                row_id := after_row;
                state := 'late';
                RETURN NEXT;
                RETURN;
            END IF;
        END LOOP;
        EXIT WHEN bottom IS NULL;
        top := bottom - 1;
        after_row := 0;
        IF clock_timestamp() > begun + seconds * interval '1 second' THEN
            message_id := bottom;
            row_id := 9223372036854775807;
            state := 'late';
            RETURN NEXT;
            RETURN;
        END IF;
    END LOOP;
END $$;
COMMENT ON FUNCTION api_search IS
    'Recipients of mail that a key sees, by the ids of their messages downwards, from row `after` of message `before` on. Null: '
    'any. From `since` to `until`; without `since` mail in the queue is found whatever its age, and the rest by its attempts of '
    'the last day, or all of it with ids or recipients. If there is more, the last row has no recipient, and says behind which row: after `most` rows, or with the '
    'state late after so many seconds.';

CREATE FUNCTION api_has_words(metadata jsonb, words jsonb) RETURNS boolean LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT coalesce(bool_and(coalesce(metadata ->> key = value, false)), true) FROM jsonb_each_text(words) AS w (key, value)
$$;
COMMENT ON FUNCTION api_has_words IS 'Whether metadata has these values, compared as texts.';

CREATE FUNCTION api_change(
    action text, message bigint, recipients text[], reason text, OUT changed integer, OUT absent text[], OUT known text[],
    OUT states jsonb
) LANGUAGE plpgsql SECURITY DEFINER SET search_path = pgmta, pg_catalog, pg_temp SET standard_conforming_strings = on AS $$
#variable_conflict use_variable
DECLARE
    chances integer := CASE current_setting('transaction_isolation') WHEN 'read committed' THEN 10 ELSE 1 END;
    viewer record;
    wanted bigint[];  -- the rows of the recipients; null: all of the message
    ids bigint[];
BEGIN
    IF length(reason) > 500 OR reason ~ '[\u0001-\u001f\u007f]' COLLATE "C" THEN
        PERFORM submit_refuse('reason', 'it is over 500 characters or has control characters');
    END IF;
    SELECT v.* INTO viewer FROM api_view() AS v;
    PERFORM FROM api_message(message);
    IF NOT FOUND THEN RETURN; END IF;
    IF recipients IS NOT NULL THEN
        WITH named AS MATERIALIZED (
            SELECT q.id, q.recipient FROM queue AS q WHERE q.message_id = message
            UNION SELECT a.row_id, a.recipient FROM attempts AS a WHERE a.message_id = message
        )
        SELECT array_agg(n.id) FILTER (
                WHERE mailbox_key(n.recipient) = ANY (ARRAY(SELECT mailbox_key(r) FROM unnest(recipients) AS r))),
            ARRAY(SELECT r FROM unnest(recipients) AS r
                WHERE mailbox_key(r) <> ALL (ARRAY(SELECT mailbox_key(o.recipient) FROM named AS o))),
            (array_agg(n.recipient))[1:1000]
        INTO wanted, absent, known FROM named AS n;
        IF absent <> '{}' THEN
            changed := 0;
            RETURN;
        END IF;
    END IF;
    IF action = 'cancel' THEN
        changed := withdraw(ARRAY[message], reason, rows => wanted);
    ELSE
        FOR chance IN 1 .. chances LOOP
            BEGIN
                ids := ARRAY(
                    SELECT q.id FROM queue AS q
                    WHERE q.message_id = message AND (wanted IS NULL OR q.id = ANY (wanted))
                        AND CASE action WHEN 'hold' THEN q.status NOT IN ('HOLD', 'DELETE', 'REPORT')
                            -- not what an operator, a rule, a quarantine or an outcome holds
                            ELSE q.status = 'HOLD' AND q.held_under IS NULL AND q.report_kind IS NULL
                                AND NOT q.metadata ? '_quarantineid' AND EXISTS (
                                    SELECT FROM api_keys AS k WHERE 'key:' || k.name = q.held_by
                                        AND (k.name = substr(viewer.who, 5) OR k.tenant = viewer.tenant)) END
                    ORDER BY q.id FOR UPDATE);
                changed := queue_change_rows(action, ids, viewer.who, jsonb_build_object('reason',
                    coalesce(reason, 'by the HTTP API')));
                EXIT;
            EXCEPTION WHEN serialization_failure OR deadlock_detected THEN
                IF chance = chances THEN RAISE; END IF;  -- raised if a row moved to another partition meanwhile
            END;
        END LOOP;
        IF changed > 0 THEN
            INSERT INTO audit (who, action, condition, details, rows, finished_at)
            VALUES (viewer.who, action, 'message_id = ' || message, jsonb_strip_nulls(jsonb_build_object('reason', reason)),
                changed, clock_timestamp());
            IF action = 'release' THEN PERFORM notify_channel('pgmta_queue'); END IF;
        END IF;
    END IF;
    -- an earlier call, whose commit may be unproven, may have changed them
    IF changed = 0 THEN PERFORM prove_earlier(); END IF;
    ids := coalesce(wanted, ARRAY(
        SELECT q.id FROM queue AS q WHERE q.message_id = message
        UNION SELECT a.row_id FROM attempts AS a WHERE a.message_id = message
        ORDER BY 1 LIMIT 1000));
    SELECT jsonb_object_agg(s.state, s.number) INTO states FROM (
        SELECT r.state, count(*) AS number FROM api_rows(array_fill(message, ARRAY[cardinality(ids)]), ids) AS r GROUP BY r.state
    ) AS s;
END $$;
COMMENT ON FUNCTION api_change IS
    'Cancels, holds or releases a message, or some recipients of it, for a key that sees it. Null: the key sees no such '
    'message. Recipients that it does not have are in `absent`, those that it has in `known`, and nothing is changed then. '
    '`states` says how many of them are now in which state, of the first 1000 if none are named. A key releases only what a '
    'key of its own tenant has held.';

CREATE FUNCTION api_usage(day date) RETURNS TABLE (
    delivered bigint, deferred bigint, bounced bigint, "unknown" bigint, expired bigint, cancelled bigint, suppressed bigint,
    returned bigint, complained bigint
) LANGUAGE plpgsql STABLE SECURITY DEFINER ROWS 1 SET search_path = pgmta, pg_catalog, pg_temp SET jit = off
    -- only the partition of the day is planned for
    SET plan_cache_mode = force_custom_plan SET max_parallel_workers_per_gather = 0 AS $$
#variable_conflict use_column
DECLARE
    viewer record;
    since CONSTANT timestamptz := day::timestamp AT TIME ZONE 'UTC';
    until CONSTANT timestamptz := (day + 1)::timestamp AT TIME ZONE 'UTC';
BEGIN
    SELECT v.* INTO viewer FROM api_view() AS v;
    RETURN QUERY
        SELECT count(*) FILTER (WHERE a.event = 'delivered'), count(*) FILTER (WHERE a.event = 'deferred'),
            count(*) FILTER (WHERE a.event = 'failed' AND a.class IS DISTINCT FROM 'expired'),
            count(*) FILTER (WHERE a.event = 'unknown'),
            count(*) FILTER (WHERE a.event = 'expired' OR a.event = 'failed' AND a.class = 'expired'),
            count(*) FILTER (WHERE a.event IN ('cancelled', 'deleted')),
            count(*) FILTER (WHERE a.event = 'suppressed'), count(a.returned_at), count(a.complained_at)
        FROM attempts AS a
        WHERE a.ended_at >= since AND a.ended_at < until
            AND api_in_view(viewer.who, viewer.tenant, viewer.sees, a.submitted_by, a.tenant);
END $$;
COMMENT ON FUNCTION api_usage IS
    'What the log of a day (UTC) says of the mail that a key sees: entries by their event, and how many of the deliveries came '
    'back or were complained about, up to now.';

CREATE FUNCTION api_events(after text, most integer, kinds text[]) RETURNS TABLE (
    cursor text, id text, kind text, document json
) LANGUAGE plpgsql STABLE SECURITY DEFINER ROWS 100 SET search_path = pgmta, pg_catalog, pg_temp AS $$
DECLARE
    viewer record;
BEGIN
    SELECT v.* INTO viewer FROM api_view() AS v;
    IF viewer.who IS NULL THEN RETURN; END IF;
    IF NOT EXISTS (SELECT FROM event_subscriptions AS s WHERE s.name = viewer.who) THEN
        RAISE EXCEPTION 'the key does not subscribe to events' USING ERRCODE = 'PG404', HINT = 'events_reader() subscribes it.';
    END IF;
    RETURN QUERY
        SELECT e.cursor, e.id, e.kind, e.document
        FROM events_read(after, most, kinds, CASE WHEN viewer.sees NOT IN ('tenant', 'all') THEN viewer.who END,
            CASE WHEN viewer.sees = 'tenant' THEN viewer.tenant END) AS e;
END $$;
COMMENT ON FUNCTION api_events IS
    'The events behind a cursor that the key sees, as events_read() returns them. Raises PG404 if the key does not subscribe.';

INSERT INTO rights (object, role, privileges) VALUES
    ('FUNCTION api_message', 'pgmta_api', 'EXECUTE'),
    ('FUNCTION api_recipients', 'pgmta_api', 'EXECUTE'),
    ('FUNCTION api_attempts', 'pgmta_api', 'EXECUTE'),
    ('FUNCTION api_search', 'pgmta_api', 'EXECUTE'),
    ('FUNCTION api_change', 'pgmta_api', 'EXECUTE'),
    ('FUNCTION api_usage', 'pgmta_api', 'EXECUTE'),
    ('FUNCTION api_events', 'pgmta_api', 'EXECUTE');

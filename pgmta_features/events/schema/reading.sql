-- Readers: the events behind a cursor, with their documents.

CREATE FUNCTION events_end() RETURNS text LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path = pgmta, pg_catalog, pg_temp SET enable_seqscan = off AS $$
    SELECT format('%s.%s.%s', (SELECT max(h.history) FROM event_history AS h), events_last(), 2147483647)
$$;
COMMENT ON FUNCTION events_end IS 'The cursor behind all events that have a number.';

CREATE FUNCTION events_since(instant timestamptz) RETURNS text LANGUAGE plpgsql STABLE SECURITY DEFINER
    SET search_path = pgmta, pg_catalog, pg_temp SET enable_seqscan = off SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    low bigint := coalesce((SELECT l.number FROM event_log AS l ORDER BY l.number LIMIT 1), events_last() + 1);
    high bigint := events_last() + 1;  -- the first number at or after the time is in [low, high]
    middle bigint;
BEGIN
    WHILE low < high LOOP
        middle := (low + high) / 2;
        -- a number may be missing: an event of an earlier day that came late expires before those around it
        IF (SELECT l.numbered_at FROM event_log AS l WHERE l.number >= middle ORDER BY l.number LIMIT 1) >= instant THEN
            high := middle;
        ELSE
            low := middle + 1;
        END IF;
    END LOOP;
    RETURN format('%s.%s.%s', (SELECT max(h.history) FROM event_history AS h), low - 1, 2147483647);
END $$;
COMMENT ON FUNCTION events_since IS
    'A cursor before all kept events since a time. Some older ones may be behind it, too, whose transactions ended later.';

CREATE FUNCTION event_cursor(of_commit bigint, of_at timestamptz, of_place integer) RETURNS text LANGUAGE sql STABLE
    SECURITY DEFINER SET search_path = pgmta, pg_catalog, pg_temp SET enable_seqscan = off AS $$
    -- it has a number since it was written
    SELECT format('%s.%s.%s', near[1], l.number, of_place - 1)
    FROM (SELECT string_to_array(events_since(of_at), '.')) AS s (near), LATERAL (
        SELECT l.number FROM event_log AS l WHERE l.number > near[2]::bigint AND l.commit = of_commit ORDER BY l.number LIMIT 1
    ) AS l
$$;
COMMENT ON FUNCTION event_cursor IS 'The cursor before an event; null: it has no number yet.';

CREATE FUNCTION event_position(cursor text, OUT number bigint, OUT place integer) LANGUAGE plpgsql STABLE
    SET search_path = pgmta, pg_catalog, pg_temp SET enable_seqscan = off AS $$
DECLARE
    parts CONSTANT text[] := regexp_match(cursor, '^([0-9]{1,18})[.]([0-9]{1,18})[.]([0-9]{1,10})$');
    last bigint;
BEGIN
    IF parts IS NULL OR parts[3]::bigint > 2147483647 THEN
        RAISE EXCEPTION '% is no cursor of pgmta', to_json(left(cursor, 100)) USING ERRCODE = 'invalid_parameter_value',
            HINT = 'It has the form HISTORY.NUMBER.PLACE.';
    END IF;
    number := parts[2];
    place := parts[3];
    IF parts[1]::bigint = (SELECT max(h.history) FROM event_history AS h)
            AND EXISTS (SELECT FROM event_log AS l WHERE l.number = event_position.number) THEN
        RETURN;  -- as nearly always, and found faster than the reason of a fault
    END IF;
    SELECT CASE WHEN h.history = max(h.history) OVER () THEN events_last() ELSE h.last END INTO last
    FROM event_history AS h ORDER BY h.history = parts[1]::bigint DESC LIMIT 1;
    IF NOT EXISTS (SELECT FROM event_history AS h WHERE h.history = parts[1]::bigint) OR last >= 0 AND number > last THEN
        RAISE EXCEPTION 'cursor % is of events that this database does not have', cursor USING ERRCODE = 'PG409',
            HINT = 'Events were lost with a server, or it is another database. events_since(time) gives the cursor of a time: '
                'choose one before that, and leave out the ids that you know.';
    END IF;
    IF last = -1 THEN
        RAISE EXCEPTION 'events behind cursor % were not written: for a while nobody subscribed', cursor USING ERRCODE = 'PG409',
            HINT = 'events_since(time) gives the cursor of a time. What became of mail meanwhile is in message_status.';
    END IF;
    IF number + 1 < (SELECT l.number FROM event_log AS l ORDER BY l.number LIMIT 1) THEN
        RAISE EXCEPTION 'events behind cursor % have expired', cursor USING ERRCODE = 'PG409',
            HINT = 'Read on without a cursor: that begins with the first event that is kept.';
    END IF;
END $$;
COMMENT ON FUNCTION event_position IS
    'The place of a cursor. One of another history than the present is known as long as nothing before it was lost.';

CREATE FUNCTION event_time(at timestamptz) RETURNS text STABLE PARALLEL SAFE
RETURN to_char(at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"');
COMMENT ON FUNCTION event_time IS 'A time as documents have it (RFC 3339, in UTC).';

CREATE FUNCTION event_metadata(metadata jsonb) RETURNS jsonb IMMUTABLE PARALLEL SAFE
RETURN (
    SELECT CASE WHEN own = '{}' THEN own ELSE jsonb_build_object('metadata', own) END
    FROM (SELECT metadata - ARRAY(SELECT k FROM jsonb_object_keys(metadata) AS k WHERE starts_with(k, '_'))) AS m (own));
COMMENT ON FUNCTION event_metadata IS 'The part of a document with the metadata of a row, without the keys of pgmta.';

CREATE FUNCTION events_read(
    after text, most integer, kinds text[] DEFAULT NULL, viewer text DEFAULT NULL, tenant text DEFAULT NULL,
    of_commit bigint DEFAULT NULL, of_at timestamptz DEFAULT NULL,
    behind integer DEFAULT NULL, last integer DEFAULT NULL
) RETURNS TABLE (cursor text, id text, kind text, at timestamptz, message_id bigint, row_id bigint, document json)
    LANGUAGE plpgsql STABLE SECURITY DEFINER ROWS 100 SET search_path = pgmta, pg_catalog, pg_temp
    -- a plan that was made for empty days would later read all of them
    SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off
    SET jit = off SET plan_cache_mode = force_generic_plan SET max_parallel_workers_per_gather = 0 AS $$
#variable_conflict use_column
DECLARE
    max_recipients CONSTANT integer := 10000;  -- in a document: the message of a campaign has very many
    max_looks CONSTANT integer := 10000;  -- at events of which few fit: bounds the time of a call
    max_octets CONSTANT integer := 1000000;  -- of documents, but two at least: if one is refused, another one shows why
    leeway CONSTANT interval := '1 hour';  -- between clocks
    wanted CONSTANT integer := least(greatest(most, 0), 10000);
    looks CONSTANT integer := CASE WHEN kinds IS NULL AND viewer IS NULL AND tenant IS NULL THEN wanted ELSE max_looks END;
    history CONSTANT bigint := (SELECT max(h.history) FROM event_history AS h);
    start bigint := 0;
    start_place integer := 0;
    numbers bigint[] := '{0}';
    commits bigint[] := ARRAY[of_commit];
    sizes integer[] := ARRAY[last];
    -- These bounds name the days that are read, before a plan is made ready: for all days that takes longer than a page.
    first_at timestamptz := of_at;
    last_at timestamptz := of_at;
    first_ended_at timestamptz;
    last_ended_at timestamptz;
    unended_since timestamptz;
    fitting mail_events[];
    their_numbers bigint[];
    reached text;
    shown integer := 0;
    octets bigint := 0;
BEGIN
    IF wanted = 0 THEN RETURN; END IF;
    IF of_commit IS NULL THEN
        IF after IS NOT NULL THEN SELECT p.number, p.place INTO start, start_place FROM event_position(after) AS p; END IF;
        SELECT array_agg(n.number), array_agg(n.commit), array_agg(n.events), min(n.at), max(n.at)
        INTO numbers, commits, sizes, first_at, last_at
        FROM (
            SELECT l.number, l.commit, l.events, l.at FROM event_log AS l
            WHERE l.number >= start AND (l.number > start OR start_place < l.events)
            ORDER BY l.number LIMIT looks) AS n;
        IF numbers IS NULL THEN RETURN; END IF;
    END IF;
    WITH looked AS (
        SELECT s.number, e.event, (e.event).place, (e.event).kind, (e.event).at, (e.event).ended_at
        FROM (
            SELECT r.*, sum(r.size - r.read) OVER (ORDER BY r.number) - r.size + r.read AS earlier
            FROM (
                SELECT n.*, CASE WHEN of_commit IS NOT NULL THEN behind WHEN n.number = start THEN start_place ELSE 0 END AS read
                FROM unnest(numbers, commits, sizes) AS n (number, commit, size)) AS r
        ) AS s, LATERAL (
            SELECT e AS event, e.place FROM mail_events AS e
            WHERE e.commit = s.commit AND e.at >= first_at AND e.at <= last_at AND e.place > s.read AND e.place <= s.size
            ORDER BY e.place LIMIT looks) AS e
        WHERE s.earlier < looks ORDER BY s.number, e.place LIMIT looks)
    SELECT array_agg(l.event) FILTER (WHERE f.fits), array_agg(l.number) FILTER (WHERE f.fits), min(l.ended_at), max(l.ended_at),
        min(l.at) FILTER (WHERE l.ended_at IS NULL),
        CASE WHEN count(*) = looks THEN (array_agg(l.number || '.' || l.place))[looks]
            ELSE numbers[cardinality(numbers)] || '.' || sizes[cardinality(sizes)] END
    INTO fitting, their_numbers, first_ended_at, last_ended_at, unended_since, reached
    FROM looked AS l, LATERAL (SELECT kinds IS NULL OR l.kind = ANY (kinds) AS fits) AS f;
    reached := history || '.' || reached;
    FOR cursor, id, kind, at, message_id, row_id, document IN
        SELECT history || '.' || s.number || '.' || s.place, s.commit || '-' || s.place, s.kind, s.happened_at, s.message_id,
            s.row_id, concat('{"id":"', s.commit, '-', s.place, '","type":"mail.', s.kind, '","time":"', event_time(s.happened_at),
                '"', ',"message_id":"' || s.message_id || '"', ',"recipient":' || to_json(s.recipient),
                ',"recipients":' || to_json(s.recipients), ',"sender":' || to_json(s.sender),
                ',"tenant":' || to_json(nullif(s.tenant, '')), ',"message_id_header":' || to_json(s.message_id_header),
                ',"submitted_by":' || to_json(s.submitted_by),
                CASE WHEN s.metadata <> '{}' THEN ',"metadata":' || (event_metadata(s.metadata) -> 'metadata')::text END,
                ',"attempt":' || nullif(s.attempt, 0),
                ',"code":' || CASE WHEN s.back THEN substring(s.returned FROM '^([245][0-9][0-9])( |$)')::integer
                    ELSE nullif(s.code, 0) END,
                ',"enhanced":' || to_json(CASE WHEN s.back
                    THEN substring(s.returned FROM '^[0-9]{3} ([245][.][0-9]+[.][0-9]+)( |$)') ELSE nullif(s.enhanced, '') END),
                ',"reply":' || to_json(CASE WHEN s.back THEN s.returned WHEN NOT s.is_end THEN nullif(s.reply, '') END),
                ',"class":' || to_json(CASE WHEN s.kind IN ('deferred', 'bounced', 'unknown', 'expired') THEN s.class END),
                ',"host":' || to_json(nullif(s.host, '')),
                ',"reason":' || to_json(CASE WHEN s.is_end THEN nullif(s.reply, '') ELSE s.detail ->> 'reason' END),
                ',"late":' || s.late, '}')::json
        FROM (
            SELECT f.*,
                CASE WHEN f.ended_at IS NULL OR f.detail IS NOT NULL THEN f.at ELSE f.ended_at END AS happened_at,
                f.kind = 'bounced' AND f.detail IS NOT NULL AS back, f.kind IN ('cancelled', 'suppressed') AS is_end,
                a.attempt, a.code, a.enhanced, a.reply, a.class, a.host, a.returned, a.late,
                coalesce(a.recipient, CASE WHEN f.row_id > 0 THEN o.recipients[1] END, f.detail ->> 'recipient') AS recipient,
                CASE f.kind WHEN 'accepted' THEN o.recipients END AS recipients,
                coalesce(a.sender, o.sender) AS sender,
                coalesce(a.tenant, m.tenant, o.tenant, f.detail ->> 'tenant') AS tenant,
                coalesce(a.message_id_header, m.message_id_header, o.message_id_header) AS message_id_header,
                coalesce(a.submitted_by, m.submitted_by, o.submitted_by) AS submitted_by,
                coalesce(a.metadata, o.metadata) AS metadata
            FROM unnest(fitting, their_numbers) WITH ORDINALITY AS f (
                at, commit, place, kind, message_id, row_id, lease_token, ended_at, detail, number, n)
            LEFT JOIN LATERAL (
                SELECT * FROM attempts AS a
                WHERE a.message_id = f.message_id AND a.row_id = f.row_id AND a.lease_token = f.lease_token
                    AND a.ended_at >= first_ended_at AND a.ended_at <= last_ended_at
                    AND a.ended_at IS NOT DISTINCT FROM f.ended_at  -- with = the days would be chosen again for each event
                LIMIT 1
            ) AS a ON true
            LEFT JOIN messages AS m ON m.id = f.message_id AND f.ended_at IS NULL
            LEFT JOIN LATERAL (  -- the rows of an event that is about no entry of the log: in the queue, or in the log later on
                SELECT array_agg(DISTINCT r.recipient) AS recipients, min(r.sender) AS sender, min(r.tenant) AS tenant,
                    (array_agg(r.metadata))[1] AS metadata, min(r.message_id_header) AS message_id_header,
                    min(r.submitted_by) AS submitted_by
                FROM (
                    (SELECT q.recipient, q.sender, q.tenant, q.metadata, NULL AS message_id_header, NULL AS submitted_by
                    FROM queue AS q WHERE f.row_id IS NULL AND q.message_id = f.message_id LIMIT max_recipients)
                    UNION ALL
                    SELECT q.recipient, q.sender, q.tenant, q.metadata, NULL, NULL FROM queue AS q WHERE q.id = f.row_id
                    UNION ALL
                    (SELECT a.recipient, a.sender, a.tenant, a.metadata, a.message_id_header, a.submitted_by
                    FROM attempts AS a
                    WHERE f.row_id IS NULL AND a.message_id = f.message_id
                        AND a.ended_at >= unended_since - leeway AND a.ended_at <= now() + leeway
                    LIMIT max_recipients)
                    UNION ALL
                    SELECT a.recipient, a.sender, a.tenant, a.metadata, a.message_id_header, a.submitted_by
                    FROM attempts AS a
                    WHERE a.message_id = f.message_id AND a.row_id = f.row_id
                        AND a.ended_at >= unended_since - leeway AND a.ended_at <= now() + leeway
                ) AS r
                WHERE f.ended_at IS NULL  -- here, and not behind ON, where both tables would be read for each event
            ) AS o ON true
        ) AS s
        WHERE (events_read.viewer IS NULL OR s.submitted_by = events_read.viewer)
            AND (events_read.tenant IS NULL OR s.tenant = events_read.tenant)
        ORDER BY s.n LIMIT wanted
    LOOP
        shown := shown + 1;
        octets := octets + octet_length(document::text);
        RETURN NEXT;
        -- the query makes a document only when it is wanted, or one of the next 50
        IF octets > max_octets AND shown > 1 AND of_commit IS NULL THEN RETURN; END IF;
    END LOOP;
    IF shown < wanted AND reached IS DISTINCT FROM cursor THEN
        cursor := reached;
        id := NULL; kind := NULL; at := NULL; message_id := NULL; row_id := NULL; document := NULL;
        RETURN NEXT;
    END IF;
END $$;
COMMENT ON FUNCTION events_read IS
    'The events behind a cursor in their order, at most so many, and until their documents have 1 MB, but not less than two; '
    'without a cursor from the first that is kept. Only of these '
    'kinds, of mail that `viewer` submitted, of this tenant; null: all. A last row without an id '
    'has the place that the call reached, if events there do not fit: read on from its cursor. No row: there is nothing behind '
    'the cursor yet. Raises PG409 if events were lost or have expired. With `of_commit` and its time the events of this statement '
    'instead, which may have no number yet, with places in (behind, last].';

INSERT INTO rights (object, role, privileges) VALUES
    ('FUNCTION events_end', 'pgmta_queued', 'EXECUTE'),
    ('FUNCTION events_end', 'pgmta_operator', 'EXECUTE'),
    ('FUNCTION events_end', 'pgmta_reader', 'EXECUTE'),
    ('FUNCTION events_end', 'pgmta_api', 'EXECUTE'),
    ('FUNCTION event_cursor', 'pgmta_operator', 'EXECUTE'),
    ('FUNCTION events_since', 'pgmta_queued', 'EXECUTE'),
    ('FUNCTION events_since', 'pgmta_operator', 'EXECUTE'),
    ('FUNCTION events_since', 'pgmta_reader', 'EXECUTE'),
    ('FUNCTION events_since', 'pgmta_api', 'EXECUTE'),
    ('FUNCTION events_read', 'pgmta_queued', 'EXECUTE'),
    ('FUNCTION events_read', 'pgmta_operator', 'EXECUTE'),
    ('FUNCTION events_read', 'pgmta_reader', 'EXECUTE');

-- Scheduled mail: send_at in the future.

COMMENT ON SEQUENCE queue_ids IS
    'queue.id of rows that are not scheduled; a sequence, as PostgreSQL 15 has no identity on leaves.';
COMMENT ON COLUMN queue.id IS 'Of this row; unique by queue_ids, or by scheduled_ids.';
COMMENT ON COLUMN queue.ts IS 'From when its age counts: when its transaction began, or send_at of scheduled mail.';
COMMENT ON COLUMN queue.send_at IS 'The row is not sent before this time; null: at once.';

ALTER TABLE queue_scheduled SET (
    autovacuum_vacuum_scale_factor = 0.1,
    autovacuum_vacuum_threshold = 2000,
    autovacuum_vacuum_insert_threshold = -1,
    autovacuum_vacuum_cost_delay = 0,
    autovacuum_analyze_scale_factor = 0.2,
    autovacuum_analyze_threshold = 20000
);

-- The row watch looks at queue_ids, so that a commit of rows that wait wakes no worker (docs/decisions/0093).
CREATE SEQUENCE scheduled_ids START WITH 1000000000000000;
COMMENT ON SEQUENCE scheduled_ids IS 'queue.id of rows that come in as SCHEDULED, far above those of queue_ids.';

CREATE FUNCTION schedule_ahead() RETURNS interval IMMUTABLE PARALLEL SAFE RETURN interval '2 seconds';
COMMENT ON FUNCTION schedule_ahead IS 'How long before its send_at a row gets among those that claims look at.';

CREATE FUNCTION schedule_times(INOUT send_ats timestamptz[], OUT scheduled boolean[]) LANGUAGE plpgsql
    SET search_path = pgmta, pg_catalog, pg_temp AS $$
DECLARE
    present timestamptz := clock_timestamp();
BEGIN
    SELECT array_agg(CASE WHEN at > present THEN at END ORDER BY n),
        array_agg(coalesce(at > present + schedule_ahead(), false) ORDER BY n)
    INTO send_ats, scheduled
    FROM unnest(schedule_times.send_ats) WITH ORDINALITY AS given (at, n);
END $$;
COMMENT ON FUNCTION schedule_times IS
    'Part of queue_put: of the times those in the future, and which of them wait in SCHEDULED. The others are so near '
    'that their rows are QUEUED at once.';

CREATE FUNCTION schedule_due(batch integer) RETURNS bigint LANGUAGE plpgsql
    -- A plan that was made for an empty partition would later read, or sort, the whole of it.
    SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET enable_bitmapscan = off AS $$
DECLARE
    due bigint[] := ARRAY(
        SELECT id FROM pgmta.queue
        WHERE status = 'SCHEDULED' AND send_at <= now() + pgmta.schedule_ahead()
        ORDER BY send_at LIMIT batch FOR UPDATE SKIP LOCKED);
    moved bigint;
BEGIN
    IF cardinality(due) = 0 THEN RETURN 0; END IF;
    UPDATE pgmta.queue SET status = 'QUEUED', next_attempt = send_at
    WHERE id = ANY (due) AND status = 'SCHEDULED';
    GET DIAGNOSTICS moved = ROW_COUNT;
    RETURN moved;
END $$;
COMMENT ON FUNCTION schedule_due IS
    'Moves one batch of scheduled rows whose time is near, or over, to QUEUED; they are due at their send_at. Returns '
    'their number.';

CREATE FUNCTION queue_not_early() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF OLD.status IN ('HOLD', 'DELETE', 'REPORT') THEN
        NEW.status := 'SCHEDULED';
    END IF;
    NEW.next_attempt := greatest(NEW.next_attempt, NEW.send_at);
    RETURN NEW;
END $$;
COMMENT ON FUNCTION queue_not_early IS
    'No row is due before its send_at, whoever changes it. One that is released before waits in SCHEDULED again.';

-- after queue_hold_stamp, by its name: a release makes a row due. For nearly all rows it is one comparison with null.
CREATE TRIGGER queue_send_at BEFORE UPDATE OF status, next_attempt ON queue FOR EACH ROW
    WHEN (NEW.send_at > now() AND NEW.status IN ('QUEUED', 'DEFERRED')) EXECUTE FUNCTION queue_not_early();
COMMENT ON TRIGGER queue_send_at ON queue IS 'Never before send_at, whatever an operator or worker does.';

INSERT INTO rights (object, role, privileges) VALUES
    ('FUNCTION schedule_due', 'pgmta_queued', 'EXECUTE'),
    ('FUNCTION schedule_ahead', 'pgmta_queued', 'EXECUTE');

DROP FUNCTION queue_put(bigint[], bigint[], text[], bytea[], text[], text[], text[], text[], smallint[], integer[],
    text[], text[], boolean[], integer[], text[], text[], boolean[], text[], text[], text[], boolean[], boolean[],
    text[], text[], text[], text[]);
CREATE FUNCTION queue_put(
    -- of each message
    ids bigint[], sizes bigint[], traces text[], bodies bytea[], message_id_headers text[], origins text[],
    senders text[], sender_domains text[], priorities smallint[],
    -- of each row: the number of its message from 1, and the recipient
    numbers integer[], recipients text[], domains text[],
    -- more of each message
    utf8 boolean[] DEFAULT NULL, chunks integer[] DEFAULT NULL, tenants text[] DEFAULT NULL,
    on_failed text[] DEFAULT NULL, once boolean[] DEFAULT NULL, logins text[] DEFAULT NULL,
    envids text[] DEFAULT NULL, rets text[] DEFAULT NULL, requiretls boolean[] DEFAULT NULL,
    tls_optional boolean[] DEFAULT NULL,
    -- more of each row; a hold is its reason
    metadata text[] DEFAULT NULL, holds text[] DEFAULT NULL, notifies text[] DEFAULT NULL, orcpts text[] DEFAULT NULL,
    -- of each message, null for one that is not scheduled; a time that is over counts as none
    send_ats timestamptz[] DEFAULT NULL
) RETURNS integer LANGUAGE plpgsql SECURITY DEFINER AS $$
#variable_conflict use_column
DECLARE
    rows integer;
    waits boolean[];  -- of each message, whether it is scheduled
BEGIN
    IF queue_put.chunks IS NOT NULL THEN
        PERFORM pgmta.chunks_present(ids, queue_put.chunks);
    END IF;
    IF queue_put.send_ats IS NOT NULL THEN
        SELECT t.send_ats, t.scheduled INTO queue_put.send_ats, waits FROM pgmta.schedule_times(queue_put.send_ats) AS t;
    END IF;
    -- The whole group fails if one id exists already, because the caller repeats a group then.
    INSERT INTO pgmta.messages (id, size, utf8, chunks, trace, body, message_id_header, tenant, submitted_by, envid,
        ret, requiretls, origin, tls_optional)
    SELECT ids[n], sizes[n], coalesce(queue_put.utf8[n], false), coalesce(queue_put.chunks[n], 0), traces[n], bodies[n],
        message_id_headers[n], coalesce(tenants[n], ''), logins[n], envids[n], rets[n],
        coalesce(queue_put.requiretls[n], false), origins[n], coalesce(queue_put.tls_optional[n], false)
    FROM pg_catalog.generate_subscripts(ids, 1) AS n;
    INSERT INTO pgmta.queue (id, message_id, sender, sender_domain, recipient, domain, priority, metadata,
        status, hold_reason, held_by, held_at, tenant, on_failed, once, notify, orcpt, ts, next_attempt, send_at)
    SELECT CASE WHEN waits[numbers[n]] THEN pg_catalog.nextval('pgmta.scheduled_ids')
            ELSE pg_catalog.nextval('pgmta.queue_ids') END,
        ids[numbers[n]], senders[numbers[n]], sender_domains[numbers[n]], recipients[n], domains[n],
        priorities[numbers[n]], coalesce(queue_put.metadata[n], '{}')::pg_catalog.jsonb,
        CASE WHEN holds[n] IS NOT NULL THEN 'HOLD' WHEN waits[numbers[n]] THEN 'SCHEDULED' ELSE 'QUEUED' END, holds[n],
        CASE WHEN holds[n] IS NOT NULL THEN 'smtpd' END,
        CASE WHEN holds[n] IS NOT NULL THEN pg_catalog.now() END, coalesce(tenants[numbers[n]], ''),
        coalesce(queue_put.on_failed[numbers[n]], 'hold'), coalesce(queue_put.once[numbers[n]], false),
        notifies[n], orcpts[n], coalesce(send_ats[numbers[n]], pg_catalog.now()),
        coalesce(send_ats[numbers[n]], pg_catalog.now()), send_ats[numbers[n]]
    FROM pg_catalog.generate_subscripts(numbers, 1) AS n;
    GET DIAGNOSTICS rows = ROW_COUNT;
    RETURN rows;
END $$;
COMMENT ON FUNCTION queue_put IS
    'Stores a group of messages with all their rows, and returns the number of rows: all mail comes in here. It checks '
    'nothing. The whole group fails if an id exists already, or if chunks of a message are missing.';

DROP FUNCTION submit(text, text[], bytea, timestamptz, integer, jsonb, text, text, text, boolean, boolean);
CREATE FUNCTION submit(
    sender text, recipients text[], content bytea, send_at timestamptz DEFAULT NULL,
    priority integer DEFAULT 5, metadata jsonb DEFAULT '{}', key text DEFAULT NULL,
    tenant text DEFAULT '', on_failed text DEFAULT 'hold', once boolean DEFAULT false,
    wake boolean DEFAULT false, deadline timestamptz DEFAULT NULL
) RETURNS bigint LANGUAGE plpgsql SECURITY DEFINER SET search_path = pgmta, pg_catalog, pg_temp
    SET standard_conforming_strings = on AS $$  -- all that it calls is compiled with these settings too
#variable_conflict use_variable
DECLARE
    message_id bigint;
    known bigint;
    scheduled timestamptz;
    header text COLLATE "C";
    message_id_header text;
    added text COLLATE "C";
    settings submit_settings;
    -- The collation of an argument is the caller's, who may compare addresses without case.
    sender_domain text := mailbox_domain(sender COLLATE "C");
    domains text[] := ARRAY[mailbox_domain(recipients[1] COLLATE "C")];
    chunk CONSTANT integer := 8096;
    chunks integer[];
    octets integer;
    rows integer;
BEGIN
    -- PL/pgSQL prepares each expression anew in each transaction. So usual arguments pass by few of them.
    IF num_nulls(sender, content, priority, metadata, tenant, on_failed, once, wake) > 0 THEN
        PERFORM submit_refuse(CASE WHEN sender IS NULL THEN 'sender' WHEN content IS NULL THEN 'content'
            WHEN priority IS NULL THEN 'priority' WHEN metadata IS NULL THEN 'metadata'
            WHEN tenant IS NULL THEN 'tenant' WHEN on_failed IS NULL THEN 'on_failed'
            WHEN once IS NULL THEN 'once' ELSE 'wake' END, 'it is null');
    ELSIF num_nonnulls(send_at, key, deadline) > 0 OR priority NOT BETWEEN 0 AND 9 OR metadata <> '{}'
            OR tenant <> '' COLLATE "C" OR on_failed <> 'hold' COLLATE "C" THEN
        SELECT * INTO metadata, scheduled
        FROM submit_options(send_at, priority, metadata, key, tenant COLLATE "C", on_failed, deadline);
    END IF;
    IF cardinality(recipients) IS DISTINCT FROM 1 OR domains[1] IS NULL OR sender_domain IS NULL THEN
        SELECT * INTO recipients, sender_domain, domains FROM submit_envelope(sender COLLATE "C", recipients);
    END IF;
    SELECT * INTO settings FROM submit_settings;
    header := submit_header(content, settings.message_size);
    -- each submission opens a block of ids, so that smtpd's blocks never have this one
    message_id := nextval('message_ids');
    IF key IS NOT NULL THEN
        known := submit_key(tenant, key, message_id, sha256(convert_to(jsonb_build_array(sender, recipients, priority,
            metadata, on_failed, once, extract(epoch FROM send_at))::text, getdatabaseencoding()) || sha256(content)));
        IF known IS NOT NULL THEN RETURN known; END IF;
    END IF;
    message_id_header := CASE WHEN header ~ '(?in)^message-id[ \t]*:' COLLATE "C" THEN submit_message_id(header) END;
    added := submit_missing(header, settings.hostname);
    IF added <> '' THEN
        message_id_header := coalesce(message_id_header, substring(added FROM '<.*>'));
        content := convert_to(added, 'UTF8') || content;
    END IF;
    octets := octet_length(content);
    IF octets > chunk THEN
        content := content || ''::bytea;  -- read from its table once, not for each chunk
        INSERT INTO message_chunks (message_id, position, data)
        SELECT message_id, number, substring(submit.content FROM number * chunk + 1 FOR chunk)
        FROM generate_series(0, (octets - 1) / chunk) AS number;
        chunks := ARRAY[(octets - 1) / chunk + 1];
        content := '';
    END IF;
    rows := queue_put(ARRAY[message_id], ARRAY[octets], ARRAY[submit_trace(settings.hostname, message_id)],
        ARRAY[content], ARRAY[message_id_header], '{sql}', ARRAY[sender], ARRAY[sender_domain],
        ARRAY[priority::smallint], array_fill(1, ARRAY[cardinality(recipients)]), recipients, domains,
        CASE WHEN concat(sender, array_to_string(recipients, '')) ~ '[^\u0001-\u007f]' COLLATE "C"
            THEN '{t}'::boolean[] END,
        chunks, CASE WHEN tenant <> '' COLLATE "C" THEN ARRAY[tenant] END,
        CASE WHEN on_failed <> 'hold' COLLATE "C" THEN ARRAY[on_failed] END, CASE WHEN once THEN '{t}'::boolean[] END,
        ARRAY[session_user], tls_optional => CASE WHEN submit_tls_optional(header) THEN '{t}'::boolean[] END,
        metadata => CASE WHEN metadata <> '{}' THEN array_fill(metadata::text, ARRAY[cardinality(recipients)]) END,
        send_ats => CASE WHEN scheduled IS NOT NULL THEN ARRAY[scheduled] END);
    IF wake AND scheduled IS NULL THEN PERFORM pg_notify('pgmta_queue', ''); END IF;
    RETURN message_id;
END $$;
COMMENT ON FUNCTION submit IS
    'Puts a message into the queue, in the transaction of the caller, and returns its id. Content is that of RFC '
    '5322, each line with CRLF. docs/sql.md has the arguments and errors.';

DROP FUNCTION submit_options(timestamptz, integer, jsonb, text, text, text);
CREATE FUNCTION submit_options(
    send_at timestamptz, priority integer, INOUT metadata jsonb, key text, tenant text, on_failed text,
    deadline timestamptz, OUT scheduled timestamptz
) LANGUAGE plpgsql AS $$
DECLARE
    bad text;
BEGIN
    IF send_at IS NOT NULL THEN
        scheduled := submit_send_at(send_at);
    END IF;
    IF priority NOT BETWEEN 0 AND 9 THEN
        PERFORM submit_refuse('priority', 'it is not from 0 (first) to 9', format('It is %s.', priority));
    END IF;
    IF on_failed NOT IN ('hold', 'remove', 'bounce') THEN
        PERFORM submit_refuse('on_failed', 'it is neither hold nor remove nor bounce');
    ELSIF octet_length(tenant) > 64 OR tenant <> '' AND tenant !~ '^[A-Za-z0-9][A-Za-z0-9._@+-]{0,63}$' COLLATE "C" THEN
        PERFORM submit_refuse('tenant', 'it is no name of 1 to 64 letters, digits and . _ @ + -');
    END IF;
    IF length(key) NOT BETWEEN 1 AND 255 OR key ~ '[\u0001-\u001f\u007f]' COLLATE "C" THEN
        PERFORM submit_refuse('key', 'it is empty, over 255 characters or has control characters');
    END IF;
    IF jsonb_typeof(metadata) <> 'object' THEN
        PERFORM submit_refuse('metadata', 'it is no JSON object', 'It is of type ' || jsonb_typeof(metadata));
    ELSIF octet_length(metadata::text) > 4000 THEN
        PERFORM submit_refuse('metadata', 'it is over 4000 octets as text');
    ELSIF jsonb_path_exists(metadata, 'strict $.**{100}') THEN
        PERFORM submit_refuse('metadata', 'it is nested over 100 levels deep');
    ELSIF metadata <> '{}' THEN
        bad := (SELECT min(name) FROM jsonb_object_keys(metadata) AS name
                WHERE starts_with(name, '_') AND name NOT IN ('_partid', '_deadline'));
        IF bad IS NOT NULL THEN
            PERFORM submit_refuse('metadata', 'a key begins with _', 'Key: ' || to_json(left(bad, 100)),
                'Such keys belong to pgmta; only _partid and _deadline may be given.');
        ELSIF jsonb_typeof(metadata -> '_partid') NOT IN ('string', 'number')
                OR length(metadata ->> '_partid') > 100 THEN
            PERFORM submit_refuse('metadata', '_partid is no text of at most 100 characters');
        ELSIF metadata ? '_deadline' AND NOT deadline_valid(metadata -> '_deadline') THEN
            PERFORM submit_refuse('metadata', '_deadline is no time of RFC 3339', NULL,
                'Write for example 2026-01-31T09:30:00Z.');
        END IF;
    END IF;
    IF deadline IS NOT NULL THEN
        IF metadata ? '_deadline' THEN
            PERFORM submit_refuse('deadline', 'metadata has _deadline too', NULL, 'Give one of them.');
        ELSIF deadline <= scheduled THEN
            PERFORM submit_refuse('deadline', 'it is not after send_at', NULL, 'The mail would never be sent.');
        END IF;
        metadata := metadata || jsonb_build_object('_deadline', submit_deadline(deadline));
    END IF;
    IF getdatabaseencoding() <> 'UTF8' THEN
        PERFORM submit_text('key', key), submit_text('metadata', metadata::text);
    END IF;
END $$;
COMMENT ON FUNCTION submit_options IS
    'Raises the error of the first bad argument beside envelope and content. Returns the metadata with the deadline, '
    'and send_at if the mail is scheduled, else null.';

CREATE FUNCTION submit_send_at(send_at timestamptz) RETURNS timestamptz LANGUAGE plpgsql AS $$
BEGIN
    IF NOT isfinite(send_at) THEN
        PERFORM submit_refuse('send_at', 'it is infinite');
    ELSIF send_at > clock_timestamp() + interval '10 years' THEN
        -- a slip in the year, or milliseconds taken for seconds; and far within every program's calendar
        PERFORM submit_refuse('send_at', 'it is over 10 years ahead',
            'It is in the year ' || extract(year FROM send_at AT TIME ZONE 'UTC'));
    END IF;
    RETURN CASE WHEN send_at > clock_timestamp() THEN send_at END;
END $$;
COMMENT ON FUNCTION submit_send_at IS 'Returns a time that is in the future, else null. Raises the error of a bad one.';

CREATE FUNCTION submit_deadline(deadline timestamptz) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
    IF deadline NOT BETWEEN '0001-01-02 00:00:00+00' AND '9999-12-30 00:00:00+00' THEN
        PERFORM submit_refuse('deadline', 'it is infinite or beyond the years 1 to 9999');
    END IF;
    RETURN rtrim(rtrim(to_char(deadline AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US'), '0'), '.') || 'Z';
END $$;
COMMENT ON FUNCTION submit_deadline IS
    'Writes a deadline as a time of RFC 3339 in UTC, as metadata._deadline has it. Raises the error of a bad one.';

CREATE OR REPLACE VIEW queue_states AS
SELECT q.message_id, q.recipient, q.id AS row_id,
    CASE WHEN q.status IN ('QUEUED', 'SCHEDULED') THEN CASE WHEN q.send_at > now() THEN 'SCHEDULED' ELSE 'QUEUED' END
        ELSE q.status END AS status, q.lease_until, q.report_kind, q.once, q.attempts,
    CASE WHEN q.status IN ('QUEUED', 'DEFERRED') THEN q.next_attempt
        WHEN q.status = 'SCHEDULED' THEN q.send_at END AS next_attempt,
    CASE q.status WHEN 'SENDING' THEN q.lease_since WHEN 'HOLD' THEN q.held_at WHEN 'REPORT' THEN q.held_at END
        AS since, CASE WHEN q.send_at > now() THEN m.received_at ELSE q.ts END AS ts,
    substring(q.last_reply FROM '^([245][0-9][0-9])(?: |$)')::integer AS code,
    regexp_replace(q.last_reply, '^[245][0-9][0-9]( |$)', '') AS reply,
    m.submitted_by
FROM queue AS q JOIN messages AS m ON m.id = q.message_id;
COMMENT ON COLUMN queue_states.status IS 'As queue.status; SCHEDULED exactly while send_at is in the future.';
COMMENT ON COLUMN queue_states.ts IS 'When it was accepted, or its send_at if that is over.';

CREATE OR REPLACE VIEW queue_overview AS
SELECT known.status, coalesce(q.rows, 0)::bigint AS rows, coalesce(q.messages, 0) AS messages,
    coalesce(q.octets, 0)::bigint AS octets, q.oldest, q.next_due,
    coalesce(q.due_now, 0)::bigint AS due_now
FROM (VALUES ('QUEUED'), ('DEFERRED'), ('SENDING'), ('HOLD'), ('DELETE'), ('SCHEDULED'), ('REPORT')) AS known (status)
LEFT JOIN (
    SELECT p.status, sum(p.rows) AS rows, count(*) AS messages, sum(m.size) AS octets,
        min(p.oldest) AS oldest, min(p.next_due) AS next_due, sum(p.due_now) AS due_now
    FROM (
        SELECT status, message_id, count(*) AS rows, min(ts) AS oldest,
            min(next_attempt) FILTER (WHERE status IN ('QUEUED', 'DEFERRED', 'SCHEDULED')) AS next_due,
            count(*) FILTER (WHERE status IN ('QUEUED', 'DEFERRED', 'SENDING')
                AND next_attempt <= now()
                AND (lease_until IS NULL OR (lease_until < now() AND NOT once))) AS due_now
        FROM queue GROUP BY status, message_id
    ) AS p LEFT JOIN messages AS m ON m.id = p.message_id
    GROUP BY p.status
) AS q ON q.status = known.status;
COMMENT ON COLUMN queue_overview.oldest IS 'The earliest queue.ts: of scheduled rows send_at.';

CREATE OR REPLACE VIEW queue_by_domain AS
SELECT domain, count(*) AS rows,
    count(*) FILTER (WHERE status = 'QUEUED') AS queued,
    count(*) FILTER (WHERE status = 'DEFERRED') AS deferred,
    count(*) FILTER (WHERE status = 'SENDING') AS sending,
    count(*) FILTER (WHERE status = 'HOLD') AS held,
    count(*) FILTER (WHERE status = 'DELETE') AS deleting,
    min(ts) AS oldest,
    min(next_attempt) FILTER (WHERE status IN ('QUEUED', 'DEFERRED', 'SCHEDULED')) AS next_attempt,
    mode() WITHIN GROUP (ORDER BY last_reply COLLATE "C") AS last_reply,
    count(*) FILTER (WHERE status = 'SCHEDULED') AS scheduled,
    count(*) FILTER (WHERE status = 'REPORT') AS reporting
FROM queue GROUP BY domain;
COMMENT ON COLUMN queue_by_domain.oldest IS 'The earliest queue.ts: of scheduled rows send_at.';

CREATE OR REPLACE FUNCTION queue_takes(action text) RETURNS text LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE action
        WHEN 'hold' THEN 'status <> ''HOLD'''
        WHEN 'quarantine' THEN 'true'
        WHEN 'release' THEN 'status = ''HOLD'''
        WHEN 'retry' THEN 'status IN (''QUEUED'', ''DEFERRED'') AND (send_at IS NULL OR send_at <= now())'
        WHEN 'bounce' THEN 'status NOT IN (''DELETE'', ''REPORT'')'
        WHEN 'delete' THEN 'status <> ''DELETE'''
        WHEN 'set' THEN 'true'
    END
$$;
COMMENT ON FUNCTION queue_takes IS
    'Returns the condition for the rows that an action of an operator takes; null if there is no such action. '
    'pgmta/action.py has the same.';

COMMENT ON FUNCTION queue_release IS
    'Puts held rows that match condition back, due at once, but never before send_at. The rule that held a row does not hold it again; a '
    'warning names other rules that do. Rows with a malformed address stay on hold, say so in hold_reason, and are '
    'not counted. Returns the number of rows.';
COMMENT ON FUNCTION queue_retry IS
    'Makes waiting rows that match condition due now; held ones stay held, scheduled ones wait, and due ones keep '
    'their place. Returns the number of rows.';

CREATE OR REPLACE FUNCTION database_clock_look(least_step interval, lease interval, OUT seen timestamptz, OUT back interval,
    OUT rows bigint) LANGUAGE plpgsql
    SET search_path = pgmta, pg_catalog, pg_temp AS $$
DECLARE
    instant timestamptz;
BEGIN
    -- one session shortens the waits, and once
    SELECT c.seen_at INTO instant FROM database_clock AS c FOR UPDATE SKIP LOCKED;
    seen := clock_timestamp();
    IF instant IS NULL THEN RETURN; END IF;
    UPDATE database_clock SET seen_at = clock_timestamp();
    IF instant <= seen + least_step THEN RETURN; END IF;
    back := instant - seen;
    -- Waits begin anew. A lease of a row in flight stays long enough for its worker.
    WITH late AS MATERIALIZED (
        SELECT id FROM queue
        WHERE status IN ('QUEUED', 'DEFERRED', 'SENDING')
            AND (next_attempt > seen AND next_attempt < 'infinity' OR lease_until > seen + back - least_step)
        FOR UPDATE SKIP LOCKED
    ), moved AS (
        UPDATE queue SET
            next_attempt = CASE WHEN next_attempt > seen AND next_attempt < 'infinity'
                THEN greatest(next_attempt - back, seen, send_at) ELSE next_attempt END,
            lease_until = CASE WHEN lease_until > seen + back - least_step
                THEN least(lease_until, greatest(lease_until - back, seen + lease)) ELSE lease_until END
        WHERE id = ANY (ARRAY(SELECT id FROM late)) AND status IN ('QUEUED', 'DEFERRED', 'SENDING')
        RETURNING id
    )
    SELECT count(*) INTO rows FROM moved;
    WITH late AS MATERIALIZED (
        SELECT id FROM queue WHERE status = 'REPORT' AND held_at > seen FOR UPDATE SKIP LOCKED
    )
    UPDATE queue SET held_at = seen WHERE id = ANY (ARRAY(SELECT id FROM late)) AND status = 'REPORT';
    UPDATE delays SET at = seen WHERE noticed_at IS NULL AND at > seen;
    UPDATE daemons SET seen_at = seen WHERE seen_at > seen;
    UPDATE workers SET seen_at = seen WHERE seen_at > seen;
END $$;
COMMENT ON FUNCTION database_clock_look IS
    'Notes the time in database_clock. If the clock was set back by more than least_step, shortens the waits.';

SELECT grants();

-- Messages: the content and what all its recipients share, and the one function that puts mail in.

CREATE SEQUENCE message_ids;
COMMENT ON SEQUENCE message_ids IS
    'Ids of messages. smtpd takes several at once, so that it knows the id before the insert.';

CREATE FUNCTION first_message_id() RETURNS bigint LANGUAGE plpgsql SET search_path = pgmta, pg_catalog, pg_temp AS $$
BEGIN
    PERFORM note_timeline();
    PERFORM set_config('pgmta.timeline', 'noted', false);
    RETURN nextval('message_ids');
END $$;
COMMENT ON FUNCTION first_message_id IS 'next_message_id() for a session that has not noted the timeline yet.';

-- PostgreSQL puts its expression in the place of the call. A server gets another timeline only by a start or as a standby,
-- where no id is taken, so a session has noted it once for all.
CREATE FUNCTION next_message_id() RETURNS bigint
RETURN CASE WHEN current_setting('pgmta.timeline', true) = 'noted' THEN nextval('message_ids') ELSE first_message_id() END;
COMMENT ON FUNCTION next_message_id IS 'The id of a new message, which nobody else has or had. The first one of a session notes the timeline.';

CREATE TABLE messages (
    id bigint PRIMARY KEY,
    received_at timestamptz NOT NULL DEFAULT now(),
    size bigint NOT NULL,
    utf8 boolean NOT NULL DEFAULT false,
    chunks integer NOT NULL DEFAULT 0,
    trace text NOT NULL,
    body bytea NOT NULL,
    tenant text COLLATE "C" NOT NULL DEFAULT '',
    message_id_header text COLLATE "C",
    envid text,
    ret text CONSTRAINT messages_ret CHECK (ret IN ('FULL', 'HDRS')),
    requiretls boolean NOT NULL DEFAULT false,
    submitted_by text,
    origin text,
    tls_optional boolean NOT NULL DEFAULT false,
    template_id bigint,
    params jsonb
) WITH (
    autovacuum_vacuum_threshold = 2000,
    autovacuum_vacuum_insert_threshold = -1,
    autovacuum_vacuum_cost_delay = 0,
    autovacuum_analyze_scale_factor = 0,
    autovacuum_analyze_threshold = 20000,
    toast_tuple_target = 8160,
    autovacuum_vacuum_scale_factor = 0.02,
    toast.autovacuum_vacuum_scale_factor = 0,
    toast.autovacuum_vacuum_threshold = 4000,
    toast.autovacuum_vacuum_cost_delay = 0
);
ALTER TABLE messages
    ALTER COLUMN id SET STATISTICS 10,
    ALTER COLUMN received_at SET STATISTICS 10,
    ALTER COLUMN size SET STATISTICS 10,
    ALTER COLUMN utf8 SET STATISTICS 10,
    ALTER COLUMN chunks SET STATISTICS 10,
    ALTER COLUMN trace SET STATISTICS 0,
    ALTER COLUMN body SET STATISTICS 0,
    ALTER COLUMN body SET STORAGE EXTERNAL,
    ALTER COLUMN tenant SET STATISTICS 10,
    ALTER COLUMN message_id_header SET STATISTICS 10,
    ALTER COLUMN envid SET STATISTICS 0,
    ALTER COLUMN ret SET STATISTICS 0,
    ALTER COLUMN requiretls SET STATISTICS 0,
    ALTER COLUMN submitted_by SET STATISTICS 10,
    ALTER COLUMN origin SET STATISTICS 10,
    ALTER COLUMN tls_optional SET STATISTICS 0,
    ALTER COLUMN template_id SET STATISTICS 10,
    ALTER COLUMN params SET STATISTICS 0;
COMMENT ON TABLE messages IS 'Accepted messages, each body once however many recipients it has.';
COMMENT ON COLUMN messages.id IS 'The message id: the client gets it with 250, and Received has it.';
COMMENT ON COLUMN messages.received_at IS 'When the message was committed.';
COMMENT ON COLUMN messages.size IS
    'Octets as received, without the trace headers added here; of composed mail, params and what is stored behind them.';
COMMENT ON COLUMN messages.utf8 IS 'MAIL FROM carried SMTPUTF8 (RFC 6531): the next hop must know it.';
COMMENT ON COLUMN messages.chunks IS 'Chunks in message_chunks; 0: the whole content is in body.';
COMMENT ON COLUMN messages.trace IS 'Header lines put before the content when it is sent on (Received).';
COMMENT ON COLUMN messages.body IS 'The content as received, octet for octet, where it is small.';
COMMENT ON COLUMN messages.tenant IS 'For whom the mail is; empty: no tenant.';
COMMENT ON COLUMN messages.message_id_header IS
    'Message-ID of the header (RFC 5322, section 3.6.4), with its brackets; null: it has none.';
COMMENT ON COLUMN messages.envid IS 'ENVID of the envelope (RFC 3461, section 4.4); null: not given.';
COMMENT ON COLUMN messages.ret IS 'RET of the envelope (RFC 3461, section 4.3); null: not given.';
COMMENT ON COLUMN messages.requiretls IS 'MAIL FROM carried REQUIRETLS (RFC 8689).';
COMMENT ON COLUMN messages.submitted_by IS
    'Login of the SQL session that submitted the message; null: it came by a daemon or a program of pgmta.';
COMMENT ON COLUMN messages.origin IS
    'How the message came in: stranger, network (relay.networks), certificate (a trusted one), user (who may send '
    'from its From), login (a user, and its From is not the user''s), sql, or queued (a DSN); null: unknown.';
COMMENT ON COLUMN messages.tls_optional IS
    'Its header says TLS-Required: No, and MAIL had no REQUIRETLS (RFC 8689): DANE and MTA-STS may fail.';
COMMENT ON COLUMN messages.template_id IS 'The version of a template that makes the content; null: none.';
COMMENT ON COLUMN messages.params IS
    'Parts of mail, or the words of its template, of which the content is composed at delivery; body and chunks then '
    'have what follows the texts. Null: the whole content is there.';
COMMENT ON CONSTRAINT messages_ret ON messages IS 'The two values of RFC 3461.';

CREATE INDEX messages_received_at ON messages USING brin (received_at);
COMMENT ON INDEX messages_received_at IS 'The search for bodies that nothing refers to.';
CREATE INDEX messages_message_id_header ON messages (message_id_header)
    WHERE message_id_header IS NOT NULL;
COMMENT ON INDEX messages_message_id_header IS 'Search by Message-ID.';

CREATE TABLE message_chunks (
    message_id bigint NOT NULL,
    position integer NOT NULL CHECK (position >= 0),
    stored_at timestamptz NOT NULL DEFAULT now(),
    data bytea NOT NULL,
    PRIMARY KEY (message_id, position)
) WITH (
    toast_tuple_target = 8160,
    vacuum_truncate = off,
    autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_vacuum_threshold = 2000,
    autovacuum_vacuum_insert_threshold = -1,
    autovacuum_vacuum_cost_delay = 0,
    autovacuum_analyze_scale_factor = 0.2,
    autovacuum_analyze_threshold = 100000
);
ALTER TABLE message_chunks
    ALTER COLUMN message_id SET STATISTICS 10,
    ALTER COLUMN position SET STATISTICS 10,
    ALTER COLUMN stored_at SET STATISTICS 10,
    ALTER COLUMN data SET STATISTICS 0,
    ALTER COLUMN data SET STORAGE EXTERNAL;
COMMENT ON TABLE message_chunks IS
    'Content that is too large for its message row, in chunks. They are written before the message row. Chunks '
    'without a message belong to a transaction that did not end.';
COMMENT ON COLUMN message_chunks.message_id IS 'messages.id; no foreign key, because the chunks come first.';
COMMENT ON COLUMN message_chunks.position IS 'Order of the chunks, from 0.';
COMMENT ON COLUMN message_chunks.stored_at IS 'When the chunk was committed.';
COMMENT ON COLUMN message_chunks.data IS 'Octets as received; each chunk but the last has 8,096.';
COMMENT ON CONSTRAINT message_chunks_position_check ON message_chunks IS 'From 0.';

CREATE FUNCTION messages_in_use() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pgmta, pg_catalog, pg_temp AS $$
BEGIN
    IF current_setting('transaction_isolation') IN ('repeatable read', 'serializable') THEN
        RAISE EXCEPTION 'a transaction with an old snapshot may miss rows that refer to messages' USING
            ERRCODE = 'object_not_in_prerequisite_state', SCHEMA = 'pgmta', TABLE = 'messages',
            HINT = 'Use READ COMMITTED, or delete rows of the queue: the bodies go after them.';
    ELSIF TG_OP = 'TRUNCATE' THEN
        IF EXISTS (SELECT FROM queue) THEN
            RAISE EXCEPTION 'rows of the queue refer to messages' USING
                ERRCODE = 'foreign_key_violation', SCHEMA = 'pgmta', TABLE = 'messages',
                HINT = 'Truncate both tables in one statement.';
        END IF;
    ELSIF (SELECT true FROM queue WHERE message_id = OLD.id LIMIT 1) THEN
        RAISE EXCEPTION 'rows of the queue refer to message %', OLD.id USING
            ERRCODE = 'foreign_key_violation', SCHEMA = 'pgmta', TABLE = 'messages',
            HINT = 'Delete the rows of the queue: the body goes with the last one.';
    END IF;
    RETURN NULL;
END $$;
COMMENT ON FUNCTION messages_in_use IS 'Refuses to delete or renumber a body that a row needs.';

-- Any login may set pgmta.writer. It counts only for the owner, who alone has a grant option on a private table.
CREATE TRIGGER messages_in_use AFTER DELETE ON messages FOR EACH ROW
    WHEN (current_setting('pgmta.writer', true) IS DISTINCT FROM 'refcount'
        OR NOT has_table_privilege('rights'::regclass, 'SELECT WITH GRANT OPTION'))
    EXECUTE FUNCTION messages_in_use();
COMMENT ON TRIGGER messages_in_use ON messages IS 'No mistake deletes a body; messages_refcount has looked itself.';
CREATE TRIGGER messages_renumbered AFTER UPDATE OF id ON messages FOR EACH ROW
    WHEN (OLD.id <> NEW.id) EXECUTE FUNCTION messages_in_use();
COMMENT ON TRIGGER messages_renumbered ON messages IS 'The same for a body that gets another id.';
CREATE TRIGGER messages_truncated AFTER TRUNCATE ON messages EXECUTE FUNCTION messages_in_use();
COMMENT ON TRIGGER messages_truncated ON messages IS 'The same for TRUNCATE.';

CREATE TYPE new_message AS (
    id bigint, size bigint, priority smallint, utf8 boolean, chunks integer, trace text, body bytea, sender text,
    sender_domain text, on_failed text, message_id_header text, origin text, tenant text, once boolean, submitted_by text,
    envid text, ret text, requiretls boolean, tls_optional boolean, send_at timestamptz, template_id bigint, params jsonb
);
COMMENT ON TYPE new_message IS
    'A message for queue_put: its columns, and what all its rows share. A send_at that is over counts as none.';
CREATE TYPE new_row AS (
    message integer, recipient text, domain text, metadata jsonb, hold_reason text, notify text, orcpt text
);
COMMENT ON TYPE new_row IS 'A row for queue_put: the number of its message from 1, and its recipient. A hold_reason holds it.';

-- These two cost nothing at run time: PostgreSQL puts their expression in the place of the call.
CREATE FUNCTION new_message(
    id bigint, size bigint, priority smallint, trace text, body bytea, sender text, sender_domain text, on_failed text,
    message_id_header text, origin text, utf8 boolean DEFAULT NULL, chunks integer DEFAULT NULL, tenant text DEFAULT NULL,
    once boolean DEFAULT NULL, submitted_by text DEFAULT NULL, envid text DEFAULT NULL, ret text DEFAULT NULL,
    requiretls boolean DEFAULT NULL, tls_optional boolean DEFAULT NULL, send_at timestamptz DEFAULT NULL,
    template_id bigint DEFAULT NULL, params jsonb DEFAULT NULL
) RETURNS new_message IMMUTABLE LANGUAGE sql
RETURN ROW(id, size, priority, utf8, chunks, trace, body, sender, sender_domain, on_failed, message_id_header, origin,
    tenant, once, submitted_by, envid, ret, requiretls, tls_optional, send_at, template_id, params)::new_message;
COMMENT ON FUNCTION new_message IS 'A message for queue_put, by the names of its members.';
CREATE FUNCTION new_row(message integer, recipient text, domain text, metadata jsonb DEFAULT NULL) RETURNS new_row
IMMUTABLE LANGUAGE sql RETURN ROW(message, recipient, domain, metadata, NULL, NULL, NULL)::new_row;
COMMENT ON FUNCTION new_row IS 'A row for queue_put that is not on hold.';

CREATE FUNCTION lone_rows(recipients text[], domains text[], metadata jsonb) RETURNS new_row[] IMMUTABLE LANGUAGE plpgsql AS $$
BEGIN
    IF recipients[2] IS NULL THEN  -- the usual case needs no query, whose executor took 20 µs
        RETURN ARRAY[new_row(1, recipients[1], domains[1], metadata)];
    END IF;
    RETURN ARRAY(SELECT new_row(1, r, d, metadata) FROM unnest(recipients, domains) AS each (r, d));
END $$;
COMMENT ON FUNCTION lone_rows IS 'The rows for queue_put of a message that is put in alone.';

CREATE FUNCTION rows_put(messages new_message[], rows new_row[]) RETURNS integer LANGUAGE sql RETURN 0;
COMMENT ON FUNCTION rows_put IS
    'What features do with rows that queue_put() has just stored; returns how many of them it has ended. A feature replaces this '
    'one, which costs nothing, because PostgreSQL puts its expression in the place of the call.';

-- Groups, because smtpd writes many messages at once. A member that is null has the default of its column. Callers may
-- be any role, and SET search_path took 48 µs, so all names have their schema, of types and operators too.
CREATE FUNCTION queue_put(messages new_message[], rows new_row[], checked boolean DEFAULT false) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER AS $$
#variable_conflict use_column
DECLARE
    present pg_catalog.timestamptz := pg_catalog.clock_timestamp();
    stored integer;
BEGIN
    -- The whole group fails if one id exists already, because the caller repeats a group then.
    INSERT INTO pgmta.messages (id, size, utf8, chunks, trace, body, message_id_header, tenant, submitted_by, envid,
        ret, requiretls, origin, tls_optional, template_id, params)
    SELECT m.id, m.size, coalesce(m.utf8, false),
        CASE WHEN m.chunks OPERATOR(pg_catalog.>) 0 THEN pgmta.chunks_present(m.id, m.chunks) ELSE 0 END, m.trace, m.body,
        m.message_id_header, coalesce(m.tenant, ''), m.submitted_by, m.envid, m.ret, coalesce(m.requiretls, false),
        m.origin, coalesce(m.tls_optional, false), m.template_id, m.params
    FROM pg_catalog.unnest(messages) AS m;
    INSERT INTO pgmta.queue (id, message_id, sender, sender_domain, recipient, domain, priority, metadata,
        status, hold_reason, held_by, held_at, tenant, on_failed, once, notify, orcpt, ts, next_attempt, send_at)
    SELECT CASE WHEN t.waits THEN pg_catalog.nextval('pgmta.scheduled_ids') ELSE pg_catalog.nextval('pgmta.queue_ids') END,
        m.id, m.sender, m.sender_domain, r.recipient, r.domain, m.priority, coalesce(r.metadata, '{}'),
        CASE WHEN r.hold_reason IS NOT NULL THEN 'HOLD' WHEN t.waits THEN 'SCHEDULED' ELSE 'QUEUED' END, r.hold_reason,
        CASE WHEN r.hold_reason IS NOT NULL THEN 'smtpd' END,
        CASE WHEN r.hold_reason IS NOT NULL THEN pg_catalog.now() END, coalesce(m.tenant, ''),
        coalesce(m.on_failed, 'hold'), coalesce(m.once, false), r.notify, r.orcpt,
        coalesce(t.send_at, pg_catalog.now()), coalesce(t.send_at, pg_catalog.clock_timestamp()), t.send_at
    FROM pg_catalog.unnest(rows) AS r, LATERAL (SELECT (messages[r.message]).*) AS m, LATERAL (
        SELECT CASE WHEN m.send_at OPERATOR(pg_catalog.>) present THEN m.send_at END AS send_at,
            m.send_at OPERATOR(pg_catalog.>) (present OPERATOR(pg_catalog.+) pgmta.schedule_ahead()) AS waits) AS t;
    GET DIAGNOSTICS stored = ROW_COUNT;
    RETURN stored OPERATOR(pg_catalog.-) CASE WHEN checked THEN 0 ELSE pgmta.rows_put(messages, rows) END;
END $$;
COMMENT ON FUNCTION queue_put IS
    'Stores a group of messages with all their rows, and returns the number of rows that wait: all mail comes in here. It checks '
    'nothing. The whole group fails if an id exists already, or if chunks of a message are missing. `checked`: the caller has '
    'done what rows_put() does.';

CREATE FUNCTION group_stored(messages new_message[]) RETURNS boolean LANGUAGE sql STABLE SECURITY DEFINER
    -- a plan that was made for an empty table would later read all of it
    SET search_path = pgmta, pg_catalog, pg_temp SET enable_seqscan = off SET enable_bitmapscan = off
    SET enable_hashjoin = off SET enable_mergejoin = off AS $$
    SELECT CASE WHEN count(*) > 0 THEN bool_and(same) AND count(DISTINCT g.id) = cardinality(messages) END
    FROM unnest(messages) AS g, LATERAL (
        SELECT (m.size, m.trace, m.message_id_header, m.tenant)
            IS NOT DISTINCT FROM (g.size, g.trace, g.message_id_header, coalesce(g.tenant, ''))
            AND NOT EXISTS (SELECT FROM queue AS q WHERE q.message_id = m.id AND q.sender <> g.sender) AS same
        FROM messages AS m WHERE m.id = g.id
        UNION ALL
        SELECT (a.sender, a.message_id_header, a.tenant)
            IS NOT DISTINCT FROM (g.sender, g.message_id_header, coalesce(g.tenant, ''))
        FROM attempts AS a WHERE a.message_id = g.id) AS found
$$;
COMMENT ON FUNCTION group_stored IS
    'Whether queue_put has stored this group: null if nothing is known of its ids, and false if one of them is another '
    'message''s, or if only some are known. Of a message that is done with, the log has less.';

CREATE FUNCTION chunks_present(id bigint, number integer) RETURNS integer LANGUAGE plpgsql
    SET search_path = pgmta, pg_catalog, pg_temp AS $$
BEGIN
    -- chunks are written without a sync, so a crash can lose them
    IF number <> (SELECT count(*) FROM message_chunks WHERE message_id = id) THEN
        RAISE EXCEPTION 'chunks of a message are missing' USING
            ERRCODE = 'not_null_violation', TABLE = 'messages', COLUMN = 'chunks';
    END IF;
    RETURN number;
END $$;
COMMENT ON FUNCTION chunks_present IS 'Returns the number of chunks of a message, which are all there, or refuses it.';

INSERT INTO rights (object, role, privileges) VALUES
    ('SEQUENCE message_ids', 'pgmta_smtpd', 'USAGE'),
    ('SEQUENCE message_ids', 'pgmta_queued', 'USAGE'),
    ('messages', 'pgmta_smtpd', 'SELECT (id)'),
    -- FOR UPDATE asks for the right to change some column: this one does no harm
    ('messages', 'pgmta_queued', 'SELECT, UPDATE (received_at), DELETE'),
    ('messages', 'pgmta_operator', 'SELECT'),
    ('messages', 'pgmta_reader',
        'SELECT (id, received_at, size, utf8, chunks, trace, tenant, message_id_header, '
        'envid, ret, requiretls, submitted_by, origin, tls_optional, template_id)'),
    -- for a message that is refused in the end, whose chunks are removed
    ('message_chunks', 'pgmta_smtpd', 'SELECT (message_id), INSERT (message_id, position, data), DELETE'),
    ('message_chunks', 'pgmta_queued', 'SELECT, INSERT (message_id, position, data), DELETE'),
    ('message_chunks', 'pgmta_queued', 'MAINTAIN'),
    ('messages', 'pgmta_queued', 'MAINTAIN'),
    ('message_chunks', 'pgmta_operator', 'SELECT'),
    ('message_chunks', 'pgmta_reader', 'SELECT (message_id, position, stored_at)'),
    ('FUNCTION queue_put', 'pgmta_smtpd', 'EXECUTE'),
    ('FUNCTION queue_put', 'pgmta_queued', 'EXECUTE'),
    ('FUNCTION group_stored', 'pgmta_smtpd', 'EXECUTE'),
    ('FUNCTION group_stored', 'pgmta_queued', 'EXECUTE');

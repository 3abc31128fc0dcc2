-- Messages: the content and what all its recipients share, and the one function that puts mail in.

CREATE SEQUENCE message_ids;
COMMENT ON SEQUENCE message_ids IS
    'Ids of messages. smtpd takes several at once, so that it knows the id before the insert.';

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

-- By arrays, because smtpd writes many messages at once. Each message and row has a value in each array; where an
-- array is null, all have the default of the column. Callers may be any role, and SET search_path took 48 µs, so all
-- names have their schema, and there are no operators.
CREATE FUNCTION queue_put(
    -- arrays with a value for each message
    ids bigint[], sizes bigint[], traces text[], bodies bytea[], message_id_headers text[], origins text[],
    senders text[], sender_domains text[], priorities smallint[],
    -- arrays with a value for each row: the number of its message from 1, and the recipient
    numbers integer[], recipients text[], domains text[],
    -- more arrays with a value for each message
    utf8 boolean[] DEFAULT NULL, chunks integer[] DEFAULT NULL, tenants text[] DEFAULT NULL,
    on_failed text[] DEFAULT NULL, once boolean[] DEFAULT NULL, logins text[] DEFAULT NULL,
    envids text[] DEFAULT NULL, rets text[] DEFAULT NULL, requiretls boolean[] DEFAULT NULL,
    tls_optional boolean[] DEFAULT NULL,
    -- more of each row; a hold is its reason
    metadata text[] DEFAULT NULL, holds text[] DEFAULT NULL, notifies text[] DEFAULT NULL, orcpts text[] DEFAULT NULL,
    -- the time of each message, null for one that is not scheduled; a past time counts as none
    send_ats timestamptz[] DEFAULT NULL,
    -- arrays with a value for each message, if it is composed
    template_ids bigint[] DEFAULT NULL, params jsonb[] DEFAULT NULL
) RETURNS integer LANGUAGE plpgsql SECURITY DEFINER AS $$
#variable_conflict use_column
DECLARE
    rows integer;
    waits boolean[];  -- for each message, whether it is scheduled
BEGIN
    IF queue_put.chunks IS NOT NULL THEN
        PERFORM pgmta.chunks_present(ids, queue_put.chunks);
    END IF;
    IF queue_put.send_ats IS NOT NULL THEN
        SELECT t.send_ats, t.scheduled INTO queue_put.send_ats, waits FROM pgmta.schedule_times(queue_put.send_ats) AS t;
    END IF;
    -- The whole group fails if one id exists already, because the caller repeats a group then.
    INSERT INTO pgmta.messages (id, size, utf8, chunks, trace, body, message_id_header, tenant, submitted_by, envid,
        ret, requiretls, origin, tls_optional, template_id, params)
    SELECT ids[n], sizes[n], coalesce(queue_put.utf8[n], false), coalesce(queue_put.chunks[n], 0), traces[n], bodies[n],
        message_id_headers[n], coalesce(tenants[n], ''), logins[n], envids[n], rets[n],
        coalesce(queue_put.requiretls[n], false), origins[n], coalesce(queue_put.tls_optional[n], false),
        template_ids[n], queue_put.params[n]
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

CREATE FUNCTION chunks_present(ids bigint[], chunks integer[]) RETURNS void LANGUAGE plpgsql
    SET search_path = pgmta, pg_catalog, pg_temp AS $$
BEGIN
    -- chunks are written without a sync, so a crash can lose them
    IF EXISTS (
        SELECT FROM unnest(ids, chunks) AS message (id, number)
        WHERE number > 0 AND number <> (SELECT count(*) FROM message_chunks WHERE message_id = message.id)
    ) THEN
        RAISE EXCEPTION 'chunks of a message are missing' USING
            ERRCODE = 'not_null_violation', TABLE = 'messages', COLUMN = 'chunks';
    END IF;
END $$;
COMMENT ON FUNCTION chunks_present IS 'Refuses messages whose chunks are not all there.';

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
    ('FUNCTION queue_put', 'pgmta_queued', 'EXECUTE');

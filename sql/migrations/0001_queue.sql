-- The queue: bodies once, one row a recipient, a log of attempts.
-- docs/architecture.md tells why it is cut like this; docs/decisions/ what was rejected.

CREATE SEQUENCE message_ids INCREMENT 100 CACHE 1;
COMMENT ON SEQUENCE message_ids IS
    'Each value opens a block of 100 message ids, so that smtpd knows the id before the insert.';

CREATE TABLE messages (
    id bigint PRIMARY KEY,
    received_at timestamptz NOT NULL DEFAULT now(),
    size bigint NOT NULL CHECK (size >= 0),
    utf8 boolean NOT NULL DEFAULT false,
    chunks integer NOT NULL DEFAULT 0 CHECK (chunks >= 0),
    trace text NOT NULL,
    body bytea NOT NULL
) WITH (
    autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000,
    autovacuum_vacuum_insert_threshold = -1, autovacuum_vacuum_cost_delay = 0,
    autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 20000,
    toast.autovacuum_vacuum_scale_factor = 0, toast.autovacuum_vacuum_threshold = 4000,
    toast.autovacuum_vacuum_cost_delay = 0,
    -- a body of some KB stands in its row: a fifth less work than out of line (docs/decisions/0004)
    toast_tuple_target = 8160
);
COMMENT ON TABLE messages IS 'Accepted messages, each body once however many recipients it has.';
COMMENT ON COLUMN messages.id IS 'The queue id: given to the client with 250, stands in Received.';
COMMENT ON COLUMN messages.received_at IS 'When the message was committed.';
COMMENT ON COLUMN messages.size IS 'Octets as received, without the trace headers added here.';
COMMENT ON COLUMN messages.utf8 IS 'MAIL FROM carried SMTPUTF8 (RFC 6531): the next hop must know it.';
COMMENT ON COLUMN messages.chunks IS 'Pieces in message_chunks; 0: the whole content is in body.';
COMMENT ON COLUMN messages.trace IS 'Header lines put before the content when it is sent on (Received).';
COMMENT ON COLUMN messages.body IS 'The content as received, octet for octet, if it is at most 1 MiB.';

CREATE TABLE message_chunks (
    message_id bigint NOT NULL,
    position integer NOT NULL CHECK (position >= 0),
    stored_at timestamptz NOT NULL DEFAULT now(),
    data bytea NOT NULL,
    PRIMARY KEY (message_id, position)
);
ALTER TABLE message_chunks ALTER COLUMN data SET STORAGE EXTERNAL;
COMMENT ON TABLE message_chunks IS
    'Content of large messages in pieces, so that neither side ever holds one whole. Written before '
    'the message row; pieces that no message claims belong to a transaction that died.';
COMMENT ON COLUMN message_chunks.message_id IS 'messages.id; no foreign key, as the pieces come first.';
COMMENT ON COLUMN message_chunks.position IS 'Order of the pieces, from 0.';
COMMENT ON COLUMN message_chunks.stored_at IS 'When the piece was committed.';
COMMENT ON COLUMN message_chunks.data IS 'Octets as received; mostly base64, so stored uncompressed.';

-- lz4 where the server is built with it. pglz costs more CPU than the rest of a message's way, so
-- without lz4 bodies stand as they are (docs/decisions/0004).
DO $$
BEGIN
    IF EXISTS (SELECT FROM pg_settings
               WHERE name = 'default_toast_compression' AND 'lz4' = ANY (enumvals)) THEN
        ALTER TABLE messages ALTER COLUMN body SET COMPRESSION lz4;
    ELSE
        ALTER TABLE messages ALTER COLUMN body SET STORAGE EXTERNAL;
    END IF;
END $$;

CREATE SEQUENCE queue_ids;
COMMENT ON SEQUENCE queue_ids IS 'queue.id; a sequence, as PostgreSQL 15 has no identity on leaves.';

CREATE SEQUENCE lease_tokens;
COMMENT ON SEQUENCE lease_tokens IS 'Fencing tokens: each claim takes the next one.';

CREATE TABLE queue (
    id bigint NOT NULL DEFAULT nextval('queue_ids'),
    message_id bigint NOT NULL REFERENCES messages (id),
    ts timestamptz NOT NULL DEFAULT now(),
    next_attempt timestamptz NOT NULL DEFAULT now(),
    lease_since timestamptz,
    lease_until timestamptz,
    lease_token bigint,
    attempts integer NOT NULL DEFAULT 0 CHECK (attempts >= 0),
    priority smallint NOT NULL DEFAULT 5 CHECK (priority BETWEEN 0 AND 9),
    status text NOT NULL DEFAULT 'QUEUED'
        CONSTRAINT queue_status CHECK (status IN ('QUEUED', 'DEFERRED', 'SENDING', 'HOLD', 'DELETE')),
    lease_owner text,
    sender text NOT NULL,
    recipient text NOT NULL,
    domain text COLLATE "C" NOT NULL,
    last_reply text,
    metadata jsonb NOT NULL DEFAULT '{}' CHECK (jsonb_typeof(metadata) = 'object'),
    CONSTRAINT queue_lease CHECK (status <> 'SENDING' OR (lease_until IS NOT NULL
        AND lease_since IS NOT NULL AND lease_token IS NOT NULL AND lease_owner IS NOT NULL))
) PARTITION BY LIST (status);
COMMENT ON TABLE queue IS 'One row for each recipient of each message that is not yet done.';
COMMENT ON COLUMN queue.id IS 'Of this row; unique by its sequence.';
COMMENT ON COLUMN queue.message_id IS 'messages.id, which is the queue id told to the client.';
COMMENT ON COLUMN queue.ts IS 'When the row was committed.';
COMMENT ON COLUMN queue.next_attempt IS 'Not to be tried before this time.';
COMMENT ON COLUMN queue.lease_since IS 'When the last claim was made.';
COMMENT ON COLUMN queue.lease_until IS 'Until then the row is the lease owner''s; afterwards anybody''s.';
COMMENT ON COLUMN queue.lease_token IS 'Fencing token of the last claim: an outcome with another one changes nothing.';
COMMENT ON COLUMN queue.attempts IS 'Attempts begun, the one under way included.';
COMMENT ON COLUMN queue.priority IS '0 is claimed first, 9 last.';
COMMENT ON COLUMN queue.status IS
    'QUEUED, DEFERRED (an attempt failed for now), SENDING (leased), HOLD (an operator decides), '
    'DELETE (to be removed).';
COMMENT ON COLUMN queue.lease_owner IS 'Worker that holds the lease: name@host:pid.';
COMMENT ON COLUMN queue.sender IS 'Reverse-path without brackets; empty for the null reverse-path.';
COMMENT ON COLUMN queue.recipient IS 'Forward-path without brackets, as the client gave it.';
COMMENT ON COLUMN queue.domain IS 'The recipient''s domain, lower case, A-labels.';
COMMENT ON COLUMN queue.last_reply IS 'Last reply, or what went wrong without one.';
COMMENT ON COLUMN queue.metadata IS 'Free for rules; keys beginning with _ are Postern''s (_partid, _quarantineid).';

-- The key is a column of every index condition that workers use; status and the lease are in
-- none, so that a claim is a heap-only update in half-full pages.
CREATE INDEX queue_id ON queue (id);
CREATE INDEX queue_message_id ON queue (message_id);
CREATE INDEX queue_due ON queue (priority, next_attempt);
COMMENT ON INDEX queue_id IS 'Settling and operators find a row by its id.';
COMMENT ON INDEX queue_message_id IS 'Whether a body is still referred to; queuectl show.';
COMMENT ON INDEX queue_due IS 'Claims, in order.';

CREATE TABLE queue_hold PARTITION OF queue FOR VALUES IN ('HOLD');
CREATE TABLE queue_def PARTITION OF queue DEFAULT PARTITION BY LIST ((metadata ->> '_partid'));
CREATE TABLE queue_def_def PARTITION OF queue_def DEFAULT WITH (
    fillfactor = 50,
    autovacuum_vacuum_scale_factor = 0.1, autovacuum_vacuum_threshold = 2000,
    autovacuum_vacuum_insert_threshold = -1, autovacuum_vacuum_cost_delay = 0,
    autovacuum_analyze_scale_factor = 0.2, autovacuum_analyze_threshold = 20000
);
COMMENT ON TABLE queue_hold IS 'Rows on hold, apart from those that move.';
COMMENT ON TABLE queue_def IS 'All other rows, by metadata ->> ''_partid''.';
COMMENT ON TABLE queue_def_def IS 'Rows whose _partid has no partition of its own, or is absent.';

CREATE FUNCTION messages_refcount_func() RETURNS trigger
    LANGUAGE plpgsql
    SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off
    AS $$
DECLARE
    ids bigint[];
    large bigint[];
BEGIN
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
    'that move between partitions do not fire it.';
CREATE TRIGGER messages_refcount AFTER DELETE ON queue
    REFERENCING OLD TABLE AS gone FOR EACH STATEMENT EXECUTE FUNCTION messages_refcount_func();
COMMENT ON TRIGGER messages_refcount ON queue IS 'Keeps messages exact: gone with the last row.';

CREATE TABLE attempts (
    ended_at timestamptz NOT NULL DEFAULT now(),
    started_at timestamptz NOT NULL,
    queue_id bigint NOT NULL,
    message_id bigint NOT NULL,
    lease_token bigint NOT NULL,
    attempt integer NOT NULL,
    code smallint NOT NULL,
    event text NOT NULL
        CONSTRAINT attempts_event CHECK (event IN ('delivered', 'deferred', 'failed', 'unknown', 'deleted')),
    sender text NOT NULL,
    recipient text NOT NULL,
    domain text NOT NULL,
    worker text NOT NULL,
    host text NOT NULL,
    command text NOT NULL,
    enhanced text NOT NULL,
    reply text NOT NULL
) PARTITION BY RANGE (ended_at);
CREATE INDEX attempts_message_id ON attempts (message_id);
CREATE INDEX attempts_recipient ON attempts (recipient);
COMMENT ON TABLE attempts IS
    'Every delivery attempt that began, one row a recipient; partitioned by day (UTC).';
COMMENT ON COLUMN attempts.ended_at IS 'When the outcome was known (or, for a takeover, given up).';
COMMENT ON COLUMN attempts.started_at IS 'When the attempt began: for a dead worker, its claim.';
COMMENT ON COLUMN attempts.queue_id IS 'queue.id of the recipient''s row, which may be gone.';
COMMENT ON COLUMN attempts.message_id IS 'messages.id, the queue id, which may be gone.';
COMMENT ON COLUMN attempts.lease_token IS 'Token the attempt ran under.';
COMMENT ON COLUMN attempts.attempt IS 'Count of attempts, from 1.';
COMMENT ON COLUMN attempts.code IS 'Reply code (RFC 5321); 0 where there was no reply.';
COMMENT ON COLUMN attempts.event IS
    'delivered, deferred, failed (held), unknown (the next hop may have it: a reason for a duplicate), '
    'deleted (on request, without an attempt).';
COMMENT ON COLUMN attempts.sender IS 'Reverse-path.';
COMMENT ON COLUMN attempts.recipient IS 'Forward-path.';
COMMENT ON COLUMN attempts.domain IS 'The recipient''s domain.';
COMMENT ON COLUMN attempts.worker IS 'Worker that made the attempt: name@host:pid.';
COMMENT ON COLUMN attempts.host IS 'Next hop, host:port; empty where none was reached.';
COMMENT ON COLUMN attempts.command IS 'SMTP command that the reply answers.';
COMMENT ON COLUMN attempts.enhanced IS 'Enhanced status code (RFC 3463) of the reply, or empty.';
COMMENT ON COLUMN attempts.reply IS 'Text of the reply, or what went wrong.';
COMMENT ON INDEX attempts_message_id IS 'queuectl show.';
COMMENT ON INDEX attempts_recipient IS 'What became of the mail for an address.';

CREATE TABLE attempts_default PARTITION OF attempts DEFAULT;
COMMENT ON TABLE attempts_default IS 'Catches rows of days without a partition; normally empty.';

CREATE FUNCTION attempts_partitions(days integer) RETURNS integer
    LANGUAGE plpgsql AS $$
DECLARE
    day date;
    name text;
    made integer := 0;
BEGIN
    PERFORM pg_advisory_xact_lock(hashtext('postern attempts'));
    FOR ahead IN 0 .. days LOOP
        day := (now() AT TIME ZONE 'UTC')::date + ahead;
        name := 'attempts_' || to_char(day, 'YYYYMMDD');
        IF to_regclass('public.' || name) IS NULL THEN
            EXECUTE format(
                'CREATE TABLE public.%I PARTITION OF public.attempts FOR VALUES FROM (%L) TO (%L)',
                name, day || ' 00:00:00+00', day + 1 || ' 00:00:00+00');
            made := made + 1;
        END IF;
    END LOOP;
    RETURN made;
END $$;
COMMENT ON FUNCTION attempts_partitions(integer) IS
    'Makes the day partitions of attempts from today to that many days ahead; returns how many.';
SELECT attempts_partitions(7);

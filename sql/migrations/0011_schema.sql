-- A schema of its own, roles of that name, and the columns that submission and later parts need.
-- In a new database `migrate` makes everything in schema pgmta from the first migration on: then
-- nothing moves here (docs/decisions/0030).

-- 1. The schema, and what moves into it.

DO $$
BEGIN
    IF to_regnamespace('pgmta') IS NULL THEN CREATE SCHEMA pgmta; END IF;
END $$;
COMMENT ON SCHEMA pgmta IS 'pgmta, a mail relay whose queue is a PostgreSQL table.';

DO $$
DECLARE
    kind text;
    object text;
    grantee oid;
BEGIN
    IF to_regclass('pgmta.schema_migrations') IS NOT NULL THEN RETURN; END IF;
    -- owners, and all with rights by name, keep them and reach the objects as before
    FOR grantee IN
        SELECT DISTINCT acl.grantee FROM (
            SELECT coalesce(relacl, acldefault('r', relowner)) AS given FROM pg_class WHERE oid IN (
                SELECT relid FROM pg_partition_tree('public.queue')
                UNION SELECT relid FROM pg_partition_tree('public.attempts')
                UNION SELECT unnest(ARRAY['public.messages', 'public.message_chunks', 'public.workers', 'public.rules', 'public.rules_version', 'public.audit', 'public.daemons',
                    'public.queue_overview', 'public.queue_by_domain', 'public.attempt_history', 'public.attempt_rates',
                    'public.duplicates', 'public.hold_overview', 'public.worker_overview']::regclass[]))
            UNION ALL
            SELECT attacl FROM pg_attribute WHERE attacl IS NOT NULL AND attrelid IN (
                SELECT relid FROM pg_partition_tree('public.queue')
                UNION SELECT unnest(ARRAY['public.attempts', 'public.messages', 'public.message_chunks']::regclass[]))
        ) AS object CROSS JOIN aclexplode(object.given) AS acl
    LOOP
        EXECUTE 'GRANT USAGE ON SCHEMA pgmta TO ' || CASE grantee WHEN 0 THEN 'PUBLIC' ELSE grantee::regrole::text END;
    END LOOP;
    -- leaves that operators made may stand in any schema
    FOR kind, object IN
        SELECT 'TABLE', relid::regclass::text FROM pg_partition_tree('public.queue')
        UNION ALL SELECT 'TABLE', relid::regclass::text FROM pg_partition_tree('public.attempts')
        UNION ALL SELECT 'TABLE', 'public.' || name FROM unnest(ARRAY['messages', 'message_chunks',
            'workers', 'rules', 'rules_version', 'audit', 'daemons', 'schema_migrations']) AS name
        UNION ALL SELECT 'SEQUENCE', 'public.' || name
        FROM unnest(ARRAY['message_ids', 'queue_ids', 'lease_tokens']) AS name
        UNION ALL SELECT 'VIEW', 'public.' || name FROM unnest(ARRAY['queue_overview', 'queue_by_domain',
            'attempt_history', 'attempt_rates', 'duplicates', 'hold_overview', 'worker_overview']) AS name
        UNION ALL SELECT 'FUNCTION', oid::text FROM unnest(ARRAY[
            'public.attempts_expire(interval)', 'public.attempts_partitions(integer)',
            'public.messages_refcount_func()', 'public.postern_grants()', 'public.postern_grants_0007()',
            'public.postern_grants_0008()', 'public.postern_grants_basic()', 'public.queue_change(text, text, jsonb)',
            'public.queue_change_rows(text, bigint[], text, jsonb)', 'public.queue_condition(text)',
            'public.queue_delete(text, text)', 'public.queue_hold(text, text, interval)', 'public.queue_hold_stamp()',
            'public.queue_malformed(text, text, text)', 'public.queue_quarantine(text, text, text, interval)',
            'public.queue_quiet()', 'public.queue_release(text)', 'public.queue_retry(text)',
            'public.queue_sender_domain(text)', 'public.queue_sender_domain_func()', 'public.queue_takes(text)',
            'public.queue_test(text, bigint[])', 'public.rules_changed()', 'public.rules_valid()']::regprocedure[]) AS oid
    LOOP
        EXECUTE format('ALTER %s %s SET SCHEMA pgmta', kind, object);
    END LOOP;
END $$;
SET LOCAL search_path = pgmta;

-- 2. The functions name the schema. Those that evaluate an operator's condition have a search_path
-- of their own, so that a condition means the same whoever calls. It has public only if it is safe.

CREATE FUNCTION condition_path() RETURNS text LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT CASE WHEN EXISTS (
        SELECT FROM pg_namespace AS place, LATERAL (
            SELECT nspowner UNION SELECT grantee FROM aclexplode(nspacl) WHERE privilege_type = 'CREATE'
        ) AS makers (maker)
        WHERE nspname = 'public' AND pg_has_role(
            CASE maker WHEN 0 THEN NULL WHEN to_regrole('pg_database_owner') THEN (
                SELECT datdba FROM pg_database WHERE datname = current_database()) ELSE maker END,
            (SELECT nspowner FROM pg_namespace WHERE nspname = 'pgmta'), 'USAGE') IS NOT TRUE
    ) THEN 'pgmta' ELSE 'pgmta, public' END
$$;
COMMENT ON FUNCTION condition_path() IS 'The search_path of conditions: pgmta, public; without public if a '
    'role beside the owner of schema pgmta may create objects there. pgmta/postgres/locate.py has the same.';

DO $$
DECLARE
    function regprocedure;
    source text;
BEGIN
    FOR function IN
        SELECT oid FROM pg_proc WHERE pronamespace = 'pgmta'::regnamespace AND prokind = 'f'
    LOOP
        source := replace(replace(pg_get_functiondef(function), 'public.', 'pgmta.'), 'postern', 'pgmta');
        IF function::text ~ '\mqueue_test\(' THEN
            source := replace(source, 'blank.metadata := ''{}'';', 'blank.metadata := ''{}'';
        blank.tenant := '''';
        blank.on_failed := ''hold'';
        blank.once := false;');
            source := replace(source, '\mpublic\s*\.', '\m(public|pgmta)\s*\.');
            IF strpos(source, 'blank.once') = 0 OR strpos(source, '(public|pgmta)') = 0 THEN
                RAISE EXCEPTION 'function queue_test was changed after migration 0010'
                    USING HINT = 'Restore the function of sql/migrations, then migrate.';
            END IF;
        END IF;
        IF function::text ~ '\mqueue_(test|condition|change)\(' THEN
            source := regexp_replace(source, '\nBEGIN\n', E'\nBEGIN\n    '
                'PERFORM set_config(''search_path'', pgmta.condition_path() || '', pg_temp'', true);\n');
            EXECUTE source;
            EXECUTE format('ALTER FUNCTION %s SET search_path = pgmta, pg_temp', function);
        ELSE
            EXECUTE source;
        END IF;
    END LOOP;
    -- one function gives all rights from now on, under the name of its schema
    FOR function IN
        SELECT oid FROM pg_proc WHERE pronamespace = 'pgmta'::regnamespace
            AND proname ~ '^(postern|pgmta)_grants'
    LOOP
        EXECUTE 'DROP FUNCTION ' || function;
    END LOOP;
END $$;
UPDATE rules SET condition = regexp_replace(condition, '\mpublic\s*\.\s*queue\M', 'queue', 'gi')
WHERE condition ~* '\mpublic\s*\.\s*queue\M' OR condition_path() = 'pgmta';  -- a trigger checks them

-- 3. States, events and columns. Only on_failed and once act already.

-- PostgreSQL reads each CHECK anew for each statement: the eight of a row took longer than its insert. So
-- there are few, and short ones (docs/decisions/0029).
ALTER TABLE queue
    DROP CONSTRAINT IF EXISTS queue_status,
    DROP CONSTRAINT IF EXISTS queue_addresses,  -- by the trigger queue_sender_domain from now on
    DROP CONSTRAINT IF EXISTS queue_attempts_check;
ALTER TABLE messages DROP CONSTRAINT IF EXISTS messages_size_check, DROP CONSTRAINT IF EXISTS messages_chunks_check;
ALTER TABLE queue
    ADD COLUMN send_at timestamptz,
    ADD COLUMN tenant text COLLATE "C" NOT NULL DEFAULT '',
    ADD COLUMN on_failed text NOT NULL DEFAULT 'hold'
        CONSTRAINT queue_on_failed CHECK (on_failed IN ('hold', 'remove')),
    ADD COLUMN once boolean NOT NULL DEFAULT false,
    ADD COLUMN notify text,
    ADD COLUMN orcpt text,
    ADD CONSTRAINT queue_status CHECK (status = ANY ('{QUEUED,DEFERRED,SENDING,HOLD,DELETE,SCHEDULED}'::text[]));
COMMENT ON COLUMN queue.message_id IS 'messages.id, the message id that the client got.';
COMMENT ON COLUMN queue.status IS
    'QUEUED, DEFERRED (an attempt failed for now), SENDING (leased), HOLD (an operator decides), '
    'DELETE (to be removed), SCHEDULED (waits for send_at).';
COMMENT ON COLUMN queue.metadata IS 'Free for rules; keys beginning with _ belong to pgmta (_partid, _quarantineid).';
COMMENT ON COLUMN queue.send_at IS 'When a scheduled row may be sent; null: at once.';
COMMENT ON COLUMN queue.tenant IS 'For whom the mail is; empty: no tenant.';
COMMENT ON COLUMN queue.on_failed IS
    'What becomes of the row after a final failure: hold, or remove with an entry in the log.';
COMMENT ON COLUMN queue.once IS 'Never a second copy: an unknown outcome and a lost lease are final.';
COMMENT ON COLUMN queue.notify IS 'NOTIFY of the recipient (RFC 3461, section 4.1); null: not given.';
COMMENT ON COLUMN queue.orcpt IS 'ORCPT of the recipient (RFC 3461, section 4.2); null: not given.';
COMMENT ON CONSTRAINT queue_on_failed ON queue IS 'The two policies.';

CREATE OR REPLACE FUNCTION queue_sender_domain_func() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'INSERT' AND NEW.status NOT IN ('SENDING', 'HOLD', 'DELETE')
            AND pgmta.queue_malformed(NEW.sender, NEW.recipient, NEW.domain) THEN
        RAISE EXCEPTION 'an address has a control character, bidi mark or line separator (queue_addresses)'
            USING ERRCODE = 'check_violation', SCHEMA = 'pgmta', TABLE = 'queue', CONSTRAINT = 'queue_addresses',
                HINT = 'Such a row can only have status HOLD or DELETE.';
    END IF;
    IF TG_OP = 'INSERT' THEN
        NEW.lease_owner := coalesce(NEW.lease_owner, '');  -- for the trigger queue_message
    END IF;
    NEW.sender_domain := pgmta.queue_sender_domain(NEW.sender);
    RETURN NEW;
END $$;
COMMENT ON FUNCTION queue_sender_domain_func() IS
    'Fills queue.sender_domain, marks a row that a program inserts, and refuses one with a malformed address.';
COMMENT ON COLUMN queue.lease_owner IS
    'Worker that holds the lease: name@host:pid. Empty: a program inserted the row, and no worker has had it.';
COMMENT ON TRIGGER queue_sender_domain ON queue IS
    'A row that a program inserts by itself: its addresses are checked, and it gets its domain.';

-- on no column of a lease: that would end heap-only updates for all rows
CREATE INDEX queue_once ON queue (id) WHERE once;
COMMENT ON INDEX queue_once IS 'Rows with once whose lease ran out.';

CREATE TABLE queue_scheduled PARTITION OF queue (send_at NOT NULL) FOR VALUES IN ('SCHEDULED');
COMMENT ON TABLE queue_scheduled IS 'Rows that wait for send_at, apart from those that claims look at.';
CREATE INDEX queue_scheduled_due ON queue_scheduled (send_at);
COMMENT ON INDEX queue_scheduled_due IS 'Scheduled rows whose time comes.';

ALTER TABLE messages
    ADD COLUMN tenant text COLLATE "C" NOT NULL DEFAULT '',
    ADD COLUMN format text,
    ADD COLUMN template_id bigint,
    ADD COLUMN params jsonb,
    ADD COLUMN message_id_header text COLLATE "C",
    ADD COLUMN envid text,
    ADD COLUMN ret text CONSTRAINT messages_ret CHECK (ret IN ('FULL', 'HDRS')),
    ADD COLUMN requiretls boolean NOT NULL DEFAULT false,
    ADD COLUMN submitted_by text;
ALTER TABLE messages
    ALTER COLUMN tenant SET STATISTICS 10, ALTER COLUMN format SET STATISTICS 0,
    ALTER COLUMN template_id SET STATISTICS 10, ALTER COLUMN params SET STATISTICS 0,
    ALTER COLUMN message_id_header SET STATISTICS 10, ALTER COLUMN envid SET STATISTICS 0,
    ALTER COLUMN ret SET STATISTICS 0, ALTER COLUMN requiretls SET STATISTICS 0,
    ALTER COLUMN submitted_by SET STATISTICS 10;
COMMENT ON COLUMN messages.id IS 'The message id: the client gets it with 250, and Received has it.';
COMMENT ON COLUMN messages.chunks IS 'Chunks in message_chunks; 0: the whole content is in body.';
COMMENT ON COLUMN messages.tenant IS 'For whom the mail is; empty: no tenant.';
COMMENT ON COLUMN messages.format IS 'How the content is composed; null: body and chunks have it whole.';
COMMENT ON COLUMN messages.template_id IS 'Template that the content is composed from; null: none.';
COMMENT ON COLUMN messages.params IS 'Values for the template; content, which readers do not see.';
COMMENT ON COLUMN messages.message_id_header IS
    'Message-ID of the header (RFC 5322, section 3.6.4), with its brackets; null: it has none.';
COMMENT ON COLUMN messages.envid IS 'ENVID of the envelope (RFC 3461, section 4.4); null: not given.';
COMMENT ON COLUMN messages.ret IS 'RET of the envelope (RFC 3461, section 4.3); null: not given.';
COMMENT ON COLUMN messages.requiretls IS 'MAIL FROM carried REQUIRETLS (RFC 8689).';
COMMENT ON COLUMN messages.submitted_by IS
    'Login of the SQL session that submitted the message; null: it came by a daemon or a program of pgmta.';
COMMENT ON CONSTRAINT messages_ret ON messages IS 'The two values of RFC 3461.';
CREATE INDEX messages_message_id_header ON messages (message_id_header)
    WHERE message_id_header IS NOT NULL;
COMMENT ON INDEX messages_message_id_header IS 'Search by Message-ID.';
COMMENT ON TABLE message_chunks IS
    'Content that is too large for its message row, in chunks. They are written before the message row. '
    'Chunks without a message belong to a transaction that did not end.';
COMMENT ON COLUMN message_chunks.message_id IS 'messages.id; no foreign key, because the chunks come first.';
COMMENT ON COLUMN message_chunks.position IS 'Order of the chunks, from 0.';
COMMENT ON COLUMN message_chunks.stored_at IS 'When the chunk was committed.';
COMMENT ON COLUMN message_chunks.data IS 'Octets as received; each chunk but the last has 8,096.';

ALTER TABLE attempts RENAME COLUMN queue_id TO row_id;
ALTER VIEW attempt_history RENAME COLUMN queue_id TO row_id;
ALTER VIEW duplicates RENAME COLUMN queue_id TO row_id;
ALTER TABLE attempts DROP CONSTRAINT IF EXISTS attempts_event;
ALTER TABLE attempts
    ADD COLUMN tenant text COLLATE "C" NOT NULL DEFAULT '',
    ADD COLUMN message_id_header text COLLATE "C",
    ADD COLUMN submitted_by text,
    ADD COLUMN metadata jsonb,
    ADD CONSTRAINT attempts_event CHECK (event IN ('delivered', 'deferred', 'failed', 'unknown',
        'deleted', 'cancelled', 'expired', 'suppressed'));
COMMENT ON COLUMN attempts.message_id IS 'messages.id, the message id; the message may be gone.';
COMMENT ON COLUMN attempts.event IS
    'delivered, deferred, failed (held or removed), unknown (the next hop may have it: a reason for a '
    'duplicate); without an attempt: deleted (on request), cancelled (by the sender), expired (too late), '
    'suppressed (the recipient wants no mail).';
COMMENT ON COLUMN attempts.tenant IS 'As queue.tenant.';
COMMENT ON COLUMN attempts.message_id_header IS 'As messages.message_id_header.';
COMMENT ON COLUMN attempts.submitted_by IS 'As messages.submitted_by.';
COMMENT ON COLUMN attempts.metadata IS 'As queue.metadata; null: it was empty.';
COMMENT ON COLUMN attempt_history.message_id IS 'The message id.';
COMMENT ON COLUMN duplicates.message_id IS 'The message id.';
-- No index of the log by Message-ID: it took 4 µs of CPU per relayed message (docs/decisions/0029).

CREATE OR REPLACE VIEW attempt_history AS
SELECT message_id, recipient, attempt, started_at, ended_at, ended_at - started_at AS duration,
    event, nullif(code, 0) AS code, nullif(enhanced, '') AS enhanced, reply,
    nullif(command, '') AS command, nullif(host, '') AS host, worker, sender, domain, row_id,
    tenant, message_id_header, submitted_by, metadata
FROM attempts;
COMMENT ON COLUMN attempt_history.tenant IS 'For whom the mail is; empty: no tenant.';
COMMENT ON COLUMN attempt_history.message_id_header IS
    'Message-ID of the header (RFC 5322, section 3.6.4); null: it has none.';
COMMENT ON COLUMN attempt_history.submitted_by IS
    'Login of the SQL session that submitted the message; null: none did.';
COMMENT ON COLUMN attempt_history.metadata IS 'Metadata of the row at that time; null: it was empty.';

CREATE OR REPLACE VIEW queue_overview AS
SELECT known.status, coalesce(q.rows, 0)::bigint AS rows, coalesce(q.messages, 0) AS messages,
    coalesce(q.octets, 0)::bigint AS octets, q.oldest, q.next_due,
    coalesce(q.due_now, 0)::bigint AS due_now
FROM (VALUES ('QUEUED'), ('DEFERRED'), ('SENDING'), ('HOLD'), ('DELETE'), ('SCHEDULED')) AS known (status)
LEFT JOIN (
    SELECT p.status, sum(p.rows) AS rows, count(*) AS messages, sum(m.size) AS octets,
        min(p.oldest) AS oldest, min(p.next_due) AS next_due, sum(p.due_now) AS due_now
    FROM (
        SELECT status, message_id, count(*) AS rows, min(ts) AS oldest,
            min(next_attempt) FILTER (WHERE status IN ('QUEUED', 'DEFERRED')) AS next_due,
            count(*) FILTER (WHERE status IN ('QUEUED', 'DEFERRED', 'SENDING')
                AND next_attempt <= now()
                AND (lease_until IS NULL OR (lease_until < now() AND NOT once))) AS due_now
        FROM queue GROUP BY status, message_id
    ) AS p LEFT JOIN messages AS m ON m.id = p.message_id
    GROUP BY p.status
) AS q ON q.status = known.status;

CREATE OR REPLACE VIEW queue_by_domain AS
SELECT domain, count(*) AS rows,
    count(*) FILTER (WHERE status = 'QUEUED') AS queued,
    count(*) FILTER (WHERE status = 'DEFERRED') AS deferred,
    count(*) FILTER (WHERE status = 'SENDING') AS sending,
    count(*) FILTER (WHERE status = 'HOLD') AS held,
    count(*) FILTER (WHERE status = 'DELETE') AS deleting,
    min(ts) AS oldest,
    min(next_attempt) FILTER (WHERE status IN ('QUEUED', 'DEFERRED')) AS next_attempt,
    mode() WITHIN GROUP (ORDER BY last_reply COLLATE "C") AS last_reply,
    count(*) FILTER (WHERE status = 'SCHEDULED') AS scheduled
FROM queue GROUP BY domain;
COMMENT ON COLUMN queue_by_domain.scheduled IS 'Rows that wait for send_at.';

-- 4. Roles. They belong to the cluster, so the former ones stay; each gets its rights from the new one.
-- Migration 0015 gives the new ones their rights.

DO $$
DECLARE
    part text;
BEGIN
    FOREACH part IN ARRAY ARRAY['smtpd', 'queued', 'operator', 'reader', 'submit'] LOOP
        BEGIN
            EXECUTE format('CREATE ROLE %I NOLOGIN', 'pgmta_' || part);
        EXCEPTION
            -- there already; being made by the migration of another database; not allowed
            WHEN duplicate_object OR unique_violation OR insufficient_privilege THEN NULL;
        END;
        CONTINUE WHEN to_regrole('postern_' || part) IS NULL;
        EXECUTE format('REVOKE ALL ON ALL TABLES IN SCHEMA pgmta FROM %I', 'postern_' || part);
        EXECUTE format('REVOKE ALL ON ALL SEQUENCES IN SCHEMA pgmta FROM %I', 'postern_' || part);
        EXECUTE format('REVOKE ALL ON ALL FUNCTIONS IN SCHEMA pgmta FROM %I', 'postern_' || part);
        EXECUTE format('REVOKE ALL ON SCHEMA pgmta FROM %I', 'postern_' || part);
        CONTINUE WHEN to_regrole('pgmta_' || part) IS NULL
            OR pg_has_role('postern_' || part, 'pgmta_' || part, 'MEMBER');
        BEGIN
            EXECUTE format('GRANT %I TO %I', 'pgmta_' || part, 'postern_' || part);
        EXCEPTION WHEN insufficient_privilege OR unique_violation THEN
            -- unique_violation: by the migration of another database at the same time
            IF SQLSTATE = '42501' THEN
                RAISE WARNING 'pgmta_% could not be granted to postern_%', part, part
                    USING HINT = format('A superuser does that: GRANT pgmta_%s TO postern_%s;', part, part);
            END IF;
        END;
    END LOOP;
END $$;

-- 5. In a database that has nothing but this, statements find the tables without the schema's name.
-- Views of operators on these tables do not count, because they belong to this.

DO $$
BEGIN
    IF EXISTS (SELECT FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
            WHERE n.nspname !~ '^(pgmta$|pg_|information_schema$)' AND c.relkind IN ('r', 'p', 'v', 'm', 'f')
                AND NOT EXISTS (SELECT FROM pg_depend AS d
                    WHERE d.classid = 'pg_class'::regclass AND d.objid = c.oid AND d.deptype = 'e')
                AND NOT EXISTS (SELECT FROM pg_rewrite AS r
                    JOIN pg_depend AS d ON d.classid = 'pg_rewrite'::regclass AND d.objid = r.oid
                    JOIN pg_class AS base ON d.refclassid = 'pg_class'::regclass AND d.refobjid = base.oid
                    WHERE r.ev_class = c.oid AND base.relnamespace = 'pgmta'::regnamespace)) THEN
        RAISE WARNING 'the database has other tables, so its search_path stays: write pgmta.queue, or SET search_path = pgmta, public';
        RETURN;
    END IF;
    EXECUTE format('ALTER DATABASE %I SET search_path = pgmta, public', current_database());
EXCEPTION WHEN insufficient_privilege THEN
    RAISE WARNING 'the search_path of the database could not be set'
        USING HINT = format('Its owner does that: ALTER DATABASE %I SET search_path = pgmta, public;', current_database());
END $$;

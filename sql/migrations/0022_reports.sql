-- DSNs: the status REPORT, and what was reported to whom: docs/decisions/0044-reports.md.

-- 1. The status. One ALTER TABLE, so that the rows are read once.

CREATE TABLE queue_report PARTITION OF queue (held_at NOT NULL) FOR VALUES IN ('REPORT') WITH (
    autovacuum_vacuum_scale_factor = 0.1, autovacuum_vacuum_threshold = 2000,
    autovacuum_vacuum_insert_threshold = -1, autovacuum_vacuum_cost_delay = 0,
    autovacuum_analyze_scale_factor = 0.2, autovacuum_analyze_threshold = 20000
);
COMMENT ON TABLE queue_report IS 'Rows whose senders are to be notified by a DSN, apart from those that claims look at.';
CREATE INDEX queue_report_held_at ON queue_report (held_at, id);
COMMENT ON INDEX queue_report_held_at IS 'The next rows to be reported.';

ALTER TABLE queue
    DROP CONSTRAINT queue_status,
    DROP CONSTRAINT queue_on_failed,
    ADD CONSTRAINT queue_status CHECK (status = ANY ('{QUEUED,DEFERRED,SENDING,HOLD,DELETE,SCHEDULED,REPORT}'::text[])),
    ADD CONSTRAINT queue_on_failed CHECK (on_failed IN ('hold', 'remove', 'bounce'));
COMMENT ON CONSTRAINT queue_on_failed ON queue IS 'The three policies.';
COMMENT ON COLUMN queue.status IS
    'QUEUED, DEFERRED (an attempt failed for now), SENDING (leased), HOLD (an operator decides), '
    'DELETE (to be removed), SCHEDULED (waits for send_at), REPORT (its sender gets a DSN).';
COMMENT ON COLUMN queue.on_failed IS
    'What becomes of the row after a final failure: hold, remove with an entry in the log, or bounce.';
COMMENT ON COLUMN queue.hold_reason IS
    'Why the row is on hold. In REPORT: undeliverable, relayed, delivered, or the reason of an operator.';
COMMENT ON COLUMN queue.held_by IS 'Who put it on hold, or in REPORT: an operator, rule or worker.';
COMMENT ON COLUMN queue.held_at IS 'When it was put on hold, or in REPORT.';

CREATE OR REPLACE FUNCTION queue_hold_stamp() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NEW.status NOT IN ('HOLD', 'DELETE')
            AND pgmta.queue_malformed(NEW.sender, NEW.recipient, NEW.domain) THEN
        -- stays, so that the others that the statement releases are released
        NEW.status := 'HOLD';
        NEW.held_at := now();
        NEW.held_by := coalesce(OLD.held_by, session_user);
        NEW.hold_reason := 'an address holds control characters: the row can only be deleted';
        NEW.hold_until := NULL;
    ELSIF OLD.status = 'REPORT' AND NEW.status <> 'DELETE' AND OLD.hold_reason IN ('relayed', 'delivered') THEN
        -- it was delivered: a hold and its release would send it a second time
        NEW.status := OLD.status;
        NEW.held_at := OLD.held_at;
        NEW.held_by := OLD.held_by;
        NEW.hold_reason := OLD.hold_reason;
        NEW.hold_until := OLD.hold_until;
    ELSIF NEW.status IN ('HOLD', 'REPORT') THEN
        NEW.held_at := now();
        NEW.held_by := coalesce(NEW.held_by, session_user);
        NEW.hold_reason := coalesce(NEW.hold_reason, 'no reason given');
        IF NEW.status = 'REPORT' THEN NEW.hold_until := NULL; END IF;
    ELSIF OLD.status IN ('HOLD', 'REPORT') THEN
        NEW.held_at := NULL;
        NEW.held_by := NULL;
        NEW.hold_reason := NULL;
        NEW.hold_until := NULL;
        NEW.faults := NULL;  -- the row may have been mended; what still fails is found again
        NEW.next_attempt := least(NEW.next_attempt, now());
    END IF;
    RETURN NEW;
END $$;
COMMENT ON FUNCTION queue_hold_stamp() IS
    'Says of every hold and report who, when and why, also of one by a plain UPDATE, and takes it off again. '
    'A row with a malformed address stays on hold. A row that was delivered stays in REPORT, or is deleted.';
-- a claim, which is most often, is known by its first two comparisons
CREATE OR REPLACE TRIGGER queue_hold_stamp BEFORE UPDATE OF status ON queue FOR EACH ROW
    WHEN (OLD.status <> NEW.status
        AND (NEW.status <> 'SENDING' OR OLD.status IN ('HOLD', 'DELETE', 'REPORT')))
    EXECUTE FUNCTION queue_hold_stamp();
COMMENT ON TRIGGER queue_hold_stamp ON queue IS 'Every hold has a reason, and every report.';

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
        IF NEW.status = 'REPORT' THEN NEW.held_at := coalesce(NEW.held_at, now()); END IF;
    END IF;
    NEW.sender_domain := pgmta.queue_sender_domain(NEW.sender);
    RETURN NEW;
END $$;

-- 2. What was reported, by day.

CREATE TABLE reports (
    at timestamptz NOT NULL DEFAULT now(),
    report_id bigint,
    message_id bigint NOT NULL,
    row_id bigint NOT NULL,
    recipient text NOT NULL,
    sender text NOT NULL,
    sent_to text,
    kind text NOT NULL CONSTRAINT reports_kind CHECK (kind IN ('failed', 'delayed', 'relayed', 'delivered')),
    class text,
    reason text
) PARTITION BY RANGE (at);
COMMENT ON TABLE reports IS
    'What each sender was notified of by a DSN, and why not, one row a recipient; partitioned by day (UTC).';
COMMENT ON COLUMN reports.at IS 'When the DSN was queued, or none was.';
COMMENT ON COLUMN reports.report_id IS 'messages.id of the DSN; null: there is none.';
COMMENT ON COLUMN reports.message_id IS 'messages.id of the message that it is about, which may be gone.';
COMMENT ON COLUMN reports.row_id IS 'queue.id of the recipient''s row, which may be gone.';
COMMENT ON COLUMN reports.recipient IS 'Forward-path.';
COMMENT ON COLUMN reports.sender IS 'Reverse-path of the message.';
COMMENT ON COLUMN reports.sent_to IS 'Address that the DSN went to; null: there is none.';
COMMENT ON COLUMN reports.kind IS 'failed, delayed, relayed (to a host without DSN) or delivered.';
COMMENT ON COLUMN reports.class IS 'As attempts.class; null: not known.';
COMMENT ON COLUMN reports.reason IS 'Why there is no DSN, or the reason of an operator who bounced the row.';
COMMENT ON CONSTRAINT reports_kind ON reports IS 'The actions of RFC 3464, section 2.3.3.';
CREATE INDEX reports_message_id ON reports (message_id);
COMMENT ON INDEX reports_message_id IS 'queuectl explain, of a message.';
CREATE INDEX reports_report_id ON reports (report_id) WHERE report_id IS NOT NULL;
COMMENT ON INDEX reports_report_id IS 'queuectl explain, of a DSN.';
CREATE TABLE reports_default PARTITION OF reports DEFAULT;
COMMENT ON TABLE reports_default IS 'Catches rows of days without a partition; normally empty.';

CREATE FUNCTION reports_partitions(days integer) RETURNS integer LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp SET lock_timeout = '0.3s' AS $$
DECLARE
    day date;
    name text;
    made integer := 0;
BEGIN
    LOCK TABLE ONLY pgmta.reports IN SHARE UPDATE EXCLUSIVE MODE;
    FOR ahead IN 0 .. days LOOP
        day := (now() AT TIME ZONE 'UTC')::date + ahead;
        name := 'reports_' || to_char(day, 'YYYYMMDD');
        IF to_regclass('pgmta.' || name) IS NULL THEN
            EXECUTE format(
                'CREATE TABLE pgmta.%I PARTITION OF pgmta.reports FOR VALUES FROM (%L) TO (%L)',
                name, day || ' 00:00:00+00', day + 1 || ' 00:00:00+00');
            made := made + 1;
        END IF;
    END LOOP;
    RETURN made;
END $$;
COMMENT ON FUNCTION reports_partitions(integer) IS
    'Makes the day partitions of reports from today to that many days ahead; returns how many.';
SELECT reports_partitions(7);

CREATE FUNCTION reports_expire(keep interval) RETURNS integer LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp SET lock_timeout = '0.3s' AS $$
DECLARE
    name text;
    dropped integer := 0;
BEGIN
    LOCK TABLE ONLY pgmta.reports IN SHARE UPDATE EXCLUSIVE MODE;
    FOR name IN
        SELECT c.relname FROM pg_inherits AS i JOIN pg_class AS c ON c.oid = i.inhrelid
        WHERE i.inhparent = 'pgmta.reports'::regclass AND c.relname ~ '^reports_\d{8}$'
            AND to_date(right(c.relname, 8), 'YYYYMMDD') + 1 <= (now() - keep) AT TIME ZONE 'UTC'
        ORDER BY 1
    LOOP
        EXECUTE format('DROP TABLE pgmta.%I', name);
        dropped := dropped + 1;
    END LOOP;
    RETURN dropped;
END $$;
COMMENT ON FUNCTION reports_expire(interval) IS
    'Drops the day partitions of reports that are older than that; returns how many.';
REVOKE EXECUTE ON FUNCTION reports_partitions(integer), reports_expire(interval) FROM PUBLIC;

-- 3. Delays to be reported, and how many DSNs there were lately.

CREATE TABLE delays (
    row_id bigint NOT NULL,
    after interval NOT NULL,
    message_id bigint NOT NULL,
    at timestamptz NOT NULL DEFAULT now(),
    noticed_at timestamptz,
    PRIMARY KEY (row_id, after)
);
COMMENT ON TABLE delays IS
    'Rows that were deferred past a time of bounces.delay in queued.yaml, once for each time, as long as they wait.';
COMMENT ON COLUMN delays.row_id IS 'queue.id.';
COMMENT ON COLUMN delays.after IS 'The time of bounces.delay.';
COMMENT ON COLUMN delays.message_id IS 'queue.message_id.';
COMMENT ON COLUMN delays.at IS 'When the deferral was written.';
COMMENT ON COLUMN delays.noticed_at IS 'When a DSN was queued, or it was found that none is due; null: not yet.';
CREATE INDEX delays_new ON delays (at) WHERE noticed_at IS NULL;
COMMENT ON INDEX delays_new IS 'Delays that are not reported yet.';
CREATE INDEX delays_message ON delays (message_id) WHERE noticed_at IS NULL;
COMMENT ON INDEX delays_message IS 'The delays of a message that one DSN reports.';

CREATE TABLE report_counts (
    sender text NOT NULL COLLATE "C",
    minute timestamptz NOT NULL,
    number integer NOT NULL,
    PRIMARY KEY (sender, minute)
) WITH (fillfactor = 50);
COMMENT ON TABLE report_counts IS 'DSNs of the last hour, for bounces.limits in queued.yaml.';
COMMENT ON COLUMN report_counts.sender IS 'Address that they went to, in lower case; empty: all of them.';
COMMENT ON COLUMN report_counts.minute IS 'Start of the minute.';
COMMENT ON COLUMN report_counts.number IS 'How many DSNs were queued in it.';

CREATE FUNCTION reports_close(
    -- rows that go, and those of them that an operator bounced, which the log does not know yet
    ids bigint[], bounced bigint[],
    -- rows that go on hold, as text, with their reasons
    held jsonb, who text,
    -- rows whose delay is reported
    delayed bigint[],
    -- DSNs by address, '' for all of them, and how many may be sent per hour
    counted text[], numbers integer[], limit_of_one integer, limit_of_all integer,
    -- the log
    report_ids bigint[], message_ids bigint[], row_ids bigint[], recipients text[], senders text[],
    sent_tos text[], kinds text[], classes text[], reasons text[]
) RETURNS void LANGUAGE plpgsql
    -- a plan that was made for an empty partition would later read the whole of it (docs/decisions/0005)
    SET search_path = pgmta, pg_temp SET enable_seqscan = off SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_variable
DECLARE
    holding bigint[] := ARRAY(SELECT key::bigint FROM jsonb_object_keys(held) AS key);
    found integer;
    this_minute timestamptz;
BEGIN
    -- A row that another transaction has locked is not waited for: the caller comes again.
    SELECT count(*) INTO found FROM (
        SELECT FROM queue AS q
        WHERE q.id = ANY (ids || holding) AND q.status = 'REPORT'
            AND (q.lease_until IS NULL OR q.lease_until < now() AND NOT q.once)
        ORDER BY q.id FOR UPDATE SKIP LOCKED
    ) AS locked;
    IF found <> cardinality(ids) + cardinality(holding) THEN
        RAISE EXCEPTION 'rows have moved on' USING ERRCODE = 'PM001', SCHEMA = 'pgmta', TABLE = 'queue';
    END IF;
    IF cardinality(delayed) > 0 THEN
        PERFORM FROM delays AS d WHERE d.row_id = ANY (delayed) AND d.noticed_at IS NULL
        ORDER BY d.row_id, d.after FOR UPDATE SKIP LOCKED;
        WITH noticed AS (
            UPDATE delays AS d SET noticed_at = now()
            WHERE d.row_id = ANY (delayed) AND d.noticed_at IS NULL RETURNING d.row_id
        )
        SELECT count(DISTINCT n.row_id) INTO found FROM noticed AS n;
        IF found <> cardinality(delayed) THEN
            RAISE EXCEPTION 'delays were reported' USING ERRCODE = 'PM001', SCHEMA = 'pgmta', TABLE = 'delays';
        END IF;
    END IF;
    IF cardinality(bounced) > 0 THEN
        -- an attempt was under way, and its worker died
        INSERT INTO attempts (started_at, row_id, message_id, lease_token, attempt, code, event,
            sender, recipient, domain, worker, host, command, enhanced, reply,
            tenant, message_id_header, submitted_by, metadata)
        SELECT q.lease_since, q.id, q.message_id, q.lease_token, q.attempts, 0, 'unknown',
            q.sender, left(q.recipient, 600), q.domain, q.lease_owner, '', '', '',
            'lease ran out: the worker died or lost the database',
            q.tenant, m.message_id_header, m.submitted_by, nullif(q.metadata, '{}')
        FROM queue AS q LEFT JOIN messages AS m ON m.id = q.message_id
        WHERE q.id = ANY (bounced) AND q.status = 'REPORT' AND q.lease_token IS NOT NULL;
        INSERT INTO attempts (started_at, row_id, message_id, lease_token, attempt, code, event,
            sender, recipient, domain, worker, host, command, enhanced, reply,
            tenant, message_id_header, submitted_by, metadata, class)
        SELECT now(), q.id, q.message_id, 0, q.attempts, 0, 'failed',
            q.sender, left(q.recipient, 600), q.domain, coalesce(q.held_by, ''), '', '', '', coalesce(q.hold_reason, ''),
            q.tenant, (SELECT m.message_id_header FROM messages AS m WHERE m.id = q.message_id),
            (SELECT m.submitted_by FROM messages AS m WHERE m.id = q.message_id), nullif(q.metadata, '{}'), 'other'
        FROM queue AS q WHERE q.id = ANY (bounced) AND q.status = 'REPORT';
    END IF;
    IF cardinality(holding) > 0 THEN
        UPDATE queue AS q SET status = 'HOLD', hold_reason = held ->> q.id::text, held_by = who
        WHERE q.id = ANY (holding) AND q.status = 'REPORT';
    END IF;
    IF cardinality(ids) > 0 THEN
        DELETE FROM queue AS q WHERE q.id = ANY (ids) AND q.status = 'REPORT';
    END IF;
    INSERT INTO reports (report_id, message_id, row_id, recipient, sender, sent_to, kind, class, reason)
    SELECT nullif(r.report_id, 0), r.message_id, r.row_id, r.recipient, r.sender, nullif(r.sent_to, ''), r.kind,
        nullif(r.class, ''), nullif(r.reason, '')
    FROM unnest(report_ids, message_ids, row_ids, recipients, senders, sent_tos, kinds, classes, reasons)
        AS r (report_id, message_id, row_id, recipient, sender, sent_to, kind, class, reason);
    IF cardinality(counted) > 0 THEN
        -- one at a time from here to the end, so that all of them together keep to the limits
        INSERT INTO report_counts VALUES ('', '-infinity', 0) ON CONFLICT (sender, minute) DO UPDATE SET number = 0;
        this_minute := date_trunc('minute', clock_timestamp());
        IF EXISTS (
            SELECT FROM unnest(counted, numbers) AS wanted (sender, number)
            WHERE wanted.number + coalesce((
                    SELECT sum(c.number) FROM report_counts AS c
                    WHERE c.sender = wanted.sender AND c.minute >= this_minute - interval '1 hour'), 0)
                > CASE wanted.sender WHEN '' THEN limit_of_all ELSE limit_of_one END
        ) THEN
            RAISE EXCEPTION 'other DSNs have reached a limit' USING
                ERRCODE = 'PM002', SCHEMA = 'pgmta', TABLE = 'report_counts';
        END IF;
        INSERT INTO report_counts AS c SELECT wanted.sender, this_minute, wanted.number
        FROM unnest(counted, numbers) AS wanted (sender, number)
        ON CONFLICT (sender, minute) DO UPDATE SET number = c.number + excluded.number;
    END IF;
END $$;
COMMENT ON FUNCTION reports_close IS
    'What is done with rows in REPORT, in the transaction that queues their DSNs: all of it, or an error. '
    'PM001: a row is not in REPORT any more, or locked. PM002: a limit would be exceeded.';
REVOKE EXECUTE ON FUNCTION reports_close FROM PUBLIC;

-- 4. Views and functions that name each status.

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
    count(*) FILTER (WHERE status = 'SCHEDULED') AS scheduled,
    count(*) FILTER (WHERE status = 'REPORT') AS reporting
FROM queue GROUP BY domain;
COMMENT ON COLUMN queue_by_domain.reporting IS 'Rows whose senders are about to get a DSN.';

CREATE OR REPLACE FUNCTION row_state(
    status text, lease_until timestamptz, hold_reason text, once boolean, attempts integer, logged integer, event text
) RETURNS text STABLE PARALLEL SAFE
RETURN CASE WHEN status = 'SENDING' OR lease_until > now() THEN 'sending'
    WHEN status = 'DELETE' THEN 'cancelled'
    WHEN status = 'REPORT' THEN CASE
        WHEN logged = attempts AND event = 'delivered' THEN 'delivered'
        WHEN logged IS NULL AND hold_reason IN ('relayed', 'delivered') THEN 'delivered'
        ELSE 'failed' END
    WHEN status <> 'HOLD' THEN lower(status)
    -- operators write hold_reason too, so the log counts
    WHEN attempts = 0 THEN 'held'
    WHEN logged = attempts THEN CASE WHEN event = 'failed' OR event = 'unknown' AND once THEN event ELSE 'held' END
    -- the database refused the entry, or its day is over: queued wrote these words
    WHEN hold_reason ~ '^(undeliverable$|undeliverable, no DSN|bounce limit|failed\M.*, but the database refuses )' THEN 'failed'
    WHEN hold_reason ~ '^(outcome unknown|(delivered|unknown|lease ran out)\M.*, but the database refuses )' THEN 'unknown'
    ELSE 'held' END;

CREATE OR REPLACE VIEW queue_states AS
SELECT q.message_id, q.recipient, q.id AS row_id, q.status, q.lease_until, q.hold_reason, q.once, q.attempts,
    CASE WHEN q.status IN ('QUEUED', 'DEFERRED') THEN q.next_attempt
        WHEN q.status = 'SCHEDULED' THEN q.send_at END AS next_attempt,
    CASE q.status WHEN 'SENDING' THEN q.lease_since WHEN 'HOLD' THEN q.held_at WHEN 'REPORT' THEN q.held_at END
        AS since, q.ts,
    substring(q.last_reply FROM '^([245][0-9][0-9])(?: |$)')::integer AS code,
    regexp_replace(q.last_reply, '^[245][0-9][0-9]( |$)', '') AS reply,
    m.submitted_by
FROM queue AS q JOIN messages AS m ON m.id = q.message_id;

-- 5. Rights.

ALTER FUNCTION grants() RENAME TO grants_0021;
COMMENT ON FUNCTION grants_0021() IS 'Part of grants().';
CREATE FUNCTION grants() RETURNS text[] LANGUAGE plpgsql
    SET search_path = pgmta, pg_catalog, pg_temp AS $$
BEGIN
    PERFORM grant_to('INSERT (on_failed) ON queue', 'pgmta_smtpd');
    PERFORM grant_to('SELECT, INSERT ON reports', 'pgmta_queued');
    PERFORM grant_to('SELECT, INSERT, UPDATE (noticed_at), DELETE ON delays', 'pgmta_queued');
    PERFORM grant_to('SELECT, INSERT, UPDATE (number), DELETE ON report_counts', 'pgmta_queued');
    PERFORM grant_to('EXECUTE ON FUNCTION reports_partitions(integer), reports_expire(interval), reports_close',
        'pgmta_queued');
    -- a DSN is a message like any other; a large one has chunks
    PERFORM grant_to('USAGE ON SEQUENCE message_ids', 'pgmta_queued');
    PERFORM grant_to('EXECUTE ON FUNCTION queue_put', 'pgmta_queued');
    PERFORM grant_to('INSERT (message_id, position, data) ON message_chunks', 'pgmta_queued');
    PERFORM grant_to('SELECT ON reports, delays, report_counts', 'pgmta_operator', 'pgmta_reader');
    RETURN grants_0021();
END $$;
REVOKE EXECUTE ON FUNCTION grants(), grants_0021() FROM PUBLIC;
COMMENT ON FUNCTION grants() IS
    'Gives the roles pgmta_smtpd, pgmta_queued, pgmta_operator, pgmta_reader and pgmta_submit their '
    'rights; to be called by the owner of the tables. Returns the roles that do not exist.';
DO $$ BEGIN PERFORM grants(); END $$;

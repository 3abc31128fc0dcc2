-- Reports: the DSNs that senders got, delays, and limits of DSNs.

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

CREATE TABLE reports_default PARTITION OF reports DEFAULT;
ALTER TABLE reports REPLICA IDENTITY FULL;
ALTER TABLE reports_default REPLICA IDENTITY FULL;
COMMENT ON TABLE reports_default IS 'Catches rows of days without a partition; normally empty.';

CREATE INDEX reports_message_id ON reports (message_id);
COMMENT ON INDEX reports_message_id IS 'queuectl explain, of a message.';
CREATE INDEX reports_report_id ON reports (report_id) WHERE report_id IS NOT NULL;
COMMENT ON INDEX reports_report_id IS 'queuectl explain, of a DSN.';

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
    sender text COLLATE "C" NOT NULL,
    minute timestamptz NOT NULL,
    number integer NOT NULL,
    PRIMARY KEY (sender, minute)
) WITH (fillfactor = 50);
COMMENT ON TABLE report_counts IS 'DSNs of the last hour, for bounces.limits in queued.yaml.';
COMMENT ON COLUMN report_counts.sender IS 'Address that they went to, in lower case; empty: all of them.';
COMMENT ON COLUMN report_counts.minute IS 'Start of the minute.';
COMMENT ON COLUMN report_counts.number IS 'How many DSNs were queued in it.';

SELECT days_make('reports', 7);

CREATE FUNCTION reports_close(
    -- rows to remove, and those of them that an operator bounced, which are not in the log yet
    ids bigint[], bounced bigint[],
    -- rows to put on hold, as text, with their reasons
    held jsonb, who text,
    -- rows whose delay was reported
    delayed bigint[],
    -- DSNs by address, '' for all of them, and how many may be sent per hour
    counted text[], numbers integer[], limit_of_one integer, limit_of_all integer,
    -- entries for the log
    report_ids bigint[], message_ids bigint[], row_ids bigint[], recipients text[], senders text[],
    sent_tos text[], kinds text[], classes text[], reasons text[]
) RETURNS void LANGUAGE plpgsql
    -- a plan that was made for an empty partition would later read the whole of it
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
        PERFORM rows_log(ARRAY(SELECT q.id FROM queue AS q
            WHERE q.id = ANY (bounced) AND q.status = 'REPORT' AND q.lease_token IS NOT NULL), 'unknown');
        PERFORM rows_log(bounced, 'failed');
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
    'What is done with rows in REPORT, in the transaction that queues their DSNs: all of it, or an error. PM001: a '
    'row is not in REPORT any more, or locked. PM002: a limit would be exceeded.';

CREATE VIEW report_rates AS
SELECT date_trunc('hour', at) AS hour, count(DISTINCT report_id) AS dsns,
    count(*) FILTER (WHERE kind = 'failed' AND report_id IS NOT NULL) AS failed,
    count(*) FILTER (WHERE kind = 'delayed' AND report_id IS NOT NULL) AS delayed,
    count(*) FILTER (WHERE kind IN ('relayed', 'delivered') AND report_id IS NOT NULL) AS succeeded,
    count(*) FILTER (WHERE report_id IS NULL) AS unreported
FROM reports WHERE at >= now() - interval '1 day' GROUP BY 1;
COMMENT ON VIEW report_rates IS
    'How many DSNs there were: recipients by the hour of their DSNs. Reads the last day of reports.';
COMMENT ON COLUMN report_rates.hour IS 'Start of the hour; one without reports has no line.';
COMMENT ON COLUMN report_rates.dsns IS 'DSNs, each of which may tell of several recipients.';
COMMENT ON COLUMN report_rates.failed IS 'Recipients that failed, or were given up by an operator.';
COMMENT ON COLUMN report_rates.delayed IS 'Recipients whose mail was late.';
COMMENT ON COLUMN report_rates.succeeded IS
    'Recipients that got the mail, or whose mail was relayed to a host without DSN.';
COMMENT ON COLUMN report_rates.unreported IS 'Recipients without a DSN; reports.reason says why.';

INSERT INTO rights (object, role, privileges) VALUES
    ('reports', 'pgmta_queued', 'SELECT, INSERT'),
    ('reports', 'pgmta_operator', 'SELECT'),
    ('reports', 'pgmta_reader', 'SELECT'),
    ('delays', 'pgmta_queued', 'SELECT, INSERT, UPDATE (at, noticed_at), DELETE'),
    ('delays', 'pgmta_operator', 'SELECT'),
    ('delays', 'pgmta_reader', 'SELECT'),
    ('report_counts', 'pgmta_queued', 'SELECT, INSERT, UPDATE (number), DELETE'),
    ('report_counts', 'pgmta_operator', 'SELECT'),
    ('report_counts', 'pgmta_reader', 'SELECT'),
    ('FUNCTION reports_close', 'pgmta_queued', 'EXECUTE'),
    ('report_rates', 'pgmta_operator', 'SELECT'),
    ('report_rates', 'pgmta_reader', 'SELECT');

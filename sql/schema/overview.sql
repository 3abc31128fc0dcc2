-- Views of the whole queue.

CREATE VIEW queue_overview AS
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
COMMENT ON VIEW queue_overview IS
    'The queue by status, one line each also where there is nothing. Scans queue: about a second for a million '
    'rows; octets scans messages too, without the bodies that are stored apart.';
COMMENT ON COLUMN queue_overview.status IS 'As queue.status.';
COMMENT ON COLUMN queue_overview.rows IS 'Rows, one a recipient.';
COMMENT ON COLUMN queue_overview.messages IS 'Messages with such a row; one may count in several lines.';
COMMENT ON COLUMN queue_overview.octets IS 'Size of these messages, each once a line.';
COMMENT ON COLUMN queue_overview.oldest IS 'The earliest queue.ts: of scheduled rows send_at.';
COMMENT ON COLUMN queue_overview.next_due IS 'Earliest next attempt of rows that wait.';
COMMENT ON COLUMN queue_overview.due_now IS
    'Rows a worker may take now. If it grows, workers are missing, slow, or leave these rows out.';

CREATE VIEW queue_by_domain AS
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
COMMENT ON VIEW queue_by_domain IS
    'The queue by destination. For one domain it reads that domain''s rows by index; without a condition it scans '
    'queue and sorts the replies: a few seconds for a million rows.';
COMMENT ON COLUMN queue_by_domain.domain IS 'As queue.domain.';
COMMENT ON COLUMN queue_by_domain.rows IS 'All rows.';
COMMENT ON COLUMN queue_by_domain.queued IS 'Rows not tried yet, released or handed back.';
COMMENT ON COLUMN queue_by_domain.deferred IS 'Rows that wait after an attempt.';
COMMENT ON COLUMN queue_by_domain.sending IS 'Rows that are being sent.';
COMMENT ON COLUMN queue_by_domain.held IS 'Rows on hold.';
COMMENT ON COLUMN queue_by_domain.deleting IS 'Rows about to be deleted.';
COMMENT ON COLUMN queue_by_domain.oldest IS 'The earliest queue.ts: of scheduled rows send_at.';
COMMENT ON COLUMN queue_by_domain.next_attempt IS 'Earliest next attempt of rows that wait.';
COMMENT ON COLUMN queue_by_domain.last_reply IS 'The most common last reply.';
COMMENT ON COLUMN queue_by_domain.scheduled IS 'Rows that wait for send_at.';
COMMENT ON COLUMN queue_by_domain.reporting IS 'Rows whose senders are about to get a DSN.';

CREATE VIEW hold_overview AS
SELECT metadata ->> '_quarantineid' AS quarantine, hold_reason AS reason, held_by,
    count(*) AS rows, min(ts) AS oldest, min(held_at) AS held_since, min(hold_until) AS next_expiry,
    count(*) FILTER (WHERE hold_until IS NULL) AS without_expiry
FROM queue WHERE status = 'HOLD' GROUP BY 1, 2, 3;
COMMENT ON VIEW hold_overview IS
    'What is on hold, by quarantine, reason and who did it. Scans the held rows, no others.';
COMMENT ON COLUMN hold_overview.quarantine IS 'metadata ->> ''_quarantineid''; null: a plain hold.';
COMMENT ON COLUMN hold_overview.reason IS 'As queue.hold_reason.';
COMMENT ON COLUMN hold_overview.held_by IS 'Operator, rule or worker.';
COMMENT ON COLUMN hold_overview.rows IS 'Rows on hold.';
COMMENT ON COLUMN hold_overview.oldest IS 'When the oldest row was accepted.';
COMMENT ON COLUMN hold_overview.held_since IS 'When the first of them was put on hold.';
COMMENT ON COLUMN hold_overview.next_expiry IS 'When the next of them releases itself.';
COMMENT ON COLUMN hold_overview.without_expiry IS 'Rows that wait for an operator.';

CREATE FUNCTION leaf_rows(leaf regclass, exact boolean, OUT rows bigint, OUT oldest timestamptz)
    LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF leaf = 'pgmta.attempts_default'::regclass THEN
        SELECT count(*), min(ended_at) INTO rows, oldest FROM pgmta.attempts_default;
    ELSIF leaf NOT IN (SELECT relid FROM pg_partition_tree('pgmta.queue')) THEN
        RAISE EXCEPTION '% is no partition of queue', leaf USING ERRCODE = 'invalid_parameter_value';
    ELSIF NOT has_table_privilege(leaf, 'SELECT') THEN
        RETURN;  -- the view has another owner, which `queuectl database partition check` reports
    ELSIF exact THEN
        EXECUTE format('SELECT count(*), min(ts) FROM %s', leaf) INTO rows, oldest;
    ELSE
        EXECUTE format('SELECT ts FROM %s ORDER BY id LIMIT 1', leaf) INTO oldest;
    END IF;
END $$;
COMMENT ON FUNCTION leaf_rows IS
    'The oldest row of a partition of queue by the lowest id; if exact also the number of rows, which reads all. '
    'For attempts_default both. Null for a partition of another owner. Roles have no right to the partitions themselves.';

INSERT INTO rights (object, role, privileges) VALUES
    ('queue_overview', 'pgmta_operator', 'SELECT'),
    ('queue_overview', 'pgmta_reader', 'SELECT'),
    ('queue_by_domain', 'pgmta_operator', 'SELECT'),
    ('queue_by_domain', 'pgmta_reader', 'SELECT'),
    ('hold_overview', 'pgmta_operator', 'SELECT'),
    ('hold_overview', 'pgmta_reader', 'SELECT'),
    ('FUNCTION leaf_rows', 'pgmta_operator', 'EXECUTE'),
    ('FUNCTION leaf_rows', 'pgmta_reader', 'EXECUTE');

-- The state of each recipient, in the queue or gone, and cancel().

CREATE FUNCTION sees_all_mail(cancelling boolean DEFAULT false, role name DEFAULT acting()) RETURNS boolean
    LANGUAGE sql STABLE PARALLEL SAFE SET search_path = pgmta, pg_catalog, pg_temp AS $$
    SELECT CASE WHEN role LIKE 'key:%' THEN false  -- it is no role
        ELSE pg_has_role(role, c.relowner, 'MEMBER') OR EXISTS (
            SELECT FROM pg_roles AS r
            WHERE (r.rolname = 'pgmta_operator' OR r.rolname = 'pgmta_reader' AND NOT cancelling)
                AND pg_has_role(role, r.oid, 'MEMBER')) END
    FROM pg_class AS c WHERE c.oid = 'messages'::regclass
$$;
COMMENT ON FUNCTION sees_all_mail IS
    'Whether a role sees (or may cancel) all mail: the owner, operators and readers. Others have only what they '
    'submitted themselves.';

CREATE FUNCTION row_state(
    status text, lease_until timestamptz, report_kind text, once boolean, attempts integer, logged integer, event text
) RETURNS text STABLE PARALLEL SAFE
RETURN CASE WHEN status = 'SENDING' OR lease_until > now() THEN 'sending'
    WHEN status = 'DELETE' THEN CASE report_kind WHEN 'suppressed' THEN report_kind ELSE 'cancelled' END
    WHEN status = 'REPORT' THEN CASE
        WHEN logged = attempts AND event = 'delivered' THEN 'delivered'
        WHEN report_kind IN ('relayed', 'delivered') THEN 'delivered'
        WHEN event = 'suppressed' THEN event
        ELSE 'failed' END
    WHEN status <> 'HOLD' THEN lower(status COLLATE "C")
    WHEN attempts = 0 THEN 'held'
    WHEN logged = attempts THEN CASE
        WHEN event = 'failed' OR event = 'unknown' AND (once OR report_kind = 'unknown') THEN event ELSE 'held' END
    -- the database refused the entry, or the partition of its day was dropped
    WHEN report_kind IN ('failed', 'unknown') THEN report_kind
    ELSE 'held' END;
COMMENT ON FUNCTION row_state IS
    'The state of a recipient whose row is in the queue. The last two are its last attempt in the log.';

CREATE FUNCTION log_state(event text) RETURNS text IMMUTABLE PARALLEL SAFE
RETURN CASE event WHEN 'deleted' THEN 'cancelled'
    WHEN 'deferred' THEN 'unknown'  -- the row was removed without an entry in the log
    ELSE event END;
COMMENT ON FUNCTION log_state IS 'The state of a recipient whose row is gone, by its last event in the log.';

CREATE VIEW queue_states AS
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
COMMENT ON VIEW queue_states IS 'Part of message_status and status(): the rows of the queue without the log.';
COMMENT ON COLUMN queue_states.message_id IS 'The message id.';
COMMENT ON COLUMN queue_states.recipient IS 'Forward-path.';
COMMENT ON COLUMN queue_states.row_id IS 'queue.id.';
COMMENT ON COLUMN queue_states.status IS 'As queue.status; SCHEDULED exactly while send_at is in the future.';
COMMENT ON COLUMN queue_states.lease_until IS 'As queue.lease_until.';
COMMENT ON COLUMN queue_states.report_kind IS 'As queue.report_kind.';
COMMENT ON COLUMN queue_states.once IS 'As queue.once.';
COMMENT ON COLUMN queue_states.attempts IS 'As queue.attempts.';
COMMENT ON COLUMN queue_states.next_attempt IS 'When it is due; null if it is not waiting.';
COMMENT ON COLUMN queue_states.since IS 'Since when it is sent, held or reported; null otherwise.';
COMMENT ON COLUMN queue_states.ts IS 'When it was accepted, or its send_at if that is over.';
COMMENT ON COLUMN queue_states.code IS 'Reply code of the last attempt; null if it had none.';
COMMENT ON COLUMN queue_states.reply IS 'Text of the last reply, or what went wrong.';
COMMENT ON COLUMN queue_states.submitted_by IS 'As messages.submitted_by.';

-- DISTINCT ON keeps a condition on any column but the ids above the check of the role. Otherwise EXPLAIN ANALYZE
-- would count the rows of others that match it.
CREATE VIEW message_status WITH (security_barrier) AS
SELECT message_id, recipient, state, attempts, next_attempt, at, code, reply, returned, row_id
FROM (
    SELECT DISTINCT ON (q.message_id, q.row_id) q.message_id, q.recipient,
        row_state(q.status, q.lease_until, q.report_kind, q.once, q.attempts, last.attempt, last.event) AS state,
        q.attempts, q.next_attempt, coalesce(q.since, last.ended_at, q.ts) AS at, q.code, q.reply, last.returned,
        q.row_id
    FROM queue_states AS q LEFT JOIN LATERAL (
        SELECT a.attempt, a.event, a.ended_at, a.returned FROM attempts AS a
        WHERE (q.attempts > 0 OR q.status = 'REPORT') AND a.message_id = q.message_id AND a.row_id = q.row_id
        ORDER BY a.attempt DESC, a.event = 'deferred', a.ended_at DESC LIMIT 1
    ) AS last ON true
    WHERE (SELECT sees_all_mail()) OR q.submitted_by = acting()
    ORDER BY q.message_id, q.row_id
) AS waiting
UNION ALL
SELECT message_id, recipient, log_state(event), attempt, NULL, ended_at, nullif(code, 0),
    nullif(reply, ''), returned, row_id
FROM (
    SELECT DISTINCT ON (message_id, row_id) message_id, row_id, recipient, event, attempt, ended_at, code, reply, returned
    FROM attempts WHERE (SELECT sees_all_mail()) OR submitted_by = acting()
    ORDER BY message_id, row_id, attempt DESC, event = 'deferred', ended_at DESC, event <> 'unknown'
) AS last
WHERE NOT EXISTS (SELECT FROM queue AS q WHERE q.id = last.row_id);
COMMENT ON VIEW message_status IS
    'Each recipient of each message with its state, also of mail that has left the queue. Name message_id in the '
    'condition, or call status(ids): without it the whole log is read. A role that only submits sees its own mail.';
COMMENT ON COLUMN message_status.message_id IS 'The message id, as submit() or the 250 gave it.';
COMMENT ON COLUMN message_status.recipient IS 'Forward-path.';
COMMENT ON COLUMN message_status.state IS
    'scheduled, queued, deferred, sending, held, delivered, failed, unknown, cancelled, expired or suppressed. After '
    'failed and unknown the row may be on hold, and an operator may release it.';
COMMENT ON COLUMN message_status.attempts IS 'Attempts so far.';
COMMENT ON COLUMN message_status.next_attempt IS 'When it is due; null if it is not waiting.';
COMMENT ON COLUMN message_status.at IS 'Since when the state is this one.';
COMMENT ON COLUMN message_status.code IS 'Reply code of the last attempt; null if it had none.';
COMMENT ON COLUMN message_status.reply IS 'Text of the last reply, or the reason.';
COMMENT ON COLUMN message_status.returned IS
    'As attempts.returned of the last attempt: a failure that a DSN or a callback reported later. The state stays.';
COMMENT ON COLUMN message_status.row_id IS 'queue.id of the recipient''s row, which may be gone.';

CREATE FUNCTION status(ids bigint[]) RETURNS TABLE (
    message_id bigint, recipient text, state text, attempts integer, next_attempt timestamptz,
    at timestamptz, code integer, reply text, returned text
) LANGUAGE plpgsql STABLE SECURITY DEFINER ROWS 100  -- STABLE: all statements have the caller's snapshot
    SET search_path = pgmta, pg_catalog, pg_temp SET jit = off SET plan_cache_mode = force_generic_plan
    SET max_parallel_workers_per_gather = 0 AS $$
DECLARE
    few CONSTANT integer := 100;
    wanted bigint[];
    day text;
    days text[] := '{}';
    log text;
    least_id bigint;
    greatest_id bigint;
    first_place integer;
    last_place integer;
BEGIN
    IF cardinality(ids) > 100000 THEN
        PERFORM submit_refuse('ids', 'there are over 100000', NULL, 'Ask for them in several calls.');
    END IF;
    wanted := ARRAY(SELECT DISTINCT id FROM unnest(ids) AS id WHERE id IS NOT NULL ORDER BY id);
    PERFORM FROM attempts WHERE false;  -- the lock of this statement keeps all days of the log: none is dropped from here on
    IF cardinality(wanted) <= few THEN
        RETURN QUERY SELECT s.message_id, s.recipient, s.state, s.attempts, s.next_attempt, s.at, s.code, s.reply, s.returned
        FROM message_status AS s WHERE s.message_id = ANY (wanted) ORDER BY s.message_id, s.row_id;
        RETURN;
    END IF;
    -- A day of the log has messages of some days only: look each id up in the days that may have it.
    FOR day IN SELECT relid FROM pg_partition_tree('attempts') WHERE isleaf LOOP
        EXECUTE format('SELECT min(message_id), max(message_id) FROM %s', day) INTO least_id, greatest_id;
        first_place := width_bucket(least_id - 1, wanted) + 1;
        last_place := width_bucket(greatest_id, wanted);
        IF first_place <= last_place THEN
            days := days || format('SELECT * FROM %s WHERE message_id = ANY (($1)[%s:%s])', day,
                first_place, last_place);
        END IF;
    END LOOP;
    log := coalesce(nullif(array_to_string(days, ' UNION ALL '), ''), 'SELECT * FROM attempts WHERE false');
    -- several processes read the disk at once; the SET above ends this with the function
    PERFORM set_config('max_parallel_workers_per_gather', '4', true);
    RETURN QUERY EXECUTE format($query$
        WITH last AS MATERIALIZED (
            SELECT DISTINCT ON (message_id, row_id) message_id, row_id, recipient, event, attempt,
                ended_at, code, reply, returned, submitted_by
            FROM (%s) AS log ORDER BY message_id, row_id, attempt DESC, event = 'deferred', ended_at DESC, event <> 'unknown'
        ), waiting AS MATERIALIZED (
            SELECT * FROM queue_states WHERE message_id = ANY ($1)
        )
        SELECT message_id, recipient, state, attempts, next_attempt, at, code, reply, returned FROM (
            SELECT message_id, q.recipient,
                row_state(status, lease_until, report_kind, once, attempts, attempt, event) AS state,
                attempts, next_attempt, coalesce(since, CASE WHEN attempts > 0 THEN ended_at END, ts) AS at,
                q.code, q.reply, last.returned, row_id, q.submitted_by
            FROM waiting AS q LEFT JOIN last USING (message_id, row_id)
            UNION ALL
            SELECT message_id, recipient, log_state(event), attempt, NULL, ended_at, nullif(code, 0),
                nullif(reply, ''), returned, row_id, submitted_by
            FROM last WHERE NOT EXISTS (SELECT FROM queue AS q WHERE q.id = last.row_id)
        ) AS found
        WHERE (SELECT sees_all_mail()) OR submitted_by = acting()
        ORDER BY message_id, row_id $query$, log) USING wanted;
END $$;
COMMENT ON FUNCTION status IS
    'The state of each recipient of these messages, in the order of ids and rows, all at one moment. An unknown id '
    'has no row, nor has one of another role.';

CREATE FUNCTION cancel(id bigint, reason text DEFAULT NULL) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pgmta, pg_catalog, pg_temp SET standard_conforming_strings = on AS $$
DECLARE
    login text;
    stopped integer;
BEGIN
    IF length(reason) > 500 OR reason ~ '[\u0001-\u001f\u007f]' COLLATE "C" THEN
        PERFORM submit_refuse('reason', 'it is over 500 characters or has control characters');
    END IF;
    IF getdatabaseencoding() <> 'UTF8' THEN PERFORM submit_text('reason', reason); END IF;
    SELECT m.submitted_by INTO login FROM messages AS m WHERE m.id = cancel.id;
    IF NOT FOUND THEN
        SELECT a.submitted_by INTO login FROM attempts AS a WHERE a.message_id = cancel.id LIMIT 1;
    END IF;
    -- one error for both, so that ids of others can't be found out
    IF NOT FOUND OR login IS DISTINCT FROM acting() AND NOT sees_all_mail(cancelling => true) THEN
        PERFORM submit_refuse('id', 'there is no message with this id that this login may cancel', NULL,
            'The id is the number that submit() returned, or that the client got with its 250.', 'no_data_found');
    END IF;
    stopped := withdraw(ARRAY[id], reason);
    IF stopped = 0 THEN PERFORM prove_earlier(); END IF;  -- an earlier call, whose commit may be unproven, may have stopped them
    RETURN stopped;
END $$;
COMMENT ON FUNCTION cancel IS
    'Removes the recipients of a message that wait or are on hold, and returns how many. One in flight is removed '
    'after its attempt, unless that delivers. One in REPORT has its outcome and stays. A role that only submits '
    'has its own mail.';

CREATE FUNCTION withdraw(ids bigint[], reason text, event text DEFAULT 'cancelled', skip_locked boolean DEFAULT false,
    rows bigint[] DEFAULT NULL)
RETURNS integer LANGUAGE plpgsql SET search_path = pgmta, pg_catalog, pg_temp AS $$
DECLARE
    chances integer :=
        CASE current_setting('transaction_isolation') WHEN 'read committed' THEN 10 ELSE 1 END;
    messages bigint[] := ids;
    flying bigint[];
    waiting bigint[];
    stopped integer;
    -- with the login if SET ROLE has changed the role, because a role may be a group of operators; a key is nobody else
    who text := concat_ws(' as ', CASE WHEN acting() NOT LIKE 'key:%' THEN nullif(session_user, acting()) END, acting());
BEGIN
    FOR chance IN 1 .. chances LOOP
        BEGIN
            IF skip_locked THEN
                messages := ARRAY(SELECT q.message_id FROM queue AS q WHERE q.message_id = ANY (ids)
                    ORDER BY q.id FOR UPDATE SKIP LOCKED);
                IF messages = '{}' THEN RETURN 0; END IF;
            END IF;
            -- A row in REPORT has its outcome, and its sender gets a DSN.
            -- A row under a lease, even one that ran out: the next hop may have the mail.
            SELECT array_agg(found.id) FILTER (WHERE found.lease_until IS NOT NULL),
                array_agg(found.id) FILTER (WHERE found.lease_until IS NULL)
            INTO flying, waiting
            FROM (
                SELECT q.id, q.lease_until FROM queue AS q
                WHERE q.message_id = ANY (messages) AND (rows IS NULL OR q.id = ANY (rows))
                    AND q.status NOT IN ('DELETE', 'REPORT') ORDER BY q.id FOR UPDATE
            ) AS found;
            -- The attempt ends and its outcome counts. After a deferral queued removes the row. The trigger
            -- of the first statement would clear what the second one sets.
            UPDATE queue AS q SET status = 'DELETE' WHERE q.id = ANY (flying);
            UPDATE queue AS q SET held_by = who, hold_reason = coalesce(reason, ''), report_kind = event
            WHERE q.id = ANY (flying);
            PERFORM rows_log(waiting, event, who, coalesce(reason, ''));
            DELETE FROM queue AS q WHERE q.id = ANY (waiting);
            GET DIAGNOSTICS stopped = ROW_COUNT;
            RETURN stopped;
        EXCEPTION WHEN serialization_failure OR deadlock_detected THEN
            IF chance = chances THEN RAISE; END IF;  -- raised if a row moved to another partition meanwhile
        END;
    END LOOP;
END $$;
COMMENT ON FUNCTION withdraw IS
    'The common part of cancel() and of triggers that withdraw mail: it asks for no right to the messages. With skip_locked '
    'it leaves messages whose rows are all locked as they are. With rows it takes these alone.';

INSERT INTO rights (object, role, privileges) VALUES
    ('FUNCTION sees_all_mail', 'PUBLIC', 'EXECUTE'),
    ('FUNCTION row_state', 'PUBLIC', 'EXECUTE'),
    ('FUNCTION log_state', 'PUBLIC', 'EXECUTE'),
    ('queue_states', 'pgmta_operator', 'SELECT'),
    ('queue_states', 'pgmta_reader', 'SELECT'),
    ('message_status', 'pgmta_operator', 'SELECT'),
    ('message_status', 'pgmta_reader', 'SELECT'),
    ('message_status', 'pgmta_submit', 'SELECT'),
    ('FUNCTION status', 'pgmta_operator', 'EXECUTE'),
    ('FUNCTION status', 'pgmta_reader', 'EXECUTE'),
    ('FUNCTION status', 'pgmta_submit', 'EXECUTE'),
    ('FUNCTION cancel', 'pgmta_operator', 'EXECUTE'),
    ('FUNCTION cancel', 'pgmta_submit', 'EXECUTE');

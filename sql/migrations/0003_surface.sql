-- What people use from psql: views, audited functions, roles. docs/sql.md is the manual.

-- Views. A column that isn't selected costs nothing; each comment says what the rest costs.

CREATE VIEW queue_overview AS
SELECT known.status, coalesce(q.rows, 0)::bigint AS rows, coalesce(q.messages, 0) AS messages,
    coalesce(q.octets, 0)::bigint AS octets, q.oldest, q.next_due,
    coalesce(q.due_now, 0)::bigint AS due_now
FROM (VALUES ('QUEUED'), ('DEFERRED'), ('SENDING'), ('HOLD'), ('DELETE')) AS known (status)
LEFT JOIN (
    SELECT p.status, sum(p.rows) AS rows, count(*) AS messages, sum(m.size) AS octets,
        min(p.oldest) AS oldest, min(p.next_due) AS next_due, sum(p.due_now) AS due_now
    FROM (
        SELECT status, message_id, count(*) AS rows, min(ts) AS oldest,
            min(next_attempt) FILTER (WHERE status IN ('QUEUED', 'DEFERRED')) AS next_due,
            count(*) FILTER (WHERE status IN ('QUEUED', 'DEFERRED', 'SENDING')
                AND next_attempt <= now() AND (lease_until IS NULL OR lease_until < now())) AS due_now
        FROM queue GROUP BY status, message_id
    ) AS p LEFT JOIN messages AS m ON m.id = p.message_id
    GROUP BY p.status
) AS q ON q.status = known.status;
COMMENT ON VIEW queue_overview IS
    'The queue by status, one line each also where there is nothing. Scans queue: about a second for '
    'a million rows; octets scans messages too, without the bodies that are stored apart.';
COMMENT ON COLUMN queue_overview.status IS 'As queue.status.';
COMMENT ON COLUMN queue_overview.rows IS 'Rows, one a recipient.';
COMMENT ON COLUMN queue_overview.messages IS 'Messages with such a row; one may count in several lines.';
COMMENT ON COLUMN queue_overview.octets IS 'Size of these messages, each once a line.';
COMMENT ON COLUMN queue_overview.oldest IS 'When the oldest row was accepted.';
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
    min(next_attempt) FILTER (WHERE status IN ('QUEUED', 'DEFERRED')) AS next_attempt,
    mode() WITHIN GROUP (ORDER BY last_reply COLLATE "C") AS last_reply
FROM queue GROUP BY domain;
COMMENT ON VIEW queue_by_domain IS
    'The queue by destination. For one domain it reads that domain''s rows by index; without a '
    'condition it scans queue and sorts the replies: a few seconds for a million rows.';
COMMENT ON COLUMN queue_by_domain.domain IS 'As queue.domain.';
COMMENT ON COLUMN queue_by_domain.rows IS 'All rows.';
COMMENT ON COLUMN queue_by_domain.queued IS 'Rows not tried yet, released or handed back.';
COMMENT ON COLUMN queue_by_domain.deferred IS 'Rows that wait after an attempt.';
COMMENT ON COLUMN queue_by_domain.sending IS 'Rows that are being sent.';
COMMENT ON COLUMN queue_by_domain.held IS 'Rows on hold.';
COMMENT ON COLUMN queue_by_domain.deleting IS 'Rows about to be deleted.';
COMMENT ON COLUMN queue_by_domain.oldest IS 'When the oldest row was accepted.';
COMMENT ON COLUMN queue_by_domain.next_attempt IS 'Earliest next attempt of rows that wait.';
COMMENT ON COLUMN queue_by_domain.last_reply IS 'The most common last reply.';

CREATE VIEW attempt_history AS
SELECT message_id, recipient, attempt, started_at, ended_at, ended_at - started_at AS duration,
    event, nullif(code, 0) AS code, nullif(enhanced, '') AS enhanced, reply,
    nullif(command, '') AS command, nullif(host, '') AS host, worker, sender, domain, queue_id
FROM attempts;
COMMENT ON VIEW attempt_history IS
    'Every attempt, to be read. By message_id or recipient it uses an index, whatever the length of '
    'the log; with ended_at it reads only those days.';
COMMENT ON COLUMN attempt_history.message_id IS 'The queue id told to the client with 250.';
COMMENT ON COLUMN attempt_history.recipient IS 'Forward-path.';
COMMENT ON COLUMN attempt_history.attempt IS 'Count of attempts for this recipient, from 1.';
COMMENT ON COLUMN attempt_history.started_at IS 'When it began.';
COMMENT ON COLUMN attempt_history.ended_at IS 'When its outcome was known, or given up.';
COMMENT ON COLUMN attempt_history.duration IS 'How long it took.';
COMMENT ON COLUMN attempt_history.event IS 'As attempts.event.';
COMMENT ON COLUMN attempt_history.code IS 'Reply code; null: there was no reply.';
COMMENT ON COLUMN attempt_history.enhanced IS 'Enhanced status code of the reply.';
COMMENT ON COLUMN attempt_history.reply IS 'Text of the reply, or what went wrong.';
COMMENT ON COLUMN attempt_history.command IS 'SMTP command that was answered.';
COMMENT ON COLUMN attempt_history.host IS 'Next hop, host:port; null: none was reached.';
COMMENT ON COLUMN attempt_history.worker IS 'Who made it.';
COMMENT ON COLUMN attempt_history.sender IS 'Reverse-path.';
COMMENT ON COLUMN attempt_history.domain IS 'The recipient''s domain.';
COMMENT ON COLUMN attempt_history.queue_id IS 'queue.id of the row, which may be gone.';

CREATE INDEX attempts_unknown ON attempts (ended_at, message_id) WHERE event = 'unknown';
COMMENT ON INDEX attempts_unknown IS 'View duplicates; few rows, so it costs nothing.';
CREATE INDEX attempts_ended_at ON attempts USING brin (ended_at);
COMMENT ON INDEX attempts_ended_at IS 'View attempt_rates.';
COMMENT ON SEQUENCE audit_id_seq IS 'audit.id.';

CREATE VIEW attempt_rates AS
SELECT date_trunc('minute', ended_at) AS minute, count(*) AS attempts,
    count(*) FILTER (WHERE event = 'delivered') AS delivered,
    count(*) FILTER (WHERE event = 'deferred') AS deferred,
    count(*) FILTER (WHERE event = 'failed') AS failed,
    count(*) FILTER (WHERE event = 'unknown') AS unknown
FROM attempts
WHERE ended_at > now() - interval '1 hour' AND event <> 'deleted'
GROUP BY 1;
COMMENT ON VIEW attempt_rates IS
    'Whether mail moves: attempts by the minute they ended in. Reads the last hour of the log.';
COMMENT ON COLUMN attempt_rates.minute IS 'Start of the minute; one without attempts has no line.';
COMMENT ON COLUMN attempt_rates.attempts IS 'All attempts.';
COMMENT ON COLUMN attempt_rates.delivered IS 'Accepted by the next hop.';
COMMENT ON COLUMN attempt_rates.deferred IS 'To be tried again.';
COMMENT ON COLUMN attempt_rates.failed IS 'Refused for good, or too old.';
COMMENT ON COLUMN attempt_rates.unknown IS 'Nobody knows whether the next hop has it.';

CREATE VIEW duplicates AS
SELECT u.message_id, u.queue_id, a.recipient, a.possible, a.unknown, a.first_at, a.last_at, a.reason
FROM (SELECT DISTINCT message_id, queue_id FROM attempts WHERE event = 'unknown') AS u
CROSS JOIN LATERAL (
    -- by token: one attempt may be in the log as unknown and, later, as delivered
    SELECT min(recipient) AS recipient, count(DISTINCT lease_token) AS possible,
        count(DISTINCT lease_token) FILTER (WHERE event = 'unknown') AS unknown,
        min(ended_at) AS first_at, max(ended_at) AS last_at,
        string_agg(DISTINCT concat_ws(': ', nullif(host, ''), reply), '; ')
            FILTER (WHERE event = 'unknown') AS reason
    FROM attempts
    WHERE attempts.message_id = u.message_id AND attempts.queue_id = u.queue_id
        AND event IN ('unknown', 'delivered')
) AS a
WHERE a.possible > 1;
COMMENT ON VIEW duplicates IS
    'Recipients who may have a message more than once, and why. An index look-up for each unknown.';
COMMENT ON COLUMN duplicates.message_id IS 'The queue id.';
COMMENT ON COLUMN duplicates.queue_id IS 'queue.id of the recipient''s row, which may be gone.';
COMMENT ON COLUMN duplicates.recipient IS 'Who may have it more than once.';
COMMENT ON COLUMN duplicates.possible IS 'How often at most: attempts that delivered or may have.';
COMMENT ON COLUMN duplicates.unknown IS 'How many of them nobody knows the outcome of.';
COMMENT ON COLUMN duplicates.first_at IS 'When the first of them ended.';
COMMENT ON COLUMN duplicates.last_at IS 'When the last of them ended.';
COMMENT ON COLUMN duplicates.reason IS 'What happened to those of unknown outcome.';

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

CREATE VIEW worker_overview AS
SELECT name, owner, action, condition, started_at, now() - seen_at AS silence,
    seen_at > now() - interval '1 minute' AS alive, handled
FROM workers;
COMMENT ON VIEW worker_overview IS 'Workers and whether they live. Costs nothing.';
COMMENT ON COLUMN worker_overview.name IS 'Name in queued.yaml.';
COMMENT ON COLUMN worker_overview.owner IS 'The process: hostname:pid.';
COMMENT ON COLUMN worker_overview.action IS 'deliver, hold, quarantine, delete, release or retry.';
COMMENT ON COLUMN worker_overview.condition IS 'Which rows; null: every row.';
COMMENT ON COLUMN worker_overview.started_at IS 'When it started.';
COMMENT ON COLUMN worker_overview.silence IS 'Time since its last heartbeat.';
COMMENT ON COLUMN worker_overview.alive IS 'Its last heartbeat is at most a minute ago.';
COMMENT ON COLUMN worker_overview.handled IS 'Rows since its start.';

-- Functions for operators. They run with the rights of the caller, in the caller's transaction.

CREATE FUNCTION queue_condition(condition text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    brackets text;
    probe refcursor;
BEGIN
    IF coalesce(condition, '') !~ '\S' THEN
        RAISE EXCEPTION 'the condition is empty'
            USING ERRCODE = 'invalid_parameter_value', HINT = '''true'' stands for every row.';
    END IF;
    -- In brackets of two kinds: an expression that closes the one leaves the other open. A cursor
    -- takes a single statement, and opening it reads no row.
    FOREACH brackets IN ARRAY ARRAY[E'(ARRAY[\n%s\n])[1]', E'(\n%s\n)'] LOOP
        BEGIN
            OPEN probe FOR EXECUTE
                'SELECT 1 FROM public.queue WHERE ' || format(brackets, condition);
            CLOSE probe;
        EXCEPTION WHEN others THEN
            RAISE EXCEPTION 'the condition is refused: %', SQLERRM USING ERRCODE = SQLSTATE;
        END;
    END LOOP;
    RETURN format(E'(\n%s\n)', condition);
END $$;
COMMENT ON FUNCTION queue_condition(text) IS
    'The condition in brackets, or an error: it must be one boolean expression on columns of queue '
    'that can''t end the statement it is put into. Runs nothing.';

CREATE FUNCTION queue_quiet() RETURNS void LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp SET lock_timeout = '5s' AS $$
BEGIN
    LOCK TABLE ONLY public.queue IN SHARE ROW EXCLUSIVE MODE;
END $$;
COMMENT ON FUNCTION queue_quiet() IS
    'Lets nobody else change the queue until the end of the transaction. Gives up after 5 seconds, as '
    'all mail waits meanwhile.';

CREATE FUNCTION queue_change(
    action text, condition text, change text, only_where text, details jsonb
) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    wanted text := format('%s AND %s', only_where, public.queue_condition(condition));
    chances integer :=
        CASE current_setting('transaction_isolation') WHEN 'read committed' THEN 10 ELSE 1 END;
    quiet boolean := false;
    batch bigint[];
    changed bigint;
    total bigint;
BEGIN
    IF EXISTS (SELECT FROM jsonb_each_text(details)
               WHERE key IN ('reason', 'quarantine') AND coalesce(value, '') !~ '\S') THEN
        RAISE EXCEPTION 'a reason is needed, and an id for a quarantine' USING
            ERRCODE = 'invalid_parameter_value';
    END IF;
    PERFORM pg_advisory_xact_lock(hashtext('postern change'));
    FOR chance IN 1 .. chances LOOP
        -- One subtransaction, none within: whoever waits for a row of one that has ended waits for
        -- the whole transaction, and would not be let go by the end of this one.
        BEGIN
            IF quiet THEN PERFORM public.queue_quiet(); END IF;
            total := 0;
            FOR batch IN EXECUTE format(  -- rows in flight first
                'SELECT array_agg(id ORDER BY id) FROM (
                     SELECT id, (row_number() OVER (ORDER BY lease_token IS NULL, id) - 1) / 1000 AS number
                     FROM public.queue WHERE %s) AS numbered
                 GROUP BY number ORDER BY number', wanted)
            LOOP
                EXECUTE format('UPDATE public.queue SET %s WHERE id = ANY ($1) AND %s', change, wanted)
                    USING batch, details;
                GET DIAGNOSTICS changed = ROW_COUNT;
                total := total + changed;
            END LOOP;
            EXIT;
        EXCEPTION WHEN serialization_failure OR deadlock_detected OR lock_not_available THEN
            -- A row has moved meanwhile; or outcomes wait for rows that are changed here, and hold
            -- others that are not yet. Let them end, and begin again; if need be, undisturbed.
            IF chance = chances OR (NOT quiet AND SQLSTATE = '55P03') THEN RAISE; END IF;
            quiet := quiet OR chance >= 3 OR SQLSTATE = '40P01';
        END;
    END LOOP;
    INSERT INTO public.audit (who, action, condition, details, rows, finished_at)
    VALUES (session_user, action, condition, details, total, clock_timestamp());
    IF total > 0 AND action IN ('release', 'retry') THEN
        PERFORM pg_notify('postern_queue', '');
    END IF;
    RETURN total;
END $$;
COMMENT ON FUNCTION queue_change(text, text, text, text, jsonb) IS
    'For the functions below: changes rows that only_where and condition match by the SET list change, '
    'where $2 is details; tries again what lost a race; writes the audit row; returns the rows.';

CREATE FUNCTION queue_hold(condition text, reason text, expires interval DEFAULT NULL)
RETURNS bigint LANGUAGE sql AS $$
    SELECT public.queue_change('hold', condition,
        'status = ''HOLD'', hold_reason = $2 ->> ''reason'', held_by = session_user,
         hold_until = now() + ($2 ->> ''expires'')::interval',
        'status <> ''HOLD''',
        jsonb_build_object('reason', reason, 'expires', expires))
$$;
COMMENT ON FUNCTION queue_hold(text, text, interval) IS
    'Puts the rows that match condition on hold, for the time expires (null: until released), and '
    'says why in hold_reason. An attempt in flight ends and is recorded; if it delivers, the row '
    'goes. Returns the number of rows.';

CREATE FUNCTION queue_quarantine(
    condition text, id text, reason text, expires interval DEFAULT NULL
) RETURNS bigint LANGUAGE sql AS $$
    SELECT public.queue_change('quarantine', condition,
        'status = ''HOLD'', hold_reason = $2 ->> ''reason'', held_by = session_user,
         hold_until = now() + ($2 ->> ''expires'')::interval,
         metadata = jsonb_set(metadata, ''{_quarantineid}'', $2 -> ''quarantine'')',
        'true',
        jsonb_build_object('reason', reason, 'expires', expires,
            'quarantine', id))
$$;
COMMENT ON FUNCTION queue_quarantine(text, text, text, interval) IS
    'As queue_hold, and sets metadata._quarantineid to id; also for rows that are on hold already.';

CREATE FUNCTION queue_release(condition text) RETURNS bigint LANGUAGE sql AS $$
    SELECT public.queue_change('release', condition, 'status = ''QUEUED''', 'status = ''HOLD''', '{}')
$$;
COMMENT ON FUNCTION queue_release(text) IS
    'Puts held rows that match condition back, due at once. Returns the number of rows.';

CREATE FUNCTION queue_retry(condition text) RETURNS bigint LANGUAGE sql AS $$
    SELECT public.queue_change('retry', condition, 'next_attempt = now()',
        'status IN (''QUEUED'', ''DEFERRED'')', '{}')
$$;
COMMENT ON FUNCTION queue_retry(text) IS
    'Makes waiting rows that match condition due now; held ones stay held. Returns the number of rows.';

CREATE FUNCTION queue_delete(condition text, reason text) RETURNS bigint LANGUAGE sql AS $$
    SELECT public.queue_change('delete', condition, 'status = ''DELETE''', 'status <> ''DELETE''',
        jsonb_build_object('reason', reason))
$$;
COMMENT ON FUNCTION queue_delete(text, text) IS
    'Asks queued to delete the rows that match condition; those in flight go after their attempt. The '
    'reason goes to the audit table. Returns the number of rows.';

-- Duties that need the tables' owner are done in his name, whoever calls.
ALTER FUNCTION messages_refcount_func() SECURITY DEFINER SET search_path = pg_catalog, pg_temp;
ALTER FUNCTION attempts_partitions(integer) SECURITY DEFINER SET search_path = pg_catalog, pg_temp;
ALTER FUNCTION attempts_expire(interval) SECURITY DEFINER SET search_path = pg_catalog, pg_temp;
ALTER FUNCTION rules_changed() SET search_path = pg_catalog, pg_temp;

REVOKE EXECUTE ON FUNCTION messages_refcount_func(), queue_hold_stamp(), rules_changed(),
    attempts_partitions(integer), attempts_expire(interval), queue_condition(text),
    queue_change(text, text, text, text, jsonb), queue_quiet(),
    queue_hold(text, text, interval), queue_quarantine(text, text, text, interval),
    queue_release(text), queue_retry(text), queue_delete(text, text) FROM PUBLIC;

-- Roles, each with the least that its programs need. Columns are named where a whole table would
-- give more than that: neither smtpd nor queued can redirect a message that is in the queue.
CREATE FUNCTION postern_grants() RETURNS text[] LANGUAGE plpgsql
    SET search_path = public, pg_catalog, pg_temp AS $$
DECLARE
    given record;
    missing text[] := '{}';
BEGIN
    FOR given IN SELECT * FROM (VALUES
        ('postern_smtpd', 'USAGE ON SEQUENCE message_ids, queue_ids'),
        ('postern_smtpd', 'SELECT (id), INSERT (id, size, utf8, chunks, trace, body) ON messages'),
        ('postern_smtpd', 'INSERT (message_id, sender, recipient, domain, priority, metadata) ON queue'),
        ('postern_smtpd', 'SELECT (message_id) ON attempts'),
        -- a message that is refused in the end takes its pieces away
        ('postern_smtpd', 'SELECT (message_id), INSERT (message_id, position, data), DELETE
            ON message_chunks'),

        ('postern_queued', 'USAGE ON SEQUENCE lease_tokens'),
        ('postern_queued', 'SELECT, DELETE, UPDATE (status, next_attempt, attempts, last_reply,
            metadata, lease_since, lease_until, lease_token, lease_owner, hold_reason, held_by,
            hold_until) ON queue'),
        -- FOR UPDATE asks for the right to change some column: this one does no harm
        ('postern_queued', 'SELECT, DELETE, UPDATE (received_at) ON messages'),
        ('postern_queued', 'SELECT, DELETE ON message_chunks'),
        ('postern_queued', 'SELECT, INSERT ON attempts'),
        ('postern_queued', 'SELECT, INSERT, UPDATE, DELETE ON workers, rules'),
        ('postern_queued', 'SELECT ON rules_version'),
        ('postern_queued', 'EXECUTE ON FUNCTION attempts_partitions(integer), attempts_expire(interval)'),

        ('postern_operator', 'SELECT ON messages, message_chunks, queue, attempts, workers, rules,
            rules_version, audit, queue_overview, queue_by_domain, attempt_history, attempt_rates,
            duplicates, hold_overview, worker_overview'),
        -- rows go by status DELETE, which leaves a trace in the log
        ('postern_operator', 'UPDATE (status, next_attempt, priority, metadata, hold_reason, held_by,
            hold_until) ON queue'),
        ('postern_operator', 'INSERT, UPDATE, DELETE ON rules'),
        -- at and role are the database's own words
        ('postern_operator', 'INSERT (who, action, condition, details, rows, finished_at),
            UPDATE (rows, finished_at) ON audit'),
        ('postern_operator', 'EXECUTE ON FUNCTION queue_condition(text), queue_quiet(),
            queue_change(text, text, text, text, jsonb), queue_hold(text, text, interval),
            queue_quarantine(text, text, text, interval), queue_release(text), queue_retry(text),
            queue_delete(text, text)'),

        ('postern_reader', 'SELECT (id, received_at, size, utf8, chunks, trace) ON messages'),
        ('postern_reader', 'SELECT (message_id, position, stored_at) ON message_chunks'),
        ('postern_reader', 'SELECT ON queue, attempts, workers, rules, rules_version, audit,
            queue_overview, queue_by_domain, attempt_history, attempt_rates, duplicates,
            hold_overview, worker_overview')
        ) AS rights (role, what)
    LOOP
        IF to_regrole(given.role) IS NOT NULL THEN
            EXECUTE format('GRANT %s TO %I', given.what, given.role);
        ELSIF given.role <> ALL (missing) THEN
            missing := missing || given.role;
        END IF;
    END LOOP;
    RETURN missing;
END $$;
REVOKE EXECUTE ON FUNCTION postern_grants() FROM PUBLIC;
COMMENT ON FUNCTION postern_grants() IS
    'Gives the roles postern_smtpd, postern_queued, postern_operator and postern_reader their '
    'rights; to be called by the owner of the tables. Returns the roles that do not exist.';

DO $$
DECLARE
    role text;
    missing text[];
BEGIN
    FOREACH role IN ARRAY
        ARRAY['postern_smtpd', 'postern_queued', 'postern_operator', 'postern_reader']
    LOOP
        BEGIN
            EXECUTE format('CREATE ROLE %I NOLOGIN', role);
        EXCEPTION
            -- there already; being made by the migration of another database; not allowed
            WHEN duplicate_object OR unique_violation OR insufficient_privilege THEN NULL;
        END;
    END LOOP;
    missing := postern_grants();
    IF missing <> '{}' THEN
        RAISE WARNING 'roles that could not be made: %', array_to_string(missing, ', ')
            USING HINT = 'Create them (NOLOGIN) and call postern_grants() as owner of the tables.';
    END IF;
END $$;

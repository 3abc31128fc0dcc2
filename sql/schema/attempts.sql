-- The log: every delivery attempt.

CREATE TABLE attempts (
    ended_at timestamptz NOT NULL DEFAULT now(),
    started_at timestamptz NOT NULL,
    row_id bigint NOT NULL,
    message_id bigint NOT NULL,
    lease_token bigint NOT NULL,
    attempt integer NOT NULL,
    code smallint NOT NULL,
    event text NOT NULL CONSTRAINT attempts_event CHECK (event IN (
        'delivered', 'deferred', 'failed', 'unknown', 'deleted', 'cancelled', 'expired', 'suppressed')),
    sender text NOT NULL,
    recipient text NOT NULL,
    domain text NOT NULL,
    worker text NOT NULL,
    host text NOT NULL,
    command text NOT NULL,
    enhanced text NOT NULL,
    reply text NOT NULL,
    tenant text COLLATE "C" NOT NULL DEFAULT '',
    message_id_header text COLLATE "C",
    submitted_by text,
    metadata jsonb,
    address text,
    tls_version text,
    tls_cipher text,
    tls_verified text,
    dns_seconds real,
    connect_seconds real,
    tls_seconds real,
    transaction_seconds real,
    class text,
    returned_at timestamptz,
    returned text,
    late text,
    confirmed_at timestamptz,
    complained_at timestamptz,
    client inet,
    client_helo text,
    client_protocol text
) PARTITION BY RANGE (ended_at);
COMMENT ON TABLE attempts IS 'Every delivery attempt that began, one row a recipient; partitioned by day (UTC).';
COMMENT ON COLUMN attempts.ended_at IS 'When the outcome was known (or, for a takeover, given up).';
COMMENT ON COLUMN attempts.started_at IS 'When the attempt began: for a dead worker, its claim.';
COMMENT ON COLUMN attempts.row_id IS 'queue.id of the recipient''s row, which may be gone.';
COMMENT ON COLUMN attempts.message_id IS 'messages.id, the message id; the message may be gone.';
COMMENT ON COLUMN attempts.lease_token IS 'Token the attempt ran under.';
COMMENT ON COLUMN attempts.attempt IS 'Count of attempts, from 1.';
COMMENT ON COLUMN attempts.code IS 'Reply code (RFC 5321); 0 where there was no reply.';
COMMENT ON COLUMN attempts.event IS
    'delivered, deferred, failed (held or removed), unknown (the next hop may have it: a reason for a duplicate); '
    'without an attempt: deleted (on request), cancelled (by the sender), expired (too late), suppressed (the '
    'recipient wants no mail).';
COMMENT ON COLUMN attempts.sender IS 'Reverse-path.';
COMMENT ON COLUMN attempts.recipient IS 'Forward-path.';
COMMENT ON COLUMN attempts.domain IS 'The recipient''s domain.';
COMMENT ON COLUMN attempts.worker IS 'Worker that made the attempt: name@host:pid.';
COMMENT ON COLUMN attempts.host IS 'Next hop, host:port, or the last one tried; empty where none was known.';
COMMENT ON COLUMN attempts.command IS 'SMTP command that the reply answers.';
COMMENT ON COLUMN attempts.enhanced IS 'Enhanced status code (RFC 3463) of the reply, or empty.';
COMMENT ON COLUMN attempts.reply IS 'Text of the reply, or what went wrong.';
COMMENT ON COLUMN attempts.tenant IS 'As queue.tenant.';
COMMENT ON COLUMN attempts.message_id_header IS 'As messages.message_id_header.';
COMMENT ON COLUMN attempts.submitted_by IS 'As messages.submitted_by.';
COMMENT ON COLUMN attempts.metadata IS 'As queue.metadata; null: it was empty.';
COMMENT ON COLUMN attempts.address IS 'IP address of the next hop; null where none was tried.';
COMMENT ON COLUMN attempts.tls_version IS 'Version of TLS, such as TLSv1.3; null without TLS.';
COMMENT ON COLUMN attempts.tls_cipher IS 'Cipher of TLS; null without TLS.';
COMMENT ON COLUMN attempts.tls_verified IS
    'By what the next hop was authenticated: dane (RFC 7672), sts (RFC 8461), pkix or no; null without TLS.';
COMMENT ON COLUMN attempts.dns_seconds IS
    'Time to find hosts and addresses. The first transaction of a connection has it, as connect_seconds and '
    'tls_seconds; null later.';
COMMENT ON COLUMN attempts.connect_seconds IS 'Time of TCP connection, greeting and EHLO.';
COMMENT ON COLUMN attempts.tls_seconds IS 'Time of STARTTLS, TLS handshake and the EHLO after it.';
COMMENT ON COLUMN attempts.transaction_seconds IS 'Time from MAIL to the last reply; null where there was no MAIL.';
COMMENT ON COLUMN attempts.class IS
    'Why it did not deliver, in one word such as unknown_user (docs/mail/answers.md); null: delivered, or no attempt. '
    'Of a delivery that came back: why, see returned.';
COMMENT ON COLUMN attempts.returned_at IS
    'When the mail came back to its VERP address after the next hop had taken it, or a callback said that it failed '
    'later; null: it did not.';
COMMENT ON COLUMN attempts.returned IS 'Status and reply as the mail that came back, or the callback, reports them.';
COMMENT ON COLUMN attempts.late IS
    'Why the outcome changed no row: gone (the row was no longer in the queue) or moved on (it had another lease or '
    'none by then); null: it changed its row.';
COMMENT ON COLUMN attempts.confirmed_at IS
    'When a provider said by a callback that the recipient''s host has the mail; null: it did not.';
COMMENT ON COLUMN attempts.complained_at IS
    'When a provider said by a callback that the recipient complained; null: it did not.';
COMMENT ON COLUMN attempts.client IS 'IP address of the client that handed the message over by SMTP; null: none did.';
COMMENT ON COLUMN attempts.client_helo IS 'The name that the client gave in EHLO, HELO or LHLO.';
COMMENT ON COLUMN attempts.client_protocol IS
    'The protocol of the session (RFC 3848), with the version and the cipher of TLS.';
COMMENT ON CONSTRAINT attempts_event ON attempts IS 'Those of pgmta/states.py, which a test compares.';

CREATE TABLE attempts_default PARTITION OF attempts DEFAULT;
ALTER TABLE attempts REPLICA IDENTITY FULL;
ALTER TABLE attempts_default REPLICA IDENTITY FULL;
COMMENT ON TABLE attempts_default IS 'Catches rows of days without a partition; normally empty.';

CREATE INDEX attempts_message_id ON attempts (message_id, row_id);
COMMENT ON INDEX attempts_message_id IS
    'queuectl show, and the entries of one recipient of a message to thousands.';
CREATE INDEX attempts_recipient ON attempts (recipient);
COMMENT ON INDEX attempts_recipient IS 'What became of the mail for an address.';
CREATE INDEX attempts_unknown ON attempts (ended_at, message_id) WHERE event = 'unknown';
COMMENT ON INDEX attempts_unknown IS 'View duplicates; few rows, so it costs nothing.';
CREATE INDEX attempts_ended_at ON attempts USING brin (ended_at);
COMMENT ON INDEX attempts_ended_at IS 'View attempt_rates.';

SELECT days_make('attempts', 7);

-- By arrays, because a worker writes many outcomes at once. An array is empty if no attempt has a value.
CREATE FUNCTION attempts_log(
    worker text,
    -- arrays with a value for each attempt
    row_ids bigint[], message_ids bigint[], tokens bigint[], numbers integer[], events text[],
    senders text[], recipients text[], domains text[], codes smallint[], enhanced text[], replies text[],
    commands text[], classes text[], started timestamptz[], ended timestamptz[], seconds real[],
    tenants text[], message_id_headers text[], logins text[], metadata text[],
    -- the attempts over one connection share these: the place of an attempt is before its values in both
    places smallint[] DEFAULT NULL, facts text[] DEFAULT NULL, times real[] DEFAULT NULL,
    -- the worker of each attempt, in place of the first argument
    workers text[] DEFAULT NULL,
    -- whether this is a repetition, because the answer to the first commit was lost with its connection
    again boolean DEFAULT false,
    -- the rows that the outcomes changed: those of the other attempts were late; null: all changed
    changed bigint[] DEFAULT NULL,
    -- of each attempt: address|helo|protocol of the client that handed the message over
    clients text[] DEFAULT NULL
) RETURNS bigint LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    logged bigint;
    late text[];  -- the column late of each attempt
BEGIN
    IF cardinality(changed) < cardinality(row_ids) THEN
        late := ARRAY(
            SELECT CASE WHEN id = ANY (changed) THEN NULL
                WHEN EXISTS (SELECT FROM pgmta.queue AS q WHERE q.id = o.id) THEN 'moved on' ELSE 'gone' END
            FROM unnest(row_ids) WITH ORDINALITY AS o (id, number) ORDER BY number);
    END IF;
    IF again THEN  -- leave out attempts that are in the log already
        events := ARRAY(
            SELECT CASE WHEN EXISTS (
                SELECT FROM pgmta.attempts AS a
                WHERE a.message_id = o.message_id AND a.row_id = o.row_id AND a.lease_token = o.token
                    AND a.ended_at = o.ended_at
            ) THEN 'handed back' ELSE o.event END
            FROM unnest(row_ids, message_ids, tokens, ended, events) WITH ORDINALITY
                AS o (row_id, message_id, token, ended_at, event, number) ORDER BY number);
    END IF;
    INSERT INTO pgmta.attempts (ended_at, started_at, row_id, message_id, lease_token, attempt, code,
        event, sender, recipient, domain, worker, host, command, enhanced, reply, class,
        tenant, message_id_header, submitted_by, metadata, address, tls_version,
        tls_cipher, tls_verified, dns_seconds, connect_seconds, tls_seconds, transaction_seconds, late,
        client, client_helo, client_protocol)
    SELECT coalesce(ended[n], now()), started[n], row_ids[n], message_ids[n], tokens[n], numbers[n],
        coalesce(codes[n], 0), coalesce(events[n], 'delivered'), senders[n], recipients[n], domains[n],
        coalesce(workers[n], attempts_log.worker), coalesce(facts[places[n] + 1], ''), coalesce(commands[n], ''),
        coalesce(attempts_log.enhanced[n], ''), replies[n], nullif(classes[n], ''), coalesce(tenants[n], ''),
        nullif(message_id_headers[n], ''), nullif(logins[n], ''), nullif(attempts_log.metadata[n], '')::jsonb,
        nullif(facts[places[n] + 2], ''), nullif(facts[places[n] + 3], ''), nullif(facts[places[n] + 4], ''),
        nullif(facts[places[n] + 5], ''), nullif(times[places[n] + 1], 0),
        nullif(times[places[n] + 2] + times[places[n] + 3], 0), nullif(times[places[n] + 4], 0),
        nullif(seconds[n], 0), late[n], nullif(split_part(clients[n], '|', 1), '')::inet,
        nullif(split_part(clients[n], '|', 2), ''), nullif(split_part(clients[n], '|', 3), '')
    FROM generate_subscripts(row_ids, 1) AS n WHERE coalesce(events[n] NOT IN ('handed back', 'postponed'), true);
    GET DIAGNOSTICS logged = ROW_COUNT;
    RETURN logged;
END $$;
COMMENT ON FUNCTION attempts_log IS
    'Writes attempts to the log, and returns how many. An attempt without an event was delivered; one '
    'that was handed back or postponed never began.';

-- Not PARALLEL SAFE: its EXCEPTION block is a subtransaction, which before PostgreSQL 17 no parallel plan may have.
CREATE FUNCTION trace_client(trace text) RETURNS text LANGUAGE plpgsql IMMUTABLE
    SET search_path = pg_catalog, pg_temp SET standard_conforming_strings = on AS $$
DECLARE
    found CONSTANT text[] := regexp_match(trace,
        '^Received: from ([A-Za-z0-9.:_\[\]?-]+) \(\[(?:IPv6:)?([0-9A-Fa-f.:]+)\]\)\s+by \S+ \(pgmta\) with '
        '([A-Z0-9]+(?: \([^()|\r\n]*\))?)\s');
BEGIN
    RETURN host(found[2]::inet) || '|' || found[1] || '|' || found[3];
EXCEPTION WHEN invalid_text_representation THEN
    RETURN NULL;
END $$;
COMMENT ON FUNCTION trace_client IS
    'Who handed over the message with this trace field, as address|helo|protocol; null: no client of SMTP. '
    'pgmta/mail/received_field.py finds the same.';

CREATE FUNCTION rows_log(
    ids bigint[], event text, who text DEFAULT NULL, reason text DEFAULT NULL, reasons text[] DEFAULT NULL
) RETURNS bigint LANGUAGE plpgsql AS $$
#variable_conflict use_column
BEGIN
    IF cardinality(ids) = 0 THEN RETURN 0; END IF;
    -- with a token alone, by SQL of an operator, a row must not stop the log of the others
    RETURN (SELECT pgmta.attempts_log('', array_agg(q.id), array_agg(q.message_id), array_agg(
            CASE event WHEN 'failed' THEN 0 ELSE coalesce(q.lease_token, 0) END), array_agg(q.attempts),
        array_agg(event), array_agg(q.sender), array_agg(left(q.recipient, 600)), array_agg(q.domain), '{}', '{}',
        array_agg(coalesce(reason, reasons[array_position(ids, q.id)], CASE event WHEN 'unknown' THEN 'lease ran out: the worker died or lost the database'
            ELSE q.hold_reason END, '')),
        '{}', array_agg(CASE event WHEN 'failed' THEN 'other' END),
        array_agg(CASE event WHEN 'unknown' THEN coalesce(q.lease_since, now()) ELSE now() END), '{}', '{}',
        array_agg(q.tenant), array_agg(m.message_id_header), array_agg(m.submitted_by),
        array_agg(nullif(q.metadata, '{}')::text),
        workers => array_agg(coalesce(who, CASE event WHEN 'unknown' THEN q.lease_owner ELSE q.held_by END, '')),
        clients => array_agg(pgmta.trace_client(m.trace)))
    FROM pgmta.queue AS q LEFT JOIN pgmta.messages AS m ON m.id = q.message_id
    WHERE q.id = ANY (ids));
END $$;
COMMENT ON FUNCTION rows_log IS
    'Writes an entry of the log for rows of the queue, which the caller has locked and changes or removes afterwards: '
    'unknown (their lease ran out), deleted, cancelled, suppressed or failed. `reasons` has one for each row. Without who and '
    'reason the row itself says both. Returns how many.';

CREATE FUNCTION is_hard_bounce(class text) RETURNS boolean IMMUTABLE PARALLEL SAFE
RETURN coalesce(class IN ('unknown_user', 'disabled', 'bad_domain'), false);
COMMENT ON FUNCTION is_hard_bounce IS 'Whether a failure of this answer class is a hard bounce: there is no such mailbox.';

CREATE FUNCTION returned_for_good(class text, returned text) RETURNS boolean IMMUTABLE PARALLEL SAFE
RETURN coalesce(is_hard_bounce(class) AND returned !~ '^4[0-9][0-9] ', false);
COMMENT ON FUNCTION returned_for_good IS 'Whether mail came back because there is no such mailbox, by no passing failure.';

CREATE TABLE event_functions (function text PRIMARY KEY);
COMMENT ON TABLE event_functions IS 'Functions of features that take what a provider says later of mail.';
COMMENT ON COLUMN event_functions.function IS
    'Of message, metadata of the row, kind (delivered, bounced, failed or complained), code, sub type and time of an event.';

CREATE FUNCTION attempt_returned(
    message bigint, recipient_row bigint, day date, why text, words text, complaint boolean DEFAULT false,
    OUT sender text, OUT recipient text
) LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    -- the attempt began on this day, by the clock of a worker
    earliest CONSTANT timestamptz := (day - 1)::timestamp AT TIME ZONE 'UTC';
    latest CONSTANT timestamptz := (day + 3)::timestamp AT TIME ZONE 'UTC';
    entry record;
BEGIN
    SELECT a.ended_at, a.lease_token, a.sender, a.recipient INTO entry
    FROM pgmta.attempts AS a
    WHERE a.message_id = message AND a.row_id = recipient_row AND a.event IN ('delivered', 'unknown')
        AND a.ended_at >= earliest AND a.ended_at < latest
    ORDER BY a.ended_at DESC LIMIT 1;
    IF NOT FOUND THEN RETURN; END IF;
    sender := entry.sender;
    recipient := entry.recipient;
    IF why <> '' THEN
        UPDATE pgmta.attempts AS a
        SET class = why, returned_at = now(), returned = left(words, 1020)
        WHERE a.message_id = message AND a.row_id = recipient_row AND a.ended_at = entry.ended_at
            AND a.lease_token = entry.lease_token AND (a.returned_at IS NULL
                -- this class wins over whatever came first, because there is no such mailbox
                OR pgmta.returned_for_good(why, words) AND NOT pgmta.returned_for_good(a.class, a.returned));
    END IF;
    IF complaint THEN
        UPDATE pgmta.attempts AS a SET complained_at = now()
        WHERE a.message_id = message AND a.row_id = recipient_row AND a.ended_at = entry.ended_at
            AND a.lease_token = entry.lease_token;
    END IF;
END $$;
COMMENT ON FUNCTION attempt_returned IS
    'Returns sender and recipient of the attempt that delivered a row on that day or the next ones, null without '
    'one. With a reason it notes in the log that the mail came back, once, or once more for good. A complaint is noted '
    'each time.';

CREATE VIEW attempt_history AS
SELECT message_id, recipient, attempt, started_at, ended_at, ended_at - started_at AS duration,
    event, nullif(code, 0) AS code, nullif(enhanced, '') AS enhanced, reply,
    nullif(command, '') AS command, nullif(host, '') AS host, worker, sender, domain, row_id,
    tenant, message_id_header, submitted_by, metadata, address, tls_version, tls_cipher, tls_verified,
    dns_seconds, connect_seconds, tls_seconds, transaction_seconds, class, returned_at, returned, late,
    confirmed_at, complained_at, client, client_helo, client_protocol
FROM attempts;
COMMENT ON VIEW attempt_history IS
    'Every attempt, to be read. By message_id or recipient it uses an index, whatever the length of the log; with '
    'ended_at it reads only those days.';
COMMENT ON COLUMN attempt_history.message_id IS 'The message id.';
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
COMMENT ON COLUMN attempt_history.row_id IS 'queue.id of the row, which may be gone.';
COMMENT ON COLUMN attempt_history.tenant IS 'For whom the mail is; empty: no tenant.';
COMMENT ON COLUMN attempt_history.message_id_header IS
    'Message-ID of the header (RFC 5322, section 3.6.4); null: it has none.';
COMMENT ON COLUMN attempt_history.submitted_by IS
    'Login of the SQL session that submitted the message; null: none did.';
COMMENT ON COLUMN attempt_history.metadata IS 'Metadata of the row at that time; null: it was empty.';
COMMENT ON COLUMN attempt_history.address IS 'As attempts.address.';
COMMENT ON COLUMN attempt_history.tls_version IS 'As attempts.tls_version.';
COMMENT ON COLUMN attempt_history.tls_cipher IS 'As attempts.tls_cipher.';
COMMENT ON COLUMN attempt_history.tls_verified IS 'As attempts.tls_verified.';
COMMENT ON COLUMN attempt_history.dns_seconds IS 'As attempts.dns_seconds.';
COMMENT ON COLUMN attempt_history.connect_seconds IS 'As attempts.connect_seconds.';
COMMENT ON COLUMN attempt_history.tls_seconds IS 'As attempts.tls_seconds.';
COMMENT ON COLUMN attempt_history.transaction_seconds IS 'As attempts.transaction_seconds.';
COMMENT ON COLUMN attempt_history.class IS 'As attempts.class.';
COMMENT ON COLUMN attempt_history.returned_at IS 'As attempts.returned_at.';
COMMENT ON COLUMN attempt_history.returned IS 'As attempts.returned.';
COMMENT ON COLUMN attempt_history.late IS 'As attempts.late.';
COMMENT ON COLUMN attempt_history.confirmed_at IS 'As attempts.confirmed_at.';
COMMENT ON COLUMN attempt_history.complained_at IS 'As attempts.complained_at.';
COMMENT ON COLUMN attempt_history.client IS 'As attempts.client.';
COMMENT ON COLUMN attempt_history.client_helo IS 'As attempts.client_helo.';
COMMENT ON COLUMN attempt_history.client_protocol IS 'As attempts.client_protocol.';

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

CREATE VIEW outcome_counts AS
SELECT hour, count(*) FILTER (WHERE outcome = 'settled') AS settled,
    count(*) FILTER (WHERE outcome = 'not settled') AS not_settled,
    count(*) FILTER (WHERE outcome = 'not claimed') AS not_claimed,
    count(*) FILTER (WHERE outcome = 'gone') AS gone,
    count(*) FILTER (WHERE outcome = 'moved on') AS moved_on
FROM (
    SELECT date_trunc('hour', ended_at) AS hour, CASE
        WHEN command = 'lease' THEN 'not claimed'
        WHEN late IS NOT NULL AND event NOT IN ('delivered', 'unknown') THEN late
        WHEN late IS NOT NULL OR lost THEN 'not settled'
        ELSE 'settled' END AS outcome
    FROM (
        SELECT *, code = 0 AND event = 'unknown' AND reply LIKE 'lease ran out:%' AS lost FROM attempts
        WHERE ended_at >= date_trunc('hour', now()) - interval '1 day' AND lease_token <> 0
            AND event IN ('delivered', 'deferred', 'failed', 'unknown')
    ) AS a
    -- of an attempt with two entries its own one counts; by count(), because a join might read the whole log
    WHERE CASE WHEN lost THEN (
        SELECT count(*) FROM attempts AS own
        WHERE own.message_id = a.message_id AND own.row_id = a.row_id AND own.lease_token = a.lease_token
            AND NOT (own.code = 0 AND own.event = 'unknown' AND own.reply LIKE 'lease ran out:%')
    ) = 0 ELSE true END
) AS counted
GROUP BY hour;
COMMENT ON VIEW outcome_counts IS
    'What became of attempts, each counted once, by the hour in which it ended. Reads the log of the last 24 hours.';
COMMENT ON COLUMN outcome_counts.hour IS 'Start of the hour; one without attempts has no line.';
COMMENT ON COLUMN outcome_counts.settled IS 'The outcome, of whatever kind, changed its row.';
COMMENT ON COLUMN outcome_counts.not_settled IS
    'The mail was sent, or may have been, and the row did not learn it in time: a reason for a duplicate.';
COMMENT ON COLUMN outcome_counts.not_claimed IS 'The lease was over before the final dot, so nothing was sent.';
COMMENT ON COLUMN outcome_counts.gone IS 'Nothing was sent, and the row was no longer in the queue.';
COMMENT ON COLUMN outcome_counts.moved_on IS 'Nothing was sent, and the row had another lease, or none, by then.';

CREATE VIEW duplicates AS
SELECT u.message_id, u.row_id, a.recipient, a.possible, a.unknown, a.first_at, a.last_at, a.reason
FROM (SELECT DISTINCT message_id, row_id FROM attempts WHERE event = 'unknown') AS u
CROSS JOIN LATERAL (
    -- by token: one attempt may be in the log as unknown and, later, as delivered
    SELECT min(recipient) AS recipient, count(DISTINCT lease_token) AS possible,
        count(DISTINCT lease_token) FILTER (WHERE event = 'unknown') AS unknown,
        min(ended_at) AS first_at, max(ended_at) AS last_at,
        string_agg(DISTINCT concat_ws(': ', nullif(host, ''), reply), '; ')
            FILTER (WHERE event = 'unknown') AS reason
    FROM attempts
    WHERE attempts.message_id = u.message_id AND attempts.row_id = u.row_id
        AND event IN ('unknown', 'delivered')
) AS a
WHERE a.possible > 1;
COMMENT ON VIEW duplicates IS
    'Recipients who may have a message more than once, and why. An index look-up for each unknown.';
COMMENT ON COLUMN duplicates.message_id IS 'The message id.';
COMMENT ON COLUMN duplicates.row_id IS 'queue.id of the recipient''s row, which may be gone.';
COMMENT ON COLUMN duplicates.recipient IS 'Who may have it more than once.';
COMMENT ON COLUMN duplicates.possible IS 'How often at most: attempts that delivered or may have.';
COMMENT ON COLUMN duplicates.unknown IS 'How many of them nobody knows the outcome of.';
COMMENT ON COLUMN duplicates.first_at IS 'When the first of them ended.';
COMMENT ON COLUMN duplicates.last_at IS 'When the last of them ended.';
COMMENT ON COLUMN duplicates.reason IS 'What happened to those of unknown outcome.';

INSERT INTO rights (object, role, privileges) VALUES
    ('attempts', 'pgmta_queued', 'SELECT, INSERT'),
    ('attempts', 'pgmta_operator', 'SELECT'),
    ('attempts', 'pgmta_reader', 'SELECT'),
    ('FUNCTION attempts_log', 'pgmta_queued', 'EXECUTE'),
    ('FUNCTION rows_log', 'pgmta_queued', 'EXECUTE'),
    ('FUNCTION trace_client', 'pgmta_queued', 'EXECUTE'),
    ('FUNCTION trace_client', 'pgmta_operator', 'EXECUTE'),
    ('FUNCTION trace_client', 'pgmta_reader', 'EXECUTE'),
    ('FUNCTION attempt_returned', 'pgmta_queued', 'EXECUTE'),
    ('attempt_history', 'pgmta_operator', 'SELECT'),
    ('attempt_history', 'pgmta_reader', 'SELECT'),
    ('attempt_rates', 'pgmta_operator', 'SELECT'),
    ('attempt_rates', 'pgmta_reader', 'SELECT'),
    ('outcome_counts', 'pgmta_operator', 'SELECT'),
    ('outcome_counts', 'pgmta_reader', 'SELECT'),
    ('duplicates', 'pgmta_operator', 'SELECT'),
    ('duplicates', 'pgmta_reader', 'SELECT');

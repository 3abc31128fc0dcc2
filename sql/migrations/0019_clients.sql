-- The client of a message stays in the log of its attempts.

SET LOCAL check_function_bodies = off;  -- functions may name later ones

ALTER TABLE attempts ADD COLUMN client inet, ADD COLUMN client_helo text, ADD COLUMN client_protocol text;
COMMENT ON COLUMN attempts.client IS 'IP address of the client that handed the message over by SMTP; null: none did.';
COMMENT ON COLUMN attempts.client_helo IS 'The name that the client gave in EHLO, HELO or LHLO.';
COMMENT ON COLUMN attempts.client_protocol IS
    'The protocol of the session (RFC 3848), with the version and the cipher of TLS.';

CREATE FUNCTION trace_client(trace text) RETURNS text LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE
    SET search_path = pg_catalog, pg_temp AS $$
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
    'pgmta/mail/trace_field.py finds the same.';

-- another argument
DROP FUNCTION attempts_log(text, bigint[], bigint[], bigint[], integer[], text[], text[], text[], text[], smallint[], text[],
    text[], text[], text[], timestamptz[], timestamptz[], real[], text[], text[], text[], text[], smallint[], text[], real[],
    text[], boolean, bigint[]);
-- By arrays, because a worker writes many outcomes at once. An array is empty if no attempt has a value.
CREATE FUNCTION attempts_log(
    worker text,
    -- of each attempt
    row_ids bigint[], message_ids bigint[], tokens bigint[], numbers integer[], events text[],
    senders text[], recipients text[], domains text[], codes smallint[], enhanced text[], replies text[],
    commands text[], classes text[], started timestamptz[], ended timestamptz[], seconds real[],
    tenants text[], message_id_headers text[], logins text[], metadata text[],
    -- the attempts over one connection share these: the place of an attempt is before its values in both
    places smallint[] DEFAULT NULL, facts text[] DEFAULT NULL, times real[] DEFAULT NULL,
    -- of each attempt, in place of the first argument
    workers text[] DEFAULT NULL,
    -- the answer to the first commit was lost with its connection
    again boolean DEFAULT false,
    -- the rows that the outcomes changed: those of the other attempts were late; null: all changed
    changed bigint[] DEFAULT NULL,
    -- of each attempt: address|helo|protocol
    clients text[] DEFAULT NULL
) RETURNS bigint LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    logged bigint;
    late text[];  -- of each attempt
BEGIN
    IF cardinality(changed) < cardinality(row_ids) THEN
        late := ARRAY(
            SELECT CASE WHEN id = ANY (changed) THEN NULL
                WHEN EXISTS (SELECT FROM pgmta.queue AS q WHERE q.id = o.id) THEN 'moved on' ELSE 'gone' END
            FROM unnest(row_ids) WITH ORDINALITY AS o (id, number) ORDER BY number);
    END IF;
    IF again THEN  -- leave out those in the log
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

CREATE OR REPLACE FUNCTION rows_log(ids bigint[], event text, who text DEFAULT NULL, reason text DEFAULT NULL)
RETURNS bigint LANGUAGE plpgsql AS $$
#variable_conflict use_column
BEGIN
    IF cardinality(ids) = 0 THEN RETURN 0; END IF;
    -- with a token alone, by SQL of an operator, a row must not stop the log of the others
    RETURN (SELECT pgmta.attempts_log('', array_agg(q.id), array_agg(q.message_id), array_agg(
            CASE event WHEN 'failed' THEN 0 ELSE coalesce(q.lease_token, 0) END), array_agg(q.attempts),
        array_agg(event), array_agg(q.sender), array_agg(left(q.recipient, 600)), array_agg(q.domain), '{}', '{}',
        array_agg(coalesce(reason, CASE event WHEN 'unknown' THEN 'lease ran out: the worker died or lost the database'
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
    'unknown (their lease ran out), deleted, cancelled or failed. Without who and reason the row itself says both. '
    'Returns how many.';

CREATE OR REPLACE VIEW attempt_history AS
SELECT message_id, recipient, attempt, started_at, ended_at, ended_at - started_at AS duration,
    event, nullif(code, 0) AS code, nullif(enhanced, '') AS enhanced, reply,
    nullif(command, '') AS command, nullif(host, '') AS host, worker, sender, domain, row_id,
    tenant, message_id_header, submitted_by, metadata, address, tls_version, tls_cipher, tls_verified,
    dns_seconds, connect_seconds, tls_seconds, transaction_seconds, class, returned_at, returned, late,
    confirmed_at, complained_at, client, client_helo, client_protocol
FROM attempts;
COMMENT ON COLUMN attempt_history.client IS 'As attempts.client.';
COMMENT ON COLUMN attempt_history.client_helo IS 'As attempts.client_helo.';
COMMENT ON COLUMN attempt_history.client_protocol IS 'As attempts.client_protocol.';

-- its * has the new columns
CREATE OR REPLACE VIEW outcome_counts AS
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
    -- of an attempt with two entries, its own counts; a count, because a join might read the whole log
    WHERE CASE WHEN lost THEN (
        SELECT count(*) FROM attempts AS own
        WHERE own.message_id = a.message_id AND own.row_id = a.row_id AND own.lease_token = a.lease_token
            AND NOT (own.code = 0 AND own.event = 'unknown' AND own.reply LIKE 'lease ran out:%')
    ) = 0 ELSE true END
) AS counted
GROUP BY hour;

INSERT INTO rights (object, role, privileges) VALUES
    ('FUNCTION trace_client', 'pgmta_queued', 'EXECUTE'),
    ('FUNCTION trace_client', 'pgmta_operator', 'EXECUTE'),
    ('FUNCTION trace_client', 'pgmta_reader', 'EXECUTE');

DO $$
BEGIN
    IF grants() <> '{}' THEN
        RAISE WARNING 'a role could not be made'
            USING HINT = 'Create the roles of docs/rights.md (NOLOGIN) and call pgmta.grants() as owner of the tables.';
    END IF;
END $$;

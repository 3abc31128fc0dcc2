-- Which outcomes came too late to change their row, and counts of attempts by what became of them.

SET LOCAL check_function_bodies = off;  -- functions may name later ones

ALTER TABLE attempts ADD COLUMN late text;
COMMENT ON COLUMN attempts.late IS
    'Why the outcome changed no row: gone (the row was no longer in the queue) or moved on (it had another lease or '
    'none by then); null: it changed its row.';

DROP FUNCTION attempts_log;
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
    changed bigint[] DEFAULT NULL
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
        tls_cipher, tls_verified, dns_seconds, connect_seconds, tls_seconds, transaction_seconds, late)
    SELECT coalesce(ended[n], now()), started[n], row_ids[n], message_ids[n], tokens[n], numbers[n],
        coalesce(codes[n], 0), coalesce(events[n], 'delivered'), senders[n], recipients[n], domains[n],
        coalesce(workers[n], attempts_log.worker), coalesce(facts[places[n] + 1], ''), coalesce(commands[n], ''),
        coalesce(attempts_log.enhanced[n], ''), replies[n], nullif(classes[n], ''), coalesce(tenants[n], ''),
        nullif(message_id_headers[n], ''), nullif(logins[n], ''), nullif(attempts_log.metadata[n], '')::jsonb,
        nullif(facts[places[n] + 2], ''), nullif(facts[places[n] + 3], ''), nullif(facts[places[n] + 4], ''),
        nullif(facts[places[n] + 5], ''), nullif(times[places[n] + 1], 0),
        nullif(times[places[n] + 2] + times[places[n] + 3], 0), nullif(times[places[n] + 4], 0),
        nullif(seconds[n], 0), late[n]
    FROM generate_subscripts(row_ids, 1) AS n WHERE coalesce(events[n] NOT IN ('handed back', 'postponed'), true);
    GET DIAGNOSTICS logged = ROW_COUNT;
    RETURN logged;
END $$;
COMMENT ON FUNCTION attempts_log IS
    'Writes attempts to the log, and returns how many. An attempt without an event was delivered; one '
    'that was handed back or postponed never began.';

CREATE OR REPLACE VIEW attempt_history AS
SELECT message_id, recipient, attempt, started_at, ended_at, ended_at - started_at AS duration,
    event, nullif(code, 0) AS code, nullif(enhanced, '') AS enhanced, reply,
    nullif(command, '') AS command, nullif(host, '') AS host, worker, sender, domain, row_id,
    tenant, message_id_header, submitted_by, metadata, address, tls_version, tls_cipher, tls_verified,
    dns_seconds, connect_seconds, tls_seconds, transaction_seconds, class, returned_at, returned, late
FROM attempts;
COMMENT ON COLUMN attempt_history.late IS 'As attempts.late.';

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
    -- of an attempt with two entries, its own counts; a count, because a join might read the whole log
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

INSERT INTO rights (object, role, privileges) VALUES
    ('outcome_counts', 'pgmta_operator', 'SELECT'),
    ('outcome_counts', 'pgmta_reader', 'SELECT');

SELECT grants();

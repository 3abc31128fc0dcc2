-- Returned mail: docs/decisions/0047-rewriting.md.

ALTER TABLE attempts ADD COLUMN returned_at timestamptz, ADD COLUMN returned text;
COMMENT ON COLUMN attempts.class IS
    'Why it did not deliver, in one word such as unknown_user (docs/answers.md); null: delivered, or no attempt. '
    'Of a delivery that came back: why, see returned.';
COMMENT ON COLUMN attempts.returned_at IS
    'When the mail came back to its VERP address after the next hop had taken it; null: it did not.';
COMMENT ON COLUMN attempts.returned IS 'Status and reply as the mail that came back reports them.';

CREATE OR REPLACE VIEW attempt_history AS
SELECT message_id, recipient, attempt, started_at, ended_at, ended_at - started_at AS duration,
    event, nullif(code, 0) AS code, nullif(enhanced, '') AS enhanced, reply,
    nullif(command, '') AS command, nullif(host, '') AS host, worker, sender, domain, row_id,
    tenant, message_id_header, submitted_by, metadata, address, tls_version, tls_cipher, tls_verified,
    dns_seconds, connect_seconds, tls_seconds, transaction_seconds, class, returned_at, returned
FROM attempts;
COMMENT ON COLUMN attempt_history.returned_at IS 'As attempts.returned_at.';
COMMENT ON COLUMN attempt_history.returned IS 'As attempts.returned.';

CREATE FUNCTION attempt_returned(message bigint, recipient_row bigint, day date, why text, words text,
    OUT sender text, OUT recipient text
) LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    -- the attempt began on this day, by the clock of a worker
    earliest CONSTANT timestamptz := (day - 1)::timestamp AT TIME ZONE 'UTC';
    latest CONSTANT timestamptz := (day + 3)::timestamp AT TIME ZONE 'UTC';
    at timestamptz;
    token bigint;
BEGIN
    SELECT a.ended_at, a.lease_token, a.sender, a.recipient INTO at, token, sender, recipient
    FROM pgmta.attempts AS a
    WHERE a.message_id = message AND a.row_id = recipient_row AND a.event IN ('delivered', 'unknown')
        AND a.ended_at >= earliest AND a.ended_at < latest
    ORDER BY a.ended_at DESC LIMIT 1;
    IF FOUND AND why <> '' THEN
        UPDATE pgmta.attempts AS a
        SET class = why, returned_at = now(), returned = left(words, 1020)
        WHERE a.message_id = message AND a.row_id = recipient_row AND a.ended_at = at
            AND a.lease_token = token AND a.returned_at IS NULL;
    END IF;
END $$;
COMMENT ON FUNCTION attempt_returned(bigint, bigint, date, text, text) IS
    'Returns sender and recipient of the attempt that delivered a row on that day or the next ones, null without '
    'one. With a reason it notes in the log that the mail came back, once; nothing else of the log changes.';
REVOKE EXECUTE ON FUNCTION attempt_returned(bigint, bigint, date, text, text) FROM PUBLIC;

ALTER FUNCTION grants() RENAME TO grants_0023;
COMMENT ON FUNCTION grants_0023() IS 'Part of grants().';
CREATE FUNCTION grants() RETURNS text[] LANGUAGE plpgsql
    SET search_path = pgmta, pg_catalog, pg_temp AS $$
BEGIN
    PERFORM grant_to('EXECUTE ON FUNCTION attempt_returned(bigint, bigint, date, text, text)', 'pgmta_queued');
    RETURN grants_0023();
END $$;
REVOKE EXECUTE ON FUNCTION grants(), grants_0023() FROM PUBLIC;
COMMENT ON FUNCTION grants() IS
    'Gives the roles pgmta_smtpd, pgmta_queued, pgmta_operator, pgmta_reader and pgmta_submit their '
    'rights; to be called by the owner of the tables. Returns the roles that do not exist.';
DO $$ BEGIN PERFORM grants(); END $$;

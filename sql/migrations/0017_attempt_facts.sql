-- Where and how an attempt went, and what was said: docs/decisions/0035-attempt-facts.md.

-- 1. Attempts. Columns without a default need no rewrite, and views on the table stay as they are.

ALTER TABLE attempts
    ADD COLUMN address text,
    ADD COLUMN tls_version text,
    ADD COLUMN tls_cipher text,
    ADD COLUMN tls_verified text,
    ADD COLUMN dns_seconds real,
    ADD COLUMN connect_seconds real,
    ADD COLUMN tls_seconds real,
    ADD COLUMN transaction_seconds real;
COMMENT ON COLUMN attempts.host IS 'Next hop, host:port, or the last one tried; empty where none was known.';
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

CREATE OR REPLACE VIEW attempt_history AS
SELECT message_id, recipient, attempt, started_at, ended_at, ended_at - started_at AS duration,
    event, nullif(code, 0) AS code, nullif(enhanced, '') AS enhanced, reply,
    nullif(command, '') AS command, nullif(host, '') AS host, worker, sender, domain, row_id,
    tenant, message_id_header, submitted_by, metadata, address, tls_version, tls_cipher, tls_verified,
    dns_seconds, connect_seconds, tls_seconds, transaction_seconds
FROM attempts;
COMMENT ON COLUMN attempt_history.address IS 'As attempts.address.';
COMMENT ON COLUMN attempt_history.tls_version IS 'As attempts.tls_version.';
COMMENT ON COLUMN attempt_history.tls_cipher IS 'As attempts.tls_cipher.';
COMMENT ON COLUMN attempt_history.tls_verified IS 'As attempts.tls_verified.';
COMMENT ON COLUMN attempt_history.dns_seconds IS 'As attempts.dns_seconds.';
COMMENT ON COLUMN attempt_history.connect_seconds IS 'As attempts.connect_seconds.';
COMMENT ON COLUMN attempt_history.tls_seconds IS 'As attempts.tls_seconds.';
COMMENT ON COLUMN attempt_history.transaction_seconds IS 'As attempts.transaction_seconds.';

-- 2. Transcripts.

CREATE TABLE transcripts (
    ended_at timestamptz NOT NULL,
    message_id bigint NOT NULL,
    lease_token bigint NOT NULL,
    row_ids bigint[] NOT NULL,
    traces bigint[],
    dialogue text NOT NULL
) PARTITION BY RANGE (ended_at);
COMMENT ON TABLE transcripts IS
    'The dialogue of attempts that failed, or that a trace asked for, by day. All rows of a transaction share one.';
COMMENT ON COLUMN transcripts.ended_at IS 'As attempts.ended_at.';
COMMENT ON COLUMN transcripts.message_id IS 'As attempts.message_id.';
COMMENT ON COLUMN transcripts.lease_token IS 'As attempts.lease_token.';
COMMENT ON COLUMN transcripts.row_ids IS 'attempts.row_id of each row.';
COMMENT ON COLUMN transcripts.traces IS 'traces.id of each trace that asked for it; null: none did.';
COMMENT ON COLUMN transcripts.dialogue IS
    'A line for each line said, with its time in UTC: < from the next hop, > from pgmta, # a note. Without '
    'content and secrets.';
CREATE INDEX transcripts_message_id ON transcripts (message_id);
COMMENT ON INDEX transcripts_message_id IS 'queuectl show.';
CREATE INDEX transcripts_traced ON transcripts (ended_at) WHERE traces IS NOT NULL;
COMMENT ON INDEX transcripts_traced IS 'queuectl trace.';
CREATE TABLE transcripts_default PARTITION OF transcripts DEFAULT;
COMMENT ON TABLE transcripts_default IS 'Catches rows of days without a partition; normally empty.';

CREATE FUNCTION transcripts_partitions(days integer) RETURNS integer LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp SET lock_timeout = '0.3s' AS $$
DECLARE
    day date;
    name text;
    made integer := 0;
BEGIN
    LOCK TABLE ONLY pgmta.transcripts IN SHARE UPDATE EXCLUSIVE MODE;
    FOR ahead IN 0 .. days LOOP
        day := (now() AT TIME ZONE 'UTC')::date + ahead;
        name := 'transcripts_' || to_char(day, 'YYYYMMDD');
        IF to_regclass('pgmta.' || name) IS NULL THEN
            EXECUTE format(
                'CREATE TABLE pgmta.%I PARTITION OF pgmta.transcripts FOR VALUES FROM (%L) TO (%L)',
                name, day || ' 00:00:00+00', day + 1 || ' 00:00:00+00');
            made := made + 1;
        END IF;
    END LOOP;
    RETURN made;
END $$;
COMMENT ON FUNCTION transcripts_partitions(integer) IS
    'Makes the day partitions of transcripts from today to that many days ahead; returns how many.';
SELECT transcripts_partitions(7);

CREATE FUNCTION transcripts_expire(keep interval) RETURNS integer LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp SET lock_timeout = '0.3s' AS $$
DECLARE
    name text;
    dropped integer := 0;
BEGIN
    LOCK TABLE ONLY pgmta.transcripts IN SHARE UPDATE EXCLUSIVE MODE;
    FOR name IN
        SELECT c.relname FROM pg_inherits AS i JOIN pg_class AS c ON c.oid = i.inhrelid
        WHERE i.inhparent = 'pgmta.transcripts'::regclass AND c.relname ~ '^transcripts_\d{8}$'
            AND to_date(right(c.relname, 8), 'YYYYMMDD') + 1 <= (now() - keep) AT TIME ZONE 'UTC'
        ORDER BY 1
    LOOP
        EXECUTE format('DROP TABLE pgmta.%I', name);
        dropped := dropped + 1;
    END LOOP;
    RETURN dropped;
END $$;
COMMENT ON FUNCTION transcripts_expire(interval) IS
    'Drops the day partitions of transcripts that ended longer ago than that; returns how many.';
REVOKE EXECUTE ON FUNCTION transcripts_partitions(integer), transcripts_expire(interval) FROM PUBLIC;

-- 3. Traces.

CREATE TABLE traces (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    created_at timestamptz NOT NULL DEFAULT now(),
    created_by text NOT NULL,
    expires_at timestamptz NOT NULL,
    wanted jsonb NOT NULL CONSTRAINT traces_wanted CHECK (jsonb_typeof(wanted) = 'object')
);
COMMENT ON TABLE traces IS
    'Orders of operators to keep the transcripts of all attempts that match. Workers read them with each heartbeat.';
COMMENT ON COLUMN traces.id IS 'Number of the trace.';
COMMENT ON COLUMN traces.created_at IS 'When it began.';
COMMENT ON COLUMN traces.created_by IS 'The operator.';
COMMENT ON COLUMN traces.expires_at IS 'When it ends.';
COMMENT ON COLUMN traces.wanted IS
    'Lists of patterns by domain, recipient, sender and metadata (key=value). Patterns of one list are '
    'alternatives, and different lists must all match; * stands for any text.';
COMMENT ON CONSTRAINT traces_wanted ON traces IS 'Lists by name.';

-- 4. Rights.

ALTER FUNCTION grants() RENAME TO grants_0016;
COMMENT ON FUNCTION grants_0016() IS 'Part of grants().';
CREATE FUNCTION grants() RETURNS text[] LANGUAGE plpgsql
    SET search_path = pgmta, pg_catalog, pg_temp AS $$
DECLARE
    role text;
BEGIN
    IF to_regrole('pgmta_queued') IS NOT NULL THEN
        GRANT INSERT ON transcripts TO pgmta_queued;
        -- it writes again after a lost answer, if they are not there
        GRANT SELECT (ended_at, message_id, lease_token, row_ids) ON transcripts TO pgmta_queued;
        GRANT SELECT, DELETE ON traces TO pgmta_queued;
        GRANT EXECUTE ON FUNCTION transcripts_partitions(integer), transcripts_expire(interval) TO pgmta_queued;
    END IF;
    FOREACH role IN ARRAY ARRAY['pgmta_operator', 'pgmta_reader'] LOOP
        IF to_regrole(role) IS NOT NULL THEN
            EXECUTE format('GRANT SELECT ON transcripts, traces TO %I', role);
        END IF;
    END LOOP;
    IF to_regrole('pgmta_operator') IS NOT NULL THEN
        GRANT INSERT (created_by, expires_at, wanted), UPDATE (expires_at) ON traces TO pgmta_operator;
    END IF;
    RETURN grants_0016();
END $$;
REVOKE EXECUTE ON FUNCTION grants(), grants_0016() FROM PUBLIC;
COMMENT ON FUNCTION grants() IS
    'Gives the roles pgmta_smtpd, pgmta_queued, pgmta_operator, pgmta_reader and pgmta_submit their '
    'rights; to be called by the owner of the tables. Returns the roles that do not exist.';
DO $$ BEGIN PERFORM grants(); END $$;

-- Transcripts of dialogues with next hops, and the traces that ask for them.

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
    'A line for each line said, with its time in UTC: < from the next hop, > from pgmta, # a note. Without content '
    'and secrets.';

CREATE TABLE transcripts_default PARTITION OF transcripts DEFAULT;
COMMENT ON TABLE transcripts_default IS 'Catches rows of days without a partition; normally empty.';

CREATE INDEX transcripts_message_id ON transcripts (message_id);
COMMENT ON INDEX transcripts_message_id IS 'queuectl show.';
CREATE INDEX transcripts_traced ON transcripts (ended_at) WHERE traces IS NOT NULL;
COMMENT ON INDEX transcripts_traced IS 'queuectl trace.';

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
COMMENT ON SEQUENCE traces_id_seq IS 'traces.id.';
COMMENT ON CONSTRAINT traces_wanted ON traces IS 'Lists by name.';

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
COMMENT ON FUNCTION transcripts_partitions IS
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
COMMENT ON FUNCTION transcripts_expire IS
    'Drops the day partitions of transcripts that ended longer ago than that; returns how many.';

INSERT INTO rights (object, role, privileges) VALUES
    -- it writes again after a lost answer, if they are not there
    ('transcripts', 'pgmta_queued', 'SELECT (ended_at, message_id, lease_token, row_ids), INSERT'),
    ('transcripts', 'pgmta_operator', 'SELECT'),
    ('transcripts', 'pgmta_reader', 'SELECT'),
    ('traces', 'pgmta_queued', 'SELECT, DELETE'),
    ('traces', 'pgmta_operator', 'SELECT, INSERT (created_by, expires_at, wanted), UPDATE (expires_at)'),
    ('traces', 'pgmta_reader', 'SELECT'),
    ('FUNCTION transcripts_partitions', 'pgmta_queued', 'EXECUTE'),
    ('FUNCTION transcripts_expire', 'pgmta_queued', 'EXECUTE');

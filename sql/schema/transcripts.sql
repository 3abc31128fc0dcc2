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
ALTER TABLE transcripts REPLICA IDENTITY FULL;
ALTER TABLE transcripts_default REPLICA IDENTITY FULL;
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
    'Lists of texts by domain, recipient, sender, tenant, priority (such as <=3) and metadata (key=value). Texts of '
    'one list are alternatives, and different lists must all match; * stands for any text.';
COMMENT ON SEQUENCE traces_id_seq IS 'traces.id.';
COMMENT ON CONSTRAINT traces_wanted ON traces IS 'Lists by name.';

SELECT days_make('transcripts', 7);

INSERT INTO rights (object, role, privileges) VALUES
    -- SELECT, because queued writes again after a lost answer if the transcripts are missing
    ('transcripts', 'pgmta_queued', 'SELECT (ended_at, message_id, lease_token, row_ids), INSERT'),
    ('transcripts', 'pgmta_operator', 'SELECT'),
    ('transcripts', 'pgmta_reader', 'SELECT'),
    ('traces', 'pgmta_queued', 'SELECT, DELETE'),
    ('traces', 'pgmta_operator', 'SELECT, INSERT (created_by, expires_at, wanted), UPDATE (expires_at)'),
    ('traces', 'pgmta_reader', 'SELECT');

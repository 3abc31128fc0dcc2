-- Batches of collectors, and views under names that mailroom uses.

CREATE TABLE collections (
    id bigserial PRIMARY KEY,
    collector text NOT NULL,
    worker text NOT NULL,
    reason text NOT NULL,
    wanted integer NOT NULL,
    taken integer NOT NULL,
    refused integer NOT NULL DEFAULT 0,
    expired integer NOT NULL DEFAULT 0,
    began_at timestamptz NOT NULL,
    ended_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
COMMENT ON TABLE collections IS 'The batches of collectors.';
COMMENT ON COLUMN collections.id IS 'Number of the batch.';
COMMENT ON COLUMN collections.collector IS 'Name of the collector in queued.yaml, or MAILROOM_QUEUE_NAME.';
COMMENT ON COLUMN collections.worker IS 'The process: its host or command, pid and a random number.';
COMMENT ON COLUMN collections.reason IS
    'Why it was collected then: limit, timeout or connect. sum: the sum of the month is used up, noted once per hour.';
COMMENT ON COLUMN collections.wanted IS 'At most so many tokens were wanted.';
COMMENT ON COLUMN collections.taken IS 'Tokens whose mail was made, or that were printed.';
COMMENT ON COLUMN collections.refused IS 'Tokens that can have no mail or no line, by a value of their account.';
COMMENT ON COLUMN collections.expired IS 'Tokens that expired before their mail was made, or before they were printed.';
COMMENT ON COLUMN collections.began_at IS 'When the statement began.';
COMMENT ON COLUMN collections.ended_at IS 'When it was about to commit.';
COMMENT ON SEQUENCE collections_id_seq IS 'collections.id.';
CREATE INDEX collections_began_at ON collections USING brin (began_at);
COMMENT ON INDEX collections_began_at IS 'Reports about a time.';

CREATE TABLE collectors (
    pid integer PRIMARY KEY,
    collector text NOT NULL,
    worker text NOT NULL,
    actions text[],
    budget text,
    since timestamptz NOT NULL DEFAULT now()
);
COMMENT ON TABLE collectors IS 'Sessions of collectors, and some that are gone: live_collectors has those that are there.';
COMMENT ON COLUMN collectors.pid IS 'Process of the server.';
COMMENT ON COLUMN collectors.collector IS 'As collections.collector.';
COMMENT ON COLUMN collectors.worker IS 'As collections.worker.';
COMMENT ON COLUMN collectors.actions IS 'The actions whose tokens it takes; null: all.';
COMMENT ON COLUMN collectors.budget IS 'Key of its budget; null: none.';
COMMENT ON COLUMN collectors.since IS 'When it said so.';

CREATE VIEW live_collectors AS
SELECT c.collector, c.worker, c.actions, c.budget, c.since FROM collectors AS c
WHERE EXISTS (SELECT FROM pg_stat_activity AS a
    WHERE a.pid = c.pid AND a.datname = current_database() AND a.application_name LIKE 'pgmta %');
COMMENT ON VIEW live_collectors IS 'The collectors that are connected.';
COMMENT ON COLUMN live_collectors.collector IS 'As collections.collector.';
COMMENT ON COLUMN live_collectors.worker IS 'As collections.worker.';
COMMENT ON COLUMN live_collectors.actions IS 'The actions whose tokens it takes; null: all.';
COMMENT ON COLUMN live_collectors.budget IS 'Key of its budget; null: none.';
COMMENT ON COLUMN live_collectors.since IS 'When it said so.';

CREATE FUNCTION collector_takes(collector text, worker text, actions text[], budget text) RETURNS void
    LANGUAGE sql SECURITY DEFINER SET search_path = lifecycle, pg_catalog, pg_temp AS $$
    DELETE FROM collectors AS c WHERE c.pid = ANY (ARRAY(
        SELECT o.pid FROM collectors AS o WHERE NOT EXISTS (SELECT FROM pg_stat_activity AS a WHERE a.pid = o.pid)
        FOR UPDATE SKIP LOCKED));
    INSERT INTO collectors AS c (pid, collector, worker, actions, budget)
    VALUES (pg_backend_pid(), collector_takes.collector, collector_takes.worker, collector_takes.actions,
        collector_takes.budget)
    ON CONFLICT ON CONSTRAINT collectors_pkey DO UPDATE SET
        collector = excluded.collector, worker = excluded.worker, actions = excluded.actions, budget = excluded.budget,
        since = excluded.since
$$;
COMMENT ON FUNCTION collector_takes IS 
    'Says which tokens the collector of this session takes, null for those of all actions, and the key of its budget.';

CREATE VIEW jobs AS
SELECT 'mailroom'::text AS job_type, coalesce((
    SELECT t.id FROM tokens AS t WHERE t.collected_at IS NOT NULL ORDER BY t.id DESC LIMIT 1), 0) AS last_seq;
COMMENT ON VIEW jobs IS 'The highest token that was collected. Earlier ones may wait: waiting_tokens has them.';
COMMENT ON COLUMN jobs.job_type IS 'Always mailroom.';
COMMENT ON COLUMN jobs.last_seq IS 'tokens.id; 0: none yet.';

CREATE FUNCTION jobs_kept() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RAISE EXCEPTION 'jobs has no number that can be moved: a token is collected by itself' USING
        ERRCODE = 'feature_not_supported', HINT = '`queuectl lifecycle collect` prints the tokens that wait, and a collector of '
            'queued.yaml makes mail of them (docs/programs/collectors.md).';
END $$;
COMMENT ON FUNCTION jobs_kept IS 'Refuses the statement by which mailroom takes tokens, and says what to do instead.';
-- The trigger of the statement raises its error even without rows. PostgreSQL requires the INSTEAD OF trigger for that.
CREATE TRIGGER jobs_kept BEFORE UPDATE ON jobs FOR EACH STATEMENT EXECUTE FUNCTION jobs_kept();
COMMENT ON TRIGGER jobs_kept ON jobs IS 'Whoever moved the number would lose tokens whose commit comes late.';
CREATE TRIGGER jobs_row_kept INSTEAD OF UPDATE ON jobs FOR EACH ROW EXECUTE FUNCTION jobs_kept();
COMMENT ON TRIGGER jobs_row_kept ON jobs IS 'The same.';

CREATE VIEW user_action_queue AS
SELECT 'user_action_queue'::text AS job_type, jobs.last_seq FROM jobs;
COMMENT ON VIEW user_action_queue IS 'jobs under the name of mailroom''s first version.';
COMMENT ON COLUMN user_action_queue.job_type IS 'Always user_action_queue.';
COMMENT ON COLUMN user_action_queue.last_seq IS 'As jobs.last_seq.';

CREATE VIEW hex_tokens AS
SELECT id, action, encode(secret, 'hex') AS secret, code, account, expires_at, consumed_at, created_at FROM tokens;
COMMENT ON VIEW hex_tokens IS 'tokens with the secret in hexadecimal digits, as mailroom''s first version has it.';
COMMENT ON COLUMN hex_tokens.id IS 'As tokens.id.';
COMMENT ON COLUMN hex_tokens.action IS 'As tokens.action.';
COMMENT ON COLUMN hex_tokens.secret IS '64 hexadecimal digits.';
COMMENT ON COLUMN hex_tokens.code IS 'As tokens.code.';
COMMENT ON COLUMN hex_tokens.account IS 'As tokens.account.';
COMMENT ON COLUMN hex_tokens.expires_at IS 'As tokens.expires_at.';
COMMENT ON COLUMN hex_tokens.consumed_at IS 'As tokens.consumed_at.';
COMMENT ON COLUMN hex_tokens.created_at IS 'As tokens.created_at.';

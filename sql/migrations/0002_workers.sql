-- Workers by WHERE, holds with a reason, standing rules, fairness by destination.

-- DELETE apart, so that the request is found without an index on status.
CREATE TABLE queue_delete PARTITION OF queue FOR VALUES IN ('DELETE');
COMMENT ON TABLE queue_delete IS 'Rows that an operator wants deleted; queued removes them.';

ALTER TABLE queue
    ADD COLUMN hold_reason text,
    ADD COLUMN held_by text,
    ADD COLUMN held_at timestamptz,
    ADD COLUMN hold_until timestamptz;
COMMENT ON COLUMN queue.hold_reason IS 'Why the row is on hold.';
COMMENT ON COLUMN queue.held_by IS 'Who put it on hold: an operator, rule or worker.';
COMMENT ON COLUMN queue.held_at IS 'When it was put on hold.';
COMMENT ON COLUMN queue.hold_until IS 'When the hold releases itself; null: never.';

-- Claims go by time while little is due, and else by destination: a backlog of one domain is never
-- walked through to find another's mail. The index by time is on an expression that only the claim by
-- time names: otherwise the planner takes it for one domain too, and reads the whole backlog.
DROP INDEX queue_due;
CREATE INDEX queue_due ON queue (priority, (next_attempt AT TIME ZONE 'UTC'));
CREATE INDEX queue_domain_due ON queue (domain, priority, next_attempt);
COMMENT ON INDEX queue_domain_due IS
    'Claims when much is due: destination by destination, then priority, then time.';
COMMENT ON INDEX queue_due IS 'Claims while little is due: priority, then time.';
CREATE INDEX queue_hold_until ON queue_hold (hold_until) WHERE hold_until IS NOT NULL;
COMMENT ON INDEX queue_hold_until IS 'Holds that expire.';
CREATE INDEX queue_hold_quarantine ON queue_hold ((metadata ->> '_quarantineid'), ts);
COMMENT ON INDEX queue_hold_quarantine IS 'Quarantine retention.';

CREATE FUNCTION queue_hold_stamp() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NEW.status = 'HOLD' THEN
        NEW.held_at := now();
        NEW.held_by := coalesce(NEW.held_by, session_user);
        NEW.hold_reason := coalesce(NEW.hold_reason, 'no reason given');
    ELSE
        NEW.held_at := NULL;
        NEW.held_by := NULL;
        NEW.hold_reason := NULL;
        NEW.hold_until := NULL;
        NEW.next_attempt := least(NEW.next_attempt, now());
    END IF;
    RETURN NEW;
END $$;
COMMENT ON FUNCTION queue_hold_stamp() IS
    'Says of every hold who, when and why, also of one by a plain UPDATE, and takes it off again.';
CREATE TRIGGER queue_hold_stamp BEFORE UPDATE OF status ON queue FOR EACH ROW
    WHEN ((OLD.status = 'HOLD') <> (NEW.status = 'HOLD')) EXECUTE FUNCTION queue_hold_stamp();
COMMENT ON TRIGGER queue_hold_stamp ON queue IS 'Every hold has a reason.';

CREATE TABLE workers (
    owner text NOT NULL,
    name text NOT NULL,
    action text NOT NULL,
    condition text,
    reach text NOT NULL,
    started_at timestamptz NOT NULL DEFAULT now(),
    seen_at timestamptz NOT NULL DEFAULT now(),
    handled bigint NOT NULL DEFAULT 0,
    PRIMARY KEY (owner, name)
);
COMMENT ON TABLE workers IS 'Workers that run, by their heartbeat.';
COMMENT ON COLUMN workers.owner IS 'The process: hostname:pid.';
COMMENT ON COLUMN workers.name IS 'Name in queued.yaml.';
COMMENT ON COLUMN workers.action IS 'deliver, hold, quarantine, delete, release or retry.';
COMMENT ON COLUMN workers.condition IS 'The whole condition, that of the environment included; null: every row.';
COMMENT ON COLUMN workers.reach IS 'The part of the condition that chooses partitions, or true.';
COMMENT ON COLUMN workers.started_at IS 'When the worker started.';
COMMENT ON COLUMN workers.seen_at IS 'Last heartbeat; older than a minute means dead.';
COMMENT ON COLUMN workers.handled IS 'Rows since the start: settled, held, deleted, released.';

CREATE TABLE rules (
    name text PRIMARY KEY,
    action text NOT NULL CHECK (action IN ('hold', 'quarantine')),
    condition text NOT NULL,
    reason text NOT NULL,
    quarantine text CHECK ((action = 'quarantine') = (quarantine IS NOT NULL)),
    hold_seconds double precision CHECK (hold_seconds > 0),
    origin text NOT NULL,
    created_by text NOT NULL DEFAULT session_user,
    created_at timestamptz NOT NULL DEFAULT now(),
    expires_at timestamptz
);
COMMENT ON TABLE rules IS
    'Standing rules: a row that matches one is never claimed for delivery, from the rule''s commit on, '
    'also one that comes later. They outlive the worker that brought them.';
COMMENT ON COLUMN rules.name IS 'Of the worker in queued.yaml, or given by the operator.';
COMMENT ON COLUMN rules.action IS 'hold or quarantine.';
COMMENT ON COLUMN rules.condition IS 'SQL condition on columns of queue, checked when it was made.';
COMMENT ON COLUMN rules.reason IS 'Goes to hold_reason.';
COMMENT ON COLUMN rules.quarantine IS 'Goes to metadata._quarantineid.';
COMMENT ON COLUMN rules.hold_seconds IS 'How long a hold lasts; null: until an operator releases it.';
COMMENT ON COLUMN rules.origin IS 'worker, or operator.';
COMMENT ON COLUMN rules.created_by IS 'Who made it.';
COMMENT ON COLUMN rules.created_at IS 'When it was made.';
COMMENT ON COLUMN rules.expires_at IS 'When it stops to count; null: never.';

CREATE TABLE rules_version (
    version bigint NOT NULL,
    one boolean PRIMARY KEY DEFAULT true CHECK (one)
);
INSERT INTO rules_version VALUES (1);
COMMENT ON TABLE rules_version IS
    'Changes with every change of rules; a claim made with another version gets nothing.';
COMMENT ON COLUMN rules_version.version IS 'Counts changes.';
COMMENT ON COLUMN rules_version.one IS 'There is one row.';

CREATE FUNCTION rules_changed() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pg_catalog AS $$
BEGIN
    UPDATE public.rules_version SET version = version + 1;
    RETURN NULL;
END $$;
COMMENT ON FUNCTION rules_changed() IS 'Counts changes of the standing rules.';
CREATE TRIGGER rules_changed AFTER INSERT OR UPDATE OR DELETE ON rules
    FOR EACH ROW EXECUTE FUNCTION rules_changed();
CREATE TRIGGER rules_emptied AFTER TRUNCATE ON rules
    FOR EACH STATEMENT EXECUTE FUNCTION rules_changed();
COMMENT ON TRIGGER rules_changed ON rules IS
    'Tells every claim that the rules are others now; a statement that changes none tells nothing.';
COMMENT ON TRIGGER rules_emptied ON rules IS 'The same for TRUNCATE.';

CREATE TABLE audit (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at timestamptz NOT NULL DEFAULT now(),
    who text NOT NULL,
    role text NOT NULL DEFAULT session_user,
    action text NOT NULL,
    condition text NOT NULL,
    details jsonb NOT NULL DEFAULT '{}',
    rows bigint NOT NULL DEFAULT 0,
    finished_at timestamptz
);
CREATE INDEX audit_at ON audit (at);
COMMENT ON TABLE audit IS 'Who changed many rows, or a rule, and how many.';
COMMENT ON COLUMN audit.id IS 'Order of the beginnings.';
COMMENT ON COLUMN audit.at IS 'When it began.';
COMMENT ON COLUMN audit.who IS 'user@host of the command, or the worker.';
COMMENT ON COLUMN audit.role IS 'Role of the session.';
COMMENT ON COLUMN audit.action IS 'hold, release, quarantine, retry, delete, set, rule …';
COMMENT ON COLUMN audit.condition IS 'Which rows.';
COMMENT ON COLUMN audit.details IS 'What was set, and why.';
COMMENT ON COLUMN audit.rows IS 'Rows changed so far; grows with every batch.';
COMMENT ON COLUMN audit.finished_at IS 'When it ended; null: it is under way or was broken off.';
COMMENT ON INDEX audit_at IS 'What was done lately.';

CREATE INDEX messages_received_at ON messages USING brin (received_at);
COMMENT ON INDEX messages_received_at IS 'The search for bodies that nothing refers to.';

CREATE FUNCTION attempts_expire(keep interval) RETURNS integer LANGUAGE plpgsql AS $$
DECLARE
    name text;
    dropped integer := 0;
BEGIN
    PERFORM pg_advisory_xact_lock(hashtext('postern attempts'));
    FOR name IN
        SELECT c.relname FROM pg_inherits AS i JOIN pg_class AS c ON c.oid = i.inhrelid
        WHERE i.inhparent = 'public.attempts'::regclass AND c.relname ~ '^attempts_\d{8}$'
            AND to_date(right(c.relname, 8), 'YYYYMMDD') + 1 <= (now() - keep) AT TIME ZONE 'UTC'
        ORDER BY 1
    LOOP
        EXECUTE format('DROP TABLE public.%I', name);
        dropped := dropped + 1;
    END LOOP;
    RETURN dropped;
END $$;
COMMENT ON FUNCTION attempts_expire(interval) IS
    'Drops the day partitions of attempts that ended longer ago than that; returns how many.';

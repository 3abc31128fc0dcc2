-- The queue: one row for each recipient of each message that is not yet done.

SET LOCAL check_function_bodies = off;  -- functions may name objects of later files

-- By name it would be found in the search_path of any caller, so what it calls is bound here.
CREATE FUNCTION notify_channel(channel text) RETURNS void
RETURN CASE WHEN pg_notification_queue_usage() < 0.9 THEN pg_notify(channel, '') END;
COMMENT ON FUNCTION notify_channel IS
    'Notifies a channel at the commit, unless PostgreSQL''s queue of notifications is nearly full: then the transaction '
    'would fail. Those who listen poll as well.';

-- apart from acting(), because PostgreSQL puts only an expression without a subquery into that of the caller
CREATE FUNCTION acting_key(key text) RETURNS name STABLE PARALLEL SAFE
RETURN CASE WHEN key LIKE 'key:_%' AND octet_length(key) <= 63 AND (
    pg_has_role(session_user, to_regrole('pgmta_api'), 'MEMBER')
    OR pg_has_role(session_user, (SELECT nspowner FROM pg_namespace WHERE nspname = 'pgmta'), 'MEMBER')
) THEN key::name END;
COMMENT ON FUNCTION acting_key IS
    'The identity of a key of the HTTP API, if this login may act for keys: a member of pgmta_api, or the owner. Else null.';

CREATE FUNCTION acting() RETURNS name STABLE PARALLEL SAFE
RETURN coalesce(CASE WHEN current_setting('pgmta.acting', true) <> '' THEN acting_key(current_setting('pgmta.acting', true)) END,
    nullif(current_setting('role'), 'none'), session_user)::name;
COMMENT ON FUNCTION acting IS
    'For whom this session acts: the key of the HTTP API that the setting pgmta.acting names (key:NAME), else the role of SET '
    'ROLE, else the login. A function with the rights of its owner changes current_user and not this, nobody can set a role in '
    'which he is no member, and only members of pgmta_api and the owner act for keys.';

CREATE FUNCTION acting_in(role oid) RETURNS boolean STABLE PARALLEL SAFE
-- a key is in no role, whatever roles there are
RETURN CASE WHEN acting() LIKE 'key:%' THEN false ELSE coalesce(pg_has_role(acting(), role, 'MEMBER'), false) END;
COMMENT ON FUNCTION acting_in IS 'Whether acting() is in a role. A key of the HTTP API is in none.';

CREATE SEQUENCE queue_ids;
COMMENT ON SEQUENCE queue_ids IS
    'queue.id of rows that are not scheduled; a sequence, as PostgreSQL 15 has no identity on leaves.';

CREATE SEQUENCE lease_tokens;
COMMENT ON SEQUENCE lease_tokens IS 'Fencing tokens: each claim takes the next one.';

-- PostgreSQL reads each CHECK anew for each statement, so there are few, and short ones (docs/decisions/schema.md).
CREATE TABLE queue (
    id bigint NOT NULL DEFAULT nextval('queue_ids'),
    message_id bigint NOT NULL,
    ts timestamptz NOT NULL DEFAULT now(),
    next_attempt timestamptz NOT NULL DEFAULT clock_timestamp(),
    lease_since timestamptz,
    lease_until timestamptz,
    lease_token bigint,
    attempts integer NOT NULL DEFAULT 0,
    priority smallint NOT NULL DEFAULT 5 CHECK (priority BETWEEN 0 AND 9),
    status text NOT NULL DEFAULT 'QUEUED' CONSTRAINT queue_status CHECK (
        status = ANY ('{QUEUED,DEFERRED,SENDING,HOLD,DELETE,SCHEDULED,REPORT}'::text[])),
    lease_owner text,
    sender text NOT NULL,
    recipient text NOT NULL,
    domain text COLLATE "C" NOT NULL,
    last_reply text,
    metadata jsonb NOT NULL DEFAULT '{}' CHECK (jsonb_typeof(metadata) = 'object'),
    hold_reason text,
    held_by text,
    held_at timestamptz,
    hold_until timestamptz,
    report_kind text,
    sender_domain text COLLATE "C" NOT NULL,
    faults jsonb,
    send_at timestamptz,
    tenant text COLLATE "C" NOT NULL DEFAULT '',
    on_failed text NOT NULL DEFAULT 'hold'
        CONSTRAINT queue_on_failed CHECK (on_failed IN ('hold', 'remove', 'bounce')),
    once boolean NOT NULL DEFAULT false,
    notify text,
    orcpt text,
    begun bigint,
    held_under text,
    exempt_from text[],
    by_program boolean,
    CONSTRAINT queue_lease CHECK (status <> 'SENDING' OR lease_until IS NOT NULL AND lease_since IS NOT NULL
        AND lease_token IS NOT NULL AND lease_owner IS NOT NULL)
) PARTITION BY LIST (status);
COMMENT ON TABLE queue IS 'One row for each recipient of each message that is not yet done.';
COMMENT ON COLUMN queue.id IS 'Of this row; unique by queue_ids, or by scheduled_ids.';
COMMENT ON COLUMN queue.message_id IS 'messages.id, the message id that the client got.';
COMMENT ON COLUMN queue.ts IS 'From when its age counts: when its transaction began, or send_at of scheduled mail.';
COMMENT ON COLUMN queue.next_attempt IS 'Not to be tried before this time.';
COMMENT ON COLUMN queue.lease_since IS 'When the last claim was made.';
COMMENT ON COLUMN queue.lease_until IS 'Until then the row is the lease owner''s; afterwards anybody''s.';
COMMENT ON COLUMN queue.lease_token IS
    'Fencing token of the last claim: an outcome with another one changes nothing.';
COMMENT ON COLUMN queue.attempts IS 'Attempts begun, the one under way included.';
COMMENT ON COLUMN queue.priority IS '0 is claimed first, 9 last.';
COMMENT ON COLUMN queue.status IS
    'QUEUED, DEFERRED (an attempt failed for now), SENDING (leased), HOLD (an operator decides), DELETE (to be '
    'removed), SCHEDULED (waits for send_at), REPORT (its sender gets a DSN).';
COMMENT ON COLUMN queue.lease_owner IS 'Worker that holds the lease: name@host:pid.';
COMMENT ON COLUMN queue.sender IS 'Reverse-path without brackets; empty for the null reverse-path.';
COMMENT ON COLUMN queue.recipient IS 'Forward-path without brackets, as the client gave it.';
COMMENT ON COLUMN queue.domain IS 'The recipient''s domain, lower case, A-labels.';
COMMENT ON COLUMN queue.last_reply IS 'Last reply, or what went wrong without one.';
COMMENT ON COLUMN queue.metadata IS 'Free for rules; keys beginning with _ belong to pgmta (_partid, _quarantineid).';
COMMENT ON COLUMN queue.hold_reason IS
    'Why the row is on hold, in words for people. In REPORT: why an operator gave it up.';
COMMENT ON COLUMN queue.held_by IS 'Who put it on hold, or in REPORT: an operator, rule or worker.';
COMMENT ON COLUMN queue.held_at IS 'When it was put on hold, or in REPORT.';
COMMENT ON COLUMN queue.hold_until IS 'When the hold releases itself; null: never.';
COMMENT ON COLUMN queue.report_kind IS
    'In REPORT what the DSN reports: failed, bounced (an operator gave it up), relayed (to a host without DSN) or '
    'delivered. On hold: failed or unknown, the outcome that queued wrote. Null otherwise; operators do not set it.';
COMMENT ON COLUMN queue.sender_domain IS
    'The sender''s domain, lower case, A-labels; empty for the null reverse-path. Conditions name it in place of '
    'sender, which tells capitals apart.';
COMMENT ON COLUMN queue.faults IS
    'Conditions that fail on this row, each with whose it is and PostgreSQL''s message; null: none.';
COMMENT ON COLUMN queue.send_at IS 'The row is not sent before this time; null: at once.';
COMMENT ON COLUMN queue.tenant IS 'For whom the mail is; empty: no tenant.';
COMMENT ON COLUMN queue.on_failed IS
    'What becomes of the row after a final failure: hold, remove with an entry in the log, or bounce.';
COMMENT ON COLUMN queue.once IS 'Never a second copy: an unknown outcome and a lost lease are final.';
COMMENT ON COLUMN queue.notify IS 'NOTIFY of the recipient (RFC 3461, section 4.1); null: not given.';
COMMENT ON COLUMN queue.orcpt IS 'ORCPT of the recipient (RFC 3461, section 4.2); null: not given.';
COMMENT ON COLUMN queue.begun IS
    'For a row with once: the lease_token under which its last SMTP transaction began. Null: none began.';
COMMENT ON COLUMN queue.held_under IS
    'What holds the row: "rule N", N being rules.id, or "worker NAME" of a worker without a rule. Null: an '
    'operator, an outcome or smtpd.';
COMMENT ON COLUMN queue.exempt_from IS
    'The rules and workers from which the row was released, as in held_under. None of them holds it again.';
COMMENT ON COLUMN queue.by_program IS
    'True: a program inserted the row by itself, and the trigger queue_message looks for its message. Null: pgmta did.';
COMMENT ON CONSTRAINT queue_priority_check ON queue IS '0 to 9.';
COMMENT ON CONSTRAINT queue_status ON queue IS 'Those of pgmta/states.py, which a test compares.';
COMMENT ON CONSTRAINT queue_metadata_check ON queue IS 'Values by key.';
COMMENT ON CONSTRAINT queue_on_failed ON queue IS 'The three policies.';
COMMENT ON CONSTRAINT queue_lease ON queue IS 'A row that is being sent has a whole lease.';

CREATE TABLE queue_hold PARTITION OF queue FOR VALUES IN ('HOLD');
COMMENT ON TABLE queue_hold IS 'Rows on hold, apart from those that move.';
CREATE TABLE queue_delete PARTITION OF queue FOR VALUES IN ('DELETE');
COMMENT ON TABLE queue_delete IS 'Rows that an operator wants deleted; queued removes them.';
CREATE TABLE queue_scheduled PARTITION OF queue (send_at NOT NULL) FOR VALUES IN ('SCHEDULED') WITH (
    autovacuum_vacuum_scale_factor = 0.1,
    autovacuum_vacuum_threshold = 2000,
    autovacuum_vacuum_insert_threshold = -1,
    autovacuum_vacuum_cost_delay = 0,
    autovacuum_analyze_scale_factor = 0.2,
    autovacuum_analyze_threshold = 20000
);
COMMENT ON TABLE queue_scheduled IS 'Rows that wait for send_at, apart from those that claims look at.';
CREATE TABLE queue_report PARTITION OF queue (
    held_at NOT NULL,
    report_kind NOT NULL CONSTRAINT queue_report_kind CHECK (report_kind IN ('failed', 'bounced', 'relayed', 'delivered'))
) FOR VALUES IN ('REPORT') WITH (
    autovacuum_vacuum_scale_factor = 0.1,
    autovacuum_vacuum_threshold = 2000,
    autovacuum_vacuum_insert_threshold = -1,
    autovacuum_vacuum_cost_delay = 0,
    autovacuum_analyze_scale_factor = 0.2,
    autovacuum_analyze_threshold = 20000
);
COMMENT ON TABLE queue_report IS
    'Rows whose senders are to be notified by a DSN, apart from those that claims look at.';
COMMENT ON CONSTRAINT queue_report_kind ON queue_report IS 'Only here, so that no other row pays for it.';
CREATE TABLE queue_def PARTITION OF queue DEFAULT PARTITION BY LIST ((metadata ->> '_partid'));
COMMENT ON TABLE queue_def IS 'All other rows, by metadata ->> ''_partid''.';
CREATE TABLE queue_def_def PARTITION OF queue_def DEFAULT WITH (
    fillfactor = 50,
    autovacuum_vacuum_scale_factor = 0.1,
    autovacuum_vacuum_threshold = 2000,
    autovacuum_vacuum_insert_threshold = -1,
    autovacuum_vacuum_cost_delay = 0,
    autovacuum_analyze_scale_factor = 0.2,
    autovacuum_analyze_threshold = 20000
);
COMMENT ON TABLE queue_def_def IS 'Rows whose _partid has no partition of its own, or is absent.';

-- A table without a key needs it where a publication has all tables, else PostgreSQL refuses each UPDATE. It costs
-- nothing while wal_level is not logical. Partitions do not inherit it.
ALTER TABLE queue REPLICA IDENTITY FULL;
ALTER TABLE queue_hold REPLICA IDENTITY FULL;
ALTER TABLE queue_delete REPLICA IDENTITY FULL;
ALTER TABLE queue_scheduled REPLICA IDENTITY FULL;
ALTER TABLE queue_report REPLICA IDENTITY FULL;
ALTER TABLE queue_def REPLICA IDENTITY FULL;
ALTER TABLE queue_def_def REPLICA IDENTITY FULL;

-- The key is a column of every index condition that workers use; status and the lease are in
-- none, so that a claim is a heap-only update in half-full pages.
CREATE INDEX queue_id ON queue (id);
COMMENT ON INDEX queue_id IS 'Settling and operators find a row by its id.';
CREATE INDEX queue_message_id ON queue (message_id);
COMMENT ON INDEX queue_message_id IS 'Whether a body is still referred to; queuectl show.';
CREATE INDEX queue_due ON queue (priority, (next_attempt AT TIME ZONE 'UTC'));
COMMENT ON INDEX queue_due IS 'Claims while little is due: priority, then time.';
CREATE INDEX queue_domain_due ON queue (domain, priority, next_attempt);
COMMENT ON INDEX queue_domain_due IS 'Claims when much is due: destination by destination, then priority, then time.';
-- Few rows are in it, so that it costs intake nothing. Its key is an expression that only claims of
-- urgent rows name: with the plain column the planner may take queue_domain_due for them.
CREATE INDEX queue_urgent ON queue (lower(domain), priority, next_attempt) WHERE priority <= 3;
COMMENT ON INDEX queue_urgent IS 'Claims of urgent rows, destination by destination, where many are due.';
-- no condition on columns of a lease, because that would end heap-only updates for all rows
CREATE INDEX queue_once ON queue (id) WHERE once;
COMMENT ON INDEX queue_once IS 'Rows with once whose lease ran out.';
CREATE INDEX queue_hold_until ON queue_hold (hold_until) WHERE hold_until IS NOT NULL;
COMMENT ON INDEX queue_hold_until IS 'Holds that expire.';
CREATE INDEX queue_hold_quarantine ON queue_hold ((metadata ->> '_quarantineid'), ts);
COMMENT ON INDEX queue_hold_quarantine IS 'Quarantine retention.';
CREATE INDEX queue_hold_under ON queue_hold (held_under) WHERE held_under IS NOT NULL;
COMMENT ON INDEX queue_hold_under IS 'Rows that a rule holds.';
CREATE INDEX queue_scheduled_due ON queue_scheduled (send_at);
COMMENT ON INDEX queue_scheduled_due IS 'Scheduled rows whose time comes.';
CREATE INDEX queue_report_held_at ON queue_report (held_at, id);
COMMENT ON INDEX queue_report_held_at IS 'The next rows to be reported.';

-- In a database that is not in UTF8, octets over 127 mean something else: there it finds C0 and DEL, and delivery
-- holds the rest.
DO $$
BEGIN
    EXECUTE format('CREATE FUNCTION queue_malformed(sender text, recipient text, domain text) RETURNS boolean
        LANGUAGE sql IMMUTABLE PARALLEL SAFE AS %L',
        format('SELECT (sender || recipient || domain) COLLATE "C" ~ %L', CASE getdatabaseencoding() WHEN 'UTF8' THEN
            '[\u0001-\u001F\u007F-\u009F\u061C\u200E\u200F\u2028-\u202E\u2066-\u2069]' ELSE '[\u0001-\u001F\u007F]' END));
END $$;
COMMENT ON FUNCTION queue_malformed IS
    'Whether an address holds a control character, bidi mark or line separator. Such a row can be on hold or be '
    'deleted, and nothing else.';

CREATE FUNCTION queue_sender_domain(sender text) RETURNS text LANGUAGE sql IMMUTABLE PARALLEL SAFE AS
$$ SELECT CASE WHEN strpos(sender, '@') > 0 THEN lower(rtrim(split_part(sender COLLATE "C", '@', -1), '.')) ELSE '' END $$;
COMMENT ON FUNCTION queue_sender_domain IS
    'The domain of an address in lower case, for mail from SQL. It makes no A-labels, which smtpd does.';

-- queue_put may fire it as the owner, with the search_path of a role
CREATE FUNCTION queue_sender_domain_func() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF TG_OP = 'INSERT' AND NEW.status NOT IN ('SENDING', 'HOLD', 'DELETE')
            AND pgmta.queue_malformed(NEW.sender, NEW.recipient, NEW.domain) THEN
        RAISE EXCEPTION 'an address has a control character, bidi mark or line separator (queue_addresses)'
            USING ERRCODE = 'check_violation', SCHEMA = 'pgmta', TABLE = 'queue', CONSTRAINT = 'queue_addresses',
                HINT = 'Such a row can only have status HOLD or DELETE.';
    END IF;
    IF TG_OP = 'INSERT' THEN
        NEW.by_program := true;
        IF NEW.status = 'REPORT' THEN
            NEW.held_at := coalesce(NEW.held_at, now());
            NEW.report_kind := coalesce(NEW.report_kind, 'bounced');
        END IF;
    END IF;
    NEW.sender_domain := pgmta.queue_sender_domain(NEW.sender);
    RETURN NEW;
END $$;
COMMENT ON FUNCTION queue_sender_domain_func IS
    'Fills queue.sender_domain, marks a row that a program inserts, and refuses one with a malformed address.';

-- smtpd gives the domain itself; then nothing is called.
CREATE TRIGGER queue_sender_domain BEFORE INSERT ON queue FOR EACH ROW
    WHEN (NEW.sender_domain IS NULL) EXECUTE FUNCTION queue_sender_domain_func();
COMMENT ON TRIGGER queue_sender_domain ON queue IS
    'A row that a program inserts by itself: its addresses are checked, and it gets its domain.';
CREATE TRIGGER queue_sender_domain_changed BEFORE UPDATE OF sender ON queue FOR EACH ROW
    WHEN (OLD.sender IS DISTINCT FROM NEW.sender) EXECUTE FUNCTION queue_sender_domain_func();
COMMENT ON TRIGGER queue_sender_domain_changed ON queue IS 'The domain follows its sender.';

CREATE FUNCTION queue_message_present() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pgmta, pg_catalog, pg_temp AS $$
BEGIN
    -- the lock makes messages_refcount wait, and then it sees this row
    PERFORM FROM messages WHERE id = NEW.message_id FOR KEY SHARE;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'there is no message %', NEW.message_id USING
            ERRCODE = 'foreign_key_violation', SCHEMA = 'pgmta', TABLE = 'queue', COLUMN = 'message_id';
    END IF;
    RETURN NEW;
END $$;
COMMENT ON FUNCTION queue_message_present IS 'Refuses a row without a message.';

CREATE TRIGGER queue_message AFTER INSERT ON queue FOR EACH ROW
    WHEN (NEW.by_program) EXECUTE FUNCTION queue_message_present();
COMMENT ON TRIGGER queue_message ON queue IS
    'A row that a program inserts by itself has a message. At the end, because the same statement may insert it.';
CREATE TRIGGER queue_message_changed BEFORE UPDATE OF message_id ON queue FOR EACH ROW
    WHEN (OLD.message_id IS DISTINCT FROM NEW.message_id) EXECUTE FUNCTION queue_message_present();
COMMENT ON TRIGGER queue_message_changed ON queue IS 'The same for a row that gets another message.';

CREATE FUNCTION queue_hold_stamp() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF OLD.held_under IS NOT NULL AND NEW.status <> 'HOLD' THEN
        -- by unnest(), because operators may write arrays of any shape
        NEW.exempt_from := ARRAY(SELECT unnest(OLD.exempt_from)) || OLD.held_under;
        NEW.held_under := NULL;
    END IF;
    IF NEW.status NOT IN ('HOLD', 'DELETE')
            AND pgmta.queue_malformed(NEW.sender, NEW.recipient, NEW.domain) THEN
        -- the row stays on hold without an error, so that the other rows of the statement are released
        NEW.status := 'HOLD';
        NEW.held_at := now();
        NEW.held_by := coalesce(OLD.held_by, pgmta.acting());
        NEW.hold_reason := 'an address holds control characters: the row can only be deleted';
        NEW.hold_until := NULL;
    ELSIF OLD.status = 'REPORT' AND NEW.status <> 'DELETE' AND OLD.report_kind IN ('relayed', 'delivered') THEN
        -- the message was delivered: a hold and its release would send it a second time
        NEW.status := OLD.status;
        NEW.held_at := OLD.held_at;
        NEW.held_by := OLD.held_by;
        NEW.hold_reason := OLD.hold_reason;
        NEW.hold_until := OLD.hold_until;
        NEW.report_kind := OLD.report_kind;
    ELSIF NEW.status IN ('HOLD', 'REPORT') THEN
        NEW.held_at := now();
        NEW.held_by := coalesce(NEW.held_by, pgmta.acting());
        IF NEW.status = 'REPORT' THEN
            NEW.hold_until := NULL;
            -- queued sets the kind together with the status
            IF NEW.report_kind IS NOT DISTINCT FROM OLD.report_kind THEN NEW.report_kind := 'bounced'; END IF;
        END IF;
        IF NEW.status = 'HOLD' OR NEW.report_kind = 'bounced' THEN
            NEW.hold_reason := coalesce(NEW.hold_reason, 'no reason given');
        END IF;
    ELSIF OLD.status IN ('HOLD', 'REPORT') THEN
        NEW.held_at := NULL;
        NEW.held_by := NULL;
        NEW.hold_reason := NULL;
        NEW.hold_until := NULL;
        NEW.report_kind := NULL;
        NEW.faults := NULL;  -- the row may have been mended; what still fails is found again
        NEW.next_attempt := clock_timestamp();  -- not the old time, which claims may have passed (docs/decisions/claim.md)
    END IF;
    RETURN NEW;
END $$;
COMMENT ON FUNCTION queue_hold_stamp IS
    'Says of every hold and report who, when and why, also of one by a plain UPDATE, and takes it off again. A row '
    'that leaves HOLD is exempt from the rule that held it. A row with a malformed address stays on hold. A row '
    'that was delivered stays in REPORT, or is deleted.';

-- a claim, which is most often, is known by its first two comparisons
CREATE TRIGGER queue_hold_stamp BEFORE UPDATE OF status ON queue FOR EACH ROW
    WHEN (OLD.status <> NEW.status
        AND (NEW.status <> 'SENDING' OR OLD.status IN ('HOLD', 'DELETE', 'REPORT')))
    EXECUTE FUNCTION queue_hold_stamp();
COMMENT ON TRIGGER queue_hold_stamp ON queue IS 'Every hold has a reason, and every report.';

CREATE FUNCTION messages_refcount_func() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER
    SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off
    SET search_path = pg_catalog, pg_temp
    AS $$
DECLARE
    ids bigint[];
    large bigint[];
BEGIN
    IF current_setting('transaction_isolation') IN ('repeatable read', 'serializable') THEN
        RETURN NULL;  -- the trigger can't see a row that came meanwhile, so upkeep removes the body later
    END IF;
    SELECT array_agg(DISTINCT message_id) INTO ids FROM gone;
    -- Locks in id order: of two transactions that delete the last two rows of a message, the
    -- second waits here and then sees what the first has left.
    PERFORM FROM pgmta.messages WHERE id = ANY (ids) ORDER BY id FOR UPDATE;
    -- No join, which NOT EXISTS would be: a partition that was empty when the plan was made would
    -- later be read as a whole for each message.
    ids := ARRAY(SELECT one FROM unnest(ids) AS one
        WHERE (SELECT true FROM pgmta.queue AS q WHERE q.message_id = one LIMIT 1) IS NULL);
    PERFORM set_config('pgmta.writer', 'refcount', true);  -- for the trigger messages_in_use
    WITH unreferenced AS (
        DELETE FROM pgmta.messages WHERE id = ANY (ids) RETURNING id, chunks
    )
    SELECT array_agg(id) INTO large FROM unreferenced WHERE chunks > 0;
    PERFORM set_config('pgmta.writer', '', true);
    IF large IS NOT NULL THEN
        DELETE FROM pgmta.message_chunks WHERE message_id = ANY (large);
    END IF;
    RETURN NULL;
END $$;
COMMENT ON FUNCTION messages_refcount_func IS
    'Removes the bodies that the deleted rows were the last to refer to. A statement trigger: rows that move '
    'between partitions do not fire it. As a row trigger it does nothing.';

CREATE TRIGGER messages_refcount AFTER DELETE ON queue
    REFERENCING OLD TABLE AS gone FOR EACH STATEMENT EXECUTE FUNCTION messages_refcount_func();
COMMENT ON TRIGGER messages_refcount ON queue IS 'Keeps messages exact: gone with the last row.';

-- Rights are data: each topic adds those of its objects, and grants() gives them to the roles that exist. Its
-- owner may do everything with an object, and others nothing that is not here.
CREATE TABLE rights (
    object text NOT NULL,
    role text NOT NULL,
    privileges text NOT NULL,
    PRIMARY KEY (object, role, privileges)
);
COMMENT ON TABLE rights IS 'Who may do what with the objects of this schema. Only the owner reads it.';
COMMENT ON COLUMN rights.object IS 'As in GRANT: a table or view, SEQUENCE and its name, or FUNCTION and its name.';
COMMENT ON COLUMN rights.role IS 'One of the roles of pgmta, or PUBLIC.';
COMMENT ON COLUMN rights.privileges IS 'As in GRANT, such as SELECT, UPDATE (hostname).';

INSERT INTO rights (object, role, privileges) VALUES
    ('FUNCTION notify_channel', 'PUBLIC', 'EXECUTE'),
    ('FUNCTION acting_key', 'PUBLIC', 'EXECUTE'),
    ('FUNCTION acting', 'PUBLIC', 'EXECUTE'),
    ('FUNCTION acting_in', 'PUBLIC', 'EXECUTE'),
    -- queued watches the sequence of the rows
    ('SEQUENCE queue_ids', 'pgmta_queued', 'SELECT'),
    ('SEQUENCE queue_ids', 'pgmta_operator', 'SELECT'),
    ('SEQUENCE queue_ids', 'pgmta_reader', 'SELECT'),
    ('SEQUENCE scheduled_ids', 'pgmta_operator', 'SELECT'),
    ('SEQUENCE scheduled_ids', 'pgmta_reader', 'SELECT'),
    ('SEQUENCE lease_tokens', 'pgmta_queued', 'USAGE'),
    -- queued vacuums chunks while mail flows
    ('queue_def_def', 'pgmta_queued', 'MAINTAIN'),
    ('queue_report', 'pgmta_queued', 'MAINTAIN'),
    ('queue_scheduled', 'pgmta_queued', 'MAINTAIN'),
    ('queue', 'pgmta_queued',
        'SELECT, UPDATE (next_attempt, lease_since, lease_until, lease_token, attempts, status, lease_owner, '
        'last_reply, metadata, hold_reason, held_by, held_at, hold_until, report_kind, faults, begun, held_under, '
        'exempt_from), DELETE'),
    -- not DELETE: operators set the status DELETE, which leaves an entry in the log
    ('queue', 'pgmta_operator',
        'SELECT, UPDATE (next_attempt, priority, status, metadata, hold_reason, held_by, hold_until, held_under, '
        'exempt_from)'),
    ('queue', 'pgmta_reader', 'SELECT'),
    ('FUNCTION queue_malformed', 'PUBLIC', 'EXECUTE'),
    ('FUNCTION queue_sender_domain', 'PUBLIC', 'EXECUTE');

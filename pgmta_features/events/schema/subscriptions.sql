-- Subscriptions: the triggers that write events are there while somebody has subscribed.

CREATE TABLE event_subscriptions (
    name text COLLATE "C" PRIMARY KEY CONSTRAINT event_subscriptions_name CHECK (name ~ '^[[:graph:]]{1,200}$'),
    kind text NOT NULL CONSTRAINT event_subscriptions_kind CHECK (kind IN ('webhook', 'table', 'function', 'reader')),
    created_at timestamptz NOT NULL DEFAULT now(),
    created_by text NOT NULL DEFAULT acting(),
    read_at timestamptz
);
COMMENT ON TABLE event_subscriptions IS
    'Who wants events. Without any subscription no event is written. What each needs is in tables of its own.';
COMMENT ON COLUMN event_subscriptions.name IS 'Its name: up to 200 visible characters.';
COMMENT ON COLUMN event_subscriptions.kind IS
    'webhook, table or function (of an application), or reader (of the HTTP API, or by SQL).';
COMMENT ON COLUMN event_subscriptions.created_at IS 'When it was made: all events since then are there.';
COMMENT ON COLUMN event_subscriptions.created_by IS 'Who made it.';
COMMENT ON COLUMN event_subscriptions.read_at IS
    'When the API last read for it, to the minute; null: never, or it reads by another way.';
COMMENT ON CONSTRAINT event_subscriptions_name ON event_subscriptions IS 'Visible characters.';
COMMENT ON CONSTRAINT event_subscriptions_kind ON event_subscriptions IS 'The four kinds.';

CREATE TABLE event_retries (
    name text COLLATE "C" NOT NULL REFERENCES event_subscriptions ON DELETE CASCADE,
    commit bigint NOT NULL,
    at timestamptz NOT NULL,
    place integer NOT NULL,
    last integer NOT NULL,
    tried boolean NOT NULL DEFAULT false,
    tries integer NOT NULL DEFAULT 0,
    noted_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    next_try timestamptz NOT NULL DEFAULT clock_timestamp(),
    reason text NOT NULL,
    PRIMARY KEY (name, commit, place)
);
CREATE INDEX event_retries_next_try ON event_retries (name, next_try);
CREATE INDEX event_retries_noted_at ON event_retries (name, noted_at) WHERE tried;
COMMENT ON INDEX event_retries_next_try IS 'What is due.';
COMMENT ON INDEX event_retries_noted_at IS 'Whether a table failed just now.';
COMMENT ON TABLE event_retries IS
    'Events that a table or a function of an application did not take: it gets them later, while the rest goes on. Whoever '
    'settles only adds rows here, so that no two wait for each other.';
COMMENT ON COLUMN event_retries.name IS 'event_subscriptions.name.';
COMMENT ON COLUMN event_retries.commit IS 'mail_events.commit.';
COMMENT ON COLUMN event_retries.at IS 'mail_events.at.';
COMMENT ON COLUMN event_retries.place IS 'mail_events.place: these begin behind it.';
COMMENT ON COLUMN event_retries.last IS 'The last mail_events.place of these.';
COMMENT ON COLUMN event_retries.tried IS
    'Whether a table was tried with their outcome: the outcomes of the next second do not try.';
COMMENT ON COLUMN event_retries.tries IS 'How often it has failed again.';
COMMENT ON COLUMN event_retries.noted_at IS 'When it did not take them.';
COMMENT ON COLUMN event_retries.next_try IS 'When they are tried next.';
COMMENT ON COLUMN event_retries.reason IS 'Why it did not take them, the last time.';

-- The next two run with the rights of the owner and the search_path of whoever settles or submits, because SET search_path
-- would take longer than they do: all names have their schema, of operators too, and they declare nothing.
CREATE FUNCTION attempts_events() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
BEGIN
    INSERT INTO pgmta.mail_events (at, commit, place, kind, message_id, row_id, lease_token, ended_at)
    SELECT pg_catalog.now(), (SELECT pg_catalog.nextval('pgmta.event_commit_ids')), pg_catalog.row_number() OVER (),
        CASE WHEN n.event OPERATOR(pg_catalog.=) 'failed' THEN
                CASE WHEN n.class OPERATOR(pg_catalog.=) 'expired' THEN 'expired' ELSE 'bounced' END
            WHEN n.event OPERATOR(pg_catalog.=) 'deleted' THEN 'cancelled' ELSE n.event END,
        n.message_id, n.row_id, n.lease_token, n.ended_at
    FROM added AS n;
    IF FOUND THEN
        INSERT INTO pgmta.event_commits (commit, at, events)
        SELECT pg_catalog.currval('pgmta.event_commit_ids'), pg_catalog.now(), pg_catalog.count(*) FROM added;
    END IF;
    RETURN NULL;
END $$;
COMMENT ON FUNCTION attempts_events IS 'Writes an event for each new entry of the log.';

CREATE FUNCTION messages_events() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
BEGIN
    INSERT INTO pgmta.mail_events (at, commit, place, kind, message_id)
    SELECT pg_catalog.now(), (SELECT pg_catalog.nextval('pgmta.event_commit_ids')), pg_catalog.row_number() OVER (),
        'accepted', n.id
    FROM added AS n;
    IF FOUND THEN
        INSERT INTO pgmta.event_commits (commit, at, events)
        SELECT pg_catalog.currval('pgmta.event_commit_ids'), pg_catalog.now(), pg_catalog.count(*) FROM added;
    END IF;
    RETURN NULL;
END $$;
COMMENT ON FUNCTION messages_events IS 'Writes the event accepted for each new message.';

CREATE FUNCTION attempts_later_events() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pgmta, pg_catalog, pg_temp AS $$
BEGIN
    PERFORM event_put(k.kind, NEW.message_id, NEW.row_id, NEW.lease_token, NEW.ended_at, '{"later": true}')
    FROM (VALUES ('delivered', NEW.event = 'delivered' AND OLD.event <> 'delivered'),
        ('bounced', NEW.returned_at IS DISTINCT FROM OLD.returned_at),
        ('complained', NEW.complained_at IS DISTINCT FROM OLD.complained_at)) AS k (kind, happened)
    WHERE k.happened;
    RETURN NULL;
END $$;
COMMENT ON FUNCTION attempts_later_events IS
    'Writes the event of what became known after the outcome: the mail came back, its recipient complained, or an unknown '
    'attempt delivered after all.';

CREATE FUNCTION queue_held_events() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pgmta, pg_catalog, pg_temp AS $$
BEGIN
    PERFORM event_put('held', NEW.message_id, NEW.id, NULL, NULL, jsonb_build_object('reason', NEW.hold_reason));
    RETURN NULL;
END $$;
COMMENT ON FUNCTION queue_held_events IS 'Writes the event of a row that was put on hold.';

CREATE FUNCTION queue_released_events() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pgmta, pg_catalog, pg_temp SET enable_seqscan = off AS $$
BEGIN
    -- a row that is deleted, or goes to DELETE or REPORT, has another event
    PERFORM event_put('released', OLD.message_id, OLD.id, NULL, NULL, NULL)
    FROM queue AS q WHERE q.id = OLD.id AND q.status NOT IN ('HOLD', 'DELETE', 'REPORT');
    RETURN NULL;
END $$;
COMMENT ON FUNCTION queue_released_events IS 'Writes the event of a row that is on hold no more.';

CREATE FUNCTION suppressions_events() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pgmta, pg_catalog, pg_temp SET enable_seqscan = off AS $$
DECLARE
    message CONSTANT bigint := suppression_message(NEW.source);
    -- a client may have written the source: it must not make an event of mail that is another tenant's
    waiting CONSTANT bigint := (
        SELECT q.id FROM queue AS q
        WHERE q.message_id = message AND q.tenant = NEW.tenant
            AND mailbox_key(row_address(q.recipient, q.domain)) = NEW.address LIMIT 1);
    entry attempts;
BEGIN
    -- of mail that has left the queue readers would look for its entry at the time of the event, which may be days later
    IF waiting IS NULL THEN
        SELECT * INTO entry FROM attempts AS a
        WHERE a.message_id = message AND a.tenant = NEW.tenant
            AND mailbox_key(row_address(a.recipient, a.domain)) = NEW.address LIMIT 1;
        SELECT * INTO entry FROM attempts AS a WHERE a.message_id = message AND a.row_id = entry.row_id
        ORDER BY a.ended_at DESC LIMIT 1;
    END IF;
    PERFORM event_put(NEW.reason, CASE WHEN waiting IS NULL THEN entry.message_id ELSE message END,
        coalesce(waiting, entry.row_id), entry.lease_token, entry.ended_at,
        jsonb_build_object('recipient', NEW.address, 'tenant', NEW.tenant, 'reason', NEW.source));
    RETURN NULL;
END $$;
COMMENT ON FUNCTION suppressions_events IS
    'Writes the event of a recipient who unsubscribed or complained about some mail. It names the mail only if that is of '
    'the tenant and had this recipient.';

CREATE FUNCTION event_subscriptions_lock() RETURNS void LANGUAGE plpgsql SET search_path = pgmta, pg_catalog, pg_temp AS $$
BEGIN
    PERFORM FROM mutexes AS m WHERE m.name = 'subscriptions of events' FOR UPDATE;
    -- The snapshot of each later statement is newer than the lock, so it sees the subscriptions that its last owner has left.
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION 'subscriptions to events are made and ended in READ COMMITTED only'
            USING ERRCODE = 'object_not_in_prerequisite_state';
    END IF;
END $$;
COMMENT ON FUNCTION event_subscriptions_lock IS
    'Has the transaction change subscriptions alone. Raises object_not_in_prerequisite_state beyond READ COMMITTED.';

CREATE FUNCTION events_subscribe(name text, kind text, who text DEFAULT NULL) RETURNS boolean LANGUAGE plpgsql
    SECURITY DEFINER SET search_path = pgmta, pg_catalog, pg_temp
    -- all that write mail wait behind the lock of a new trigger, and that lock for their transactions
    SET lock_timeout = '0.2s' AS $$
DECLARE
    present event_subscriptions;
BEGIN
    PERFORM event_subscriptions_lock();
    SELECT * INTO present FROM event_subscriptions AS s WHERE s.name = events_subscribe.name;
    IF FOUND THEN
        IF present.kind <> events_subscribe.kind THEN
            RAISE EXCEPTION 'subscription % is a %', name, present.kind USING ERRCODE = 'unique_violation';
        END IF;
        -- what was mended is tried at once
        UPDATE event_retries AS r SET next_try = now() WHERE r.name = events_subscribe.name;
        PERFORM prove_earlier();
        RETURN false;
    END IF;
    IF NOT EXISTS (SELECT FROM event_subscriptions) THEN PERFORM event_triggers_change(true); END IF;
    INSERT INTO event_subscriptions (name, kind, created_by)
    VALUES (events_subscribe.name, events_subscribe.kind, coalesce(who, acting()));
    RETURN true;
END $$;
COMMENT ON FUNCTION events_subscribe IS
    'Subscribes to events, and returns whether the subscription is new. From its commit on each outcome has its event. `who` is '
    'noted as the one who made it; null: acting(). The first one makes the triggers, and gives up after 0.2 s '
    '(lock_not_available) if open transactions have changed mail: repeat it. That of a key also does while the last try of any key is less than 5 s ago.';

CREATE FUNCTION events_unsubscribe(name text) RETURNS boolean LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pgmta, pg_catalog, pg_temp SET lock_timeout = '0.2s' AS $$
BEGIN
    PERFORM event_subscriptions_lock();
    DELETE FROM event_subscriptions AS s WHERE s.name = events_unsubscribe.name;
    IF NOT FOUND THEN
        PERFORM prove_earlier();
        RETURN false;
    END IF;
    IF NOT EXISTS (SELECT FROM event_subscriptions) THEN PERFORM event_triggers_change(false); END IF;
    RETURN true;
END $$;
COMMENT ON FUNCTION events_unsubscribe IS
    'Ends a subscription, and returns whether there was one. The last one drops the triggers, and gives up as '
    'events_subscribe() does. Events that were written stay for their time.';

CREATE FUNCTION events_reader() RETURNS void LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pgmta, pg_catalog, pg_temp AS $$
DECLARE
    present event_subscriptions;
BEGIN
    IF acting() NOT LIKE 'key:%' THEN
        RAISE EXCEPTION 'the session acts for no key' USING ERRCODE = 'insufficient_privilege';
    END IF;
    SELECT * INTO present FROM event_subscriptions AS s WHERE s.name = acting()::text;
    IF NOT FOUND THEN
        PERFORM events_subscribe(acting()::text, 'reader');
    ELSIF present.read_at > now() - interval '1 minute' THEN
        RETURN;
    END IF;
    UPDATE event_subscriptions AS s SET read_at = now() WHERE s.name = acting()::text;
END $$;
COMMENT ON FUNCTION events_reader IS
    'Subscribes the key for which the session acts at its first call, as events_subscribe(), and notes that it reads. '
    'Raises insufficient_privilege without a key.';

-- Made and dropped: PostgreSQL collects the rows for a transition table also if its trigger is disabled.
CREATE FUNCTION event_triggers_make() RETURNS void LANGUAGE plpgsql SET search_path = pgmta, pg_catalog, pg_temp AS $$
BEGIN
    IF pg_sequence_last_value('event_commit_ids') IS NOT NULL THEN PERFORM event_history_begin(true); END IF;
    CREATE TRIGGER messages_events AFTER INSERT ON messages REFERENCING NEW TABLE AS added
        FOR EACH STATEMENT EXECUTE FUNCTION messages_events();
    -- on the leaf: a row that moves between partitions fires triggers of INSERT and DELETE there, and none of UPDATE
    CREATE TRIGGER queue_held_events AFTER INSERT ON queue_hold FOR EACH ROW
        -- the outcome that put a row on hold has its own event
        WHEN (NEW.report_kind IS NULL) EXECUTE FUNCTION queue_held_events();
    CREATE TRIGGER queue_released_events AFTER DELETE ON queue_hold
        FOR EACH ROW EXECUTE FUNCTION queue_released_events();
    CREATE TRIGGER attempts_events AFTER INSERT ON attempts REFERENCING NEW TABLE AS added
        FOR EACH STATEMENT EXECUTE FUNCTION attempts_events();
    CREATE TRIGGER attempts_later_events AFTER UPDATE OF event, returned_at, complained_at ON attempts FOR EACH ROW
        WHEN ((NEW.event, NEW.returned_at, NEW.complained_at) IS DISTINCT FROM (OLD.event, OLD.returned_at, OLD.complained_at))
        EXECUTE FUNCTION attempts_later_events();
    -- in a trigger of the log the complaint has its event already
    CREATE TRIGGER suppressions_added_events AFTER INSERT ON suppressions FOR EACH ROW
        WHEN (NEW.reason IN ('unsubscribed', 'complained') AND NEW.released_at IS NULL AND pg_trigger_depth() = 0
            AND NEW.source ~ '^(unsubscribe link of )?(message [0-9]+|campaign [0-9]+ recipient [0-9]+)$')
        EXECUTE FUNCTION suppressions_events();
    CREATE TRIGGER suppressions_changed_events AFTER UPDATE OF at ON suppressions FOR EACH ROW
        WHEN (NEW.reason IN ('unsubscribed', 'complained') AND NEW.released_at IS NULL AND pg_trigger_depth() = 0
            AND NEW.source ~ '^(unsubscribe link of )?(message [0-9]+|campaign [0-9]+ recipient [0-9]+)$'
            AND NEW.at <> OLD.at)
        EXECUTE FUNCTION suppressions_events();
    COMMENT ON TRIGGER messages_events ON messages IS 'Events of accepted messages.';
    COMMENT ON TRIGGER queue_held_events ON queue_hold IS 'Events of rows that are put on hold.';
    COMMENT ON TRIGGER queue_released_events ON queue_hold IS 'Events of rows that are released.';
    COMMENT ON TRIGGER attempts_events ON attempts IS 'Events of outcomes.';
    COMMENT ON TRIGGER attempts_later_events ON attempts IS 'Events of what became known after the outcome.';
    COMMENT ON TRIGGER suppressions_added_events ON suppressions IS 'Events of recipients who unsubscribed or complained.';
    COMMENT ON TRIGGER suppressions_changed_events ON suppressions IS
        'Events of recipients who unsubscribed or complained, of addresses that were suppressed before.';
END $$;
COMMENT ON FUNCTION event_triggers_make IS 'Makes the triggers that write events.';

-- setval() stays after a rollback, so that the processes of the API know of the tries of each other
CREATE SEQUENCE event_triggers_tried MINVALUE 0 START 0;
COMMENT ON SEQUENCE event_triggers_tried IS
    'When a key last tried to make or drop the triggers that write events, in seconds since 1970; 0: the last try succeeded.';

CREATE FUNCTION event_triggers_change(wanted boolean) RETURNS void LANGUAGE plpgsql
    SET search_path = pgmta, pg_catalog, pg_temp AS $$
DECLARE
    pause_s CONSTANT integer := 5;
    seconds CONSTANT bigint := extract(epoch FROM clock_timestamp());
    of_key CONSTANT boolean := acting() LIKE 'key:%';
BEGIN
    -- each try stops intake for the time of its lock, and programs that poll would try without end
    IF of_key THEN
        IF seconds < pg_sequence_last_value('event_triggers_tried') + pause_s THEN
            RAISE EXCEPTION 'open transactions have changed mail' USING ERRCODE = 'lock_not_available';
        END IF;
        PERFORM setval('event_triggers_tried', seconds);
    END IF;
    IF wanted THEN PERFORM event_triggers_make(); ELSE PERFORM event_triggers_drop(); END IF;
    IF of_key THEN PERFORM setval('event_triggers_tried', 0); END IF;
END $$;
COMMENT ON FUNCTION event_triggers_change IS
    'Makes or drops the triggers that write events. Raises lock_not_available as their lock does, and for a key within 5 s '
    'after the last try of any key.';

CREATE FUNCTION event_triggers_drop() RETURNS void LANGUAGE plpgsql SET search_path = pgmta, pg_catalog, pg_temp AS $$
BEGIN
    DROP TRIGGER messages_events ON messages;
    DROP TRIGGER queue_held_events ON queue_hold;
    DROP TRIGGER queue_released_events ON queue_hold;
    DROP TRIGGER attempts_events ON attempts;
    DROP TRIGGER attempts_later_events ON attempts;
    DROP TRIGGER suppressions_added_events ON suppressions;
    DROP TRIGGER suppressions_changed_events ON suppressions;
END $$;
COMMENT ON FUNCTION event_triggers_drop IS 'Drops the triggers that write events.';

INSERT INTO forget_columns (relation, names, way, condition) VALUES ('event_retries', '{reason}', 'words', 'true');

INSERT INTO rights (object, role, privileges) VALUES
    ('event_retries', 'pgmta_operator', 'SELECT'),
    ('event_retries', 'pgmta_reader', 'SELECT'),
    ('event_retries', 'pgmta_queued', 'SELECT'),
    ('event_subscriptions', 'pgmta_operator', 'SELECT'),
    ('event_subscriptions', 'pgmta_reader', 'SELECT'),
    ('event_subscriptions', 'pgmta_queued', 'SELECT'),
    ('FUNCTION events_reader', 'pgmta_api', 'EXECUTE'),
    ('FUNCTION events_subscribe', 'pgmta_operator', 'EXECUTE'),
    ('FUNCTION events_unsubscribe', 'pgmta_operator', 'EXECUTE');

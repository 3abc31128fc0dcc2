-- Webhooks: endpoints to which events are posted (docs/decisions/webhooks.md).

CREATE TABLE webhooks (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name text NOT NULL,
    tenant text,
    viewer text,
    url text NOT NULL,
    kinds text[],
    condition jsonb NOT NULL DEFAULT '{}',
    secret text NOT NULL,
    earlier_secret text,
    earlier_until timestamptz,
    owner text,
    batch integer NOT NULL CHECK (batch BETWEEN 1 AND 1000),
    created_at timestamptz NOT NULL DEFAULT now(),
    created_by text NOT NULL DEFAULT acting(),
    revision integer NOT NULL DEFAULT 1,
    cursor text NOT NULL,
    batch_end text,
    state text NOT NULL DEFAULT 'active' CHECK (state IN ('active', 'failing', 'suspended', 'disabled')),
    state_at timestamptz NOT NULL DEFAULT now(),
    reason text NOT NULL DEFAULT '',
    failing_since timestamptz,
    failures integer NOT NULL DEFAULT 0,
    next_at timestamptz,
    posted_at timestamptz,
    noticed_at timestamptz,
    leased_by text,
    CONSTRAINT webhooks_name_key UNIQUE NULLS NOT DISTINCT (tenant, viewer, name)
) WITH (fillfactor = 50);
COMMENT ON TABLE webhooks IS 'Endpoints to which events are posted; queued posts for each behind its own cursor.';
COMMENT ON COLUMN webhooks.id IS 'Its number, which webhook-id has.';
COMMENT ON SEQUENCE webhooks_id_seq IS 'webhooks.id.';
COMMENT ON COLUMN webhooks.name IS 'Its name, which is unique for a tenant and viewer.';
COMMENT ON COLUMN webhooks.tenant IS
    'It gets events of mail of this tenant, empty: of mail without one. Null: of all. Those of tenants and keys are at public addresses.';
COMMENT ON COLUMN webhooks.viewer IS 'It gets events of mail that this one submitted, such as key:shop. Null: whoever did.';
COMMENT ON COLUMN webhooks.url IS 'Where events are posted.';
COMMENT ON COLUMN webhooks.kinds IS 'The kinds of events that it gets; null: all.';
COMMENT ON COLUMN webhooks.condition IS
    'The mail whose events it gets: texts by field, as filters have them. queued compares them; PostgreSQL does not run them.';
COMMENT ON COLUMN webhooks.secret IS
    'The reference of its secret: file:NAME of webhooks.secrets, or key:ID:NONCE, from which webhooks.keys derive it.';
COMMENT ON COLUMN webhooks.earlier_secret IS 'The reference before the last rotation.';
COMMENT ON COLUMN webhooks.earlier_until IS 'Until then requests have a signature by the earlier one, too.';
COMMENT ON COLUMN webhooks.owner IS 'Address that gets a mail when it is suspended; null: none.';
COMMENT ON COLUMN webhooks.batch IS 'Events of a request, at most.';
COMMENT ON COLUMN webhooks.created_at IS 'When it was made.';
COMMENT ON COLUMN webhooks.created_by IS 'Who made it.';
COMMENT ON COLUMN webhooks.revision IS 'Counts changes by people; what was begun before one changes nothing afterwards.';
COMMENT ON COLUMN webhooks.cursor IS 'The place in the log of events up to which the endpoint has them.';
COMMENT ON COLUMN webhooks.batch_end IS
    'The place of the last event of the request under way, so that it is repeated as it was; null: of none.';
COMMENT ON COLUMN webhooks.state IS
    'active; failing: the last request failed, and is repeated; suspended: they have failed for three days, or the answer was '
    '410; disabled: by people.';
COMMENT ON COLUMN webhooks.state_at IS 'Since when it is in this state.';
COMMENT ON COLUMN webhooks.reason IS 'Why the last request failed, or why it is suspended or disabled.';
COMMENT ON COLUMN webhooks.failing_since IS 'When the first of the requests failed that have failed since the last success.';
COMMENT ON COLUMN webhooks.failures IS 'How many requests have failed since the last success.';
COMMENT ON COLUMN webhooks.next_at IS 'When the next request may begin; null: at once.';
COMMENT ON COLUMN webhooks.posted_at IS 'When it last had taken a whole batch.';
COMMENT ON COLUMN webhooks.noticed_at IS 'When its owner got the last mail.';
COMMENT ON COLUMN webhooks.leased_by IS
    'daemons.process of the queued that posts for it; another one takes it over 30 s after its last heartbeat.';
COMMENT ON CONSTRAINT webhooks_batch_check ON webhooks IS 'Up to 1,000 events.';
COMMENT ON CONSTRAINT webhooks_state_check ON webhooks IS 'An endpoint is active, failing, suspended or disabled.';
COMMENT ON CONSTRAINT webhooks_name_key ON webhooks IS 'Names of different tenants or viewers do not meet.';
COMMENT ON INDEX webhooks_name_key IS 'A name is that of one endpoint of a tenant and viewer.';

CREATE TABLE webhook_failures (
    webhook_id bigint NOT NULL REFERENCES webhooks ON DELETE CASCADE,
    event_id text NOT NULL,
    kind text NOT NULL,
    message_id bigint,
    after text NOT NULL,
    failed_at timestamptz NOT NULL DEFAULT now(),
    reason text NOT NULL,
    asked_at timestamptz,
    PRIMARY KEY (webhook_id, event_id)
);
COMMENT ON TABLE webhook_failures IS
    'Events that were set aside, because the endpoint refused them and took others; and those whose replay was asked for.';
COMMENT ON COLUMN webhook_failures.webhook_id IS 'webhooks.id.';
COMMENT ON COLUMN webhook_failures.event_id IS 'The id of the event.';
COMMENT ON COLUMN webhook_failures.kind IS 'mail_events.kind, which this row has also once the event has expired.';
COMMENT ON COLUMN webhook_failures.message_id IS 'mail_events.message_id; null: it is about no message.';
COMMENT ON COLUMN webhook_failures.after IS 'The place in the log of events before it.';
COMMENT ON COLUMN webhook_failures.failed_at IS 'When it was refused, or its replay asked for.';
COMMENT ON COLUMN webhook_failures.reason IS 'What the endpoint said.';
COMMENT ON COLUMN webhook_failures.asked_at IS 'When its replay was asked for; null: nobody has.';
COMMENT ON CONSTRAINT webhook_failures_webhook_id_fkey ON webhook_failures IS 'They go with their endpoint.';

CREATE FUNCTION webhook_view(OUT tenant text, OUT viewer text) LANGUAGE plpgsql STABLE
    SET search_path = pgmta, pg_catalog, pg_temp AS $$
DECLARE
    seen record;
BEGIN
    IF acting() LIKE 'key:%' THEN
        SELECT v.* INTO seen FROM api_view() AS v;  -- of http_api, without which nobody acts for a key
        IF seen.who IS NOT NULL THEN
            tenant := CASE WHEN seen.sees <> 'all' AND seen.tenant <> '*' THEN seen.tenant END;
            viewer := CASE WHEN seen.sees = 'own' THEN seen.who END;
            RETURN;
        END IF;
    ELSIF NOT acting_in(to_regrole('pgmta_api')) OR acting_in(to_regrole('pgmta_operator')) THEN
        RETURN;
    END IF;
    RAISE EXCEPTION 'the session acts for no key' USING ERRCODE = 'insufficient_privilege';
END $$;
COMMENT ON FUNCTION webhook_view IS
    'Whose endpoints this session sees, and makes: those of a tenant, and of a viewer; null: of any. A key of the HTTP API sees '
    'those about its own mail, an operator all. Raises insufficient_privilege for a login of the API without a key.';

CREATE FUNCTION webhook_known(endpoint bigint) RETURNS webhooks LANGUAGE plpgsql
    SET search_path = pgmta, pg_catalog, pg_temp AS $$
DECLARE
    found_one webhooks;
BEGIN
    SELECT w.* INTO found_one FROM webhooks AS w, webhook_view() AS v
    WHERE w.id = endpoint AND (v.tenant IS NULL OR w.tenant = v.tenant) AND (v.viewer IS NULL OR w.viewer = v.viewer)
    FOR UPDATE OF w;
    IF found_one.id IS NULL THEN
        RAISE EXCEPTION 'there is no webhook %', endpoint USING ERRCODE = 'no_data_found';
    ELSIF acting() LIKE 'key:%' AND found_one.created_by NOT LIKE 'key:%' THEN
        RAISE EXCEPTION 'webhook % is of an operator', endpoint USING ERRCODE = 'PG403';
    END IF;
    RETURN found_one;
END $$;
COMMENT ON FUNCTION webhook_known IS
    'Locks an endpoint and returns it, if this session may change it. Raises no_data_found if it does not see it, and '
    'PG403 if it acts for a key and an operator has made the endpoint: a key would lead elsewhere what the secret of the '
    'operator signs.';

CREATE FUNCTION webhook_who(who text) RETURNS text STABLE
RETURN CASE WHEN acting() LIKE 'key:%' THEN acting() ELSE coalesce(who, acting()) END;
COMMENT ON FUNCTION webhook_who IS 'Who is noted for a change: the key that asks for it, else the one that was given.';

CREATE FUNCTION webhook_check_secret(secret text) RETURNS void LANGUAGE plpgsql
    SET search_path = pgmta, pg_catalog, pg_temp AS $$
BEGIN
    IF acting() LIKE 'key:%' AND secret NOT LIKE 'key:%' THEN
        RAISE EXCEPTION 'endpoints of keys have derived secrets' USING ERRCODE = 'insufficient_privilege';
    END IF;
END $$;
COMMENT ON FUNCTION webhook_check_secret IS
    'Refuses a key of the HTTP API the secrets of files: what they sign is taken for events of the operator.';

CREATE FUNCTION webhook_audit(webhook webhooks, who text, action text, details jsonb) RETURNS void LANGUAGE plpgsql
    SET search_path = pgmta, pg_catalog, pg_temp AS $$
BEGIN
    INSERT INTO audit (who, action, condition, details, finished_at)
    VALUES (webhook_who(who), action, concat('webhook ', webhook.id, ' ', webhook.name), jsonb_strip_nulls(details), now());
    PERFORM pgmta.notify_channel('pgmta_orders');
END $$;
COMMENT ON FUNCTION webhook_audit IS 'Notes a change of an endpoint in audit, and tells every process of queued.';

CREATE FUNCTION webhook_add(
    name text, url text, kinds text[], condition jsonb, secret text, owner text, batch integer,
    tenant text DEFAULT NULL, who text DEFAULT NULL
) RETURNS bigint LANGUAGE plpgsql SECURITY DEFINER SET search_path = pgmta, pg_catalog, pg_temp AS $$
DECLARE
    most CONSTANT integer := 100;
    seen record;
    made webhooks;
BEGIN
    SELECT coalesce(v.tenant, webhook_add.tenant) AS tenant, v.viewer INTO seen FROM webhook_view() AS v;
    PERFORM webhook_check_secret(secret);
    -- first, and always: it waits for whoever removes the last endpoint and has not committed
    PERFORM events_subscribe('webhooks', 'webhook', webhook_who(who));
    IF (SELECT count(*) FROM webhooks AS w WHERE w.tenant IS NOT DISTINCT FROM seen.tenant
            AND w.viewer IS NOT DISTINCT FROM seen.viewer) >= most THEN
        RAISE EXCEPTION 'there are % webhooks already', most USING ERRCODE = 'program_limit_exceeded';
    END IF;
    INSERT INTO webhooks AS w (name, url, kinds, condition, secret, owner, batch, tenant, viewer, created_by, cursor)
    VALUES (webhook_add.name, webhook_add.url, webhook_add.kinds, coalesce(webhook_add.condition, '{}'), webhook_add.secret,
        webhook_add.owner, webhook_add.batch, seen.tenant, seen.viewer, webhook_who(who), events_end())
    ON CONFLICT ON CONSTRAINT webhooks_name_key DO NOTHING
    RETURNING w.* INTO made;
    IF made.id IS NULL THEN
        RAISE EXCEPTION 'there is a webhook % already', webhook_add.name USING ERRCODE = 'unique_violation';
    END IF;
    PERFORM webhook_audit(made, who, 'webhook add',
        jsonb_build_object('tenant', made.tenant, 'viewer', made.viewer, 'kinds', made.kinds));
    RETURN made.id;
END $$;
COMMENT ON FUNCTION webhook_add IS
    'Makes an endpoint that gets the events from now on, and returns its id. Whose mail they are about is what webhook_view() '
    'says, and beyond that `tenant`; null: any. The first endpoint subscribes to events. Raises '
    'unique_violation for a name that is there, program_limit_exceeded beyond 100 of a tenant and viewer, and '
    'lock_not_available as events_subscribe() does: repeat it.';

CREATE FUNCTION webhook_change(
    endpoint bigint, changes jsonb, who text DEFAULT NULL
) RETURNS void LANGUAGE plpgsql SECURITY DEFINER SET search_path = pgmta, pg_catalog, pg_temp AS $$
DECLARE
    old webhooks := webhook_known(endpoint);
    new webhooks := jsonb_populate_record(old, changes);
BEGIN
    UPDATE webhooks AS w SET revision = w.revision + 1, url = new.url, kinds = new.kinds, condition = new.condition,
        owner = new.owner, batch = new.batch,
        -- what was refused before may be taken now
        next_at = NULL, batch_end = NULL
    WHERE w.id = old.id;
    PERFORM webhook_audit(old, who, 'webhook change',
        jsonb_build_object('keys', (SELECT jsonb_agg(key) FROM jsonb_object_keys(changes) AS key)));
END $$;
COMMENT ON FUNCTION webhook_change IS 'Changes url, kinds, condition, owner or batch of an endpoint; other keys change nothing.';

CREATE FUNCTION webhook_enable(
    endpoint bigint, enabled boolean, reason text DEFAULT '', who text DEFAULT NULL
) RETURNS void LANGUAGE plpgsql SECURITY DEFINER SET search_path = pgmta, pg_catalog, pg_temp AS $$
DECLARE
    old webhooks := webhook_known(endpoint);
BEGIN
    UPDATE webhooks AS w SET revision = w.revision + 1, state = CASE WHEN enabled THEN 'active' ELSE 'disabled' END,
        state_at = now(), reason = coalesce(webhook_enable.reason, ''), failing_since = NULL, failures = 0, next_at = NULL
    WHERE w.id = old.id;
    PERFORM webhook_audit(old, who, CASE WHEN enabled THEN 'webhook enable' ELSE 'webhook disable' END,
        jsonb_build_object('reason', nullif(webhook_enable.reason, '')));
END $$;
COMMENT ON FUNCTION webhook_enable IS
    'Has an endpoint get events again, from its cursor on, also after it was suspended; or disables it.';

CREATE FUNCTION webhook_rotate(
    endpoint bigint, secret text, force boolean DEFAULT false, who text DEFAULT NULL
) RETURNS timestamptz LANGUAGE plpgsql SECURITY DEFINER SET search_path = pgmta, pg_catalog, pg_temp AS $$
DECLARE
    keep CONSTANT interval := '1 day';
    old webhooks := webhook_known(endpoint);
BEGIN
    PERFORM webhook_check_secret(secret);
    IF old.earlier_until > now() AND NOT force THEN  -- the receiver may have no other secret yet
        RAISE EXCEPTION 'the secret was rotated before, and the one before that signs until %',
            to_char(old.earlier_until AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS"Z"')
            USING ERRCODE = 'object_not_in_prerequisite_state';
    END IF;
    UPDATE webhooks AS w SET revision = w.revision + 1, secret = webhook_rotate.secret, earlier_secret = old.secret,
        earlier_until = now() + keep
    WHERE w.id = old.id;
    PERFORM webhook_audit(old, who, 'webhook rotate', jsonb_build_object('force', nullif(force, false)));
    RETURN now() + keep;
END $$;
COMMENT ON FUNCTION webhook_rotate IS
    'Gives an endpoint another secret. Requests have a signature by the earlier one, too, until the time that it returns. Raises '
    'object_not_in_prerequisite_state while one from before that signs: `force` ends it at once.';

CREATE FUNCTION webhook_remove(endpoint bigint, who text DEFAULT NULL) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pgmta, pg_catalog, pg_temp SET lock_timeout = '0.2s' AS $$
DECLARE
    old webhooks;
BEGIN
    -- before the endpoint is locked and looked for, as webhook_add() does by events_subscribe()
    PERFORM event_subscriptions_lock();
    old := webhook_known(endpoint);
    DELETE FROM webhooks AS w WHERE w.id = old.id;
    PERFORM webhook_audit(old, who, 'webhook remove', '{}');
    IF NOT EXISTS (SELECT FROM webhooks) THEN PERFORM events_unsubscribe('webhooks'); END IF;
END $$;
COMMENT ON FUNCTION webhook_remove IS
    'Removes an endpoint. The last one ends the subscription to events. Repeat it after lock_not_available.';

CREATE FUNCTION webhooks_subscribed() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pgmta, pg_catalog, pg_temp AS $$
BEGIN
    IF EXISTS (SELECT FROM webhooks) THEN
        RAISE EXCEPTION 'there are webhooks, which need the subscription %', OLD.name USING ERRCODE = 'object_in_use',
            HINT = 'The subscription ends with the last of them: `queuectl webhook remove`.';
    END IF;
    RETURN OLD;
END $$;
COMMENT ON FUNCTION webhooks_subscribed IS 'Refuses the end of the subscription of webhooks while there are any.';
CREATE TRIGGER webhooks_subscribed BEFORE DELETE ON event_subscriptions
    FOR EACH ROW WHEN (OLD.kind = 'webhook') EXECUTE FUNCTION webhooks_subscribed();
COMMENT ON TRIGGER webhooks_subscribed ON event_subscriptions IS 'Keeps the subscription of webhooks while there are any.';

CREATE FUNCTION webhook_replay(
    endpoint bigint, since timestamptz DEFAULT NULL, event_ids text[] DEFAULT NULL,
    who text DEFAULT NULL
) RETURNS bigint LANGUAGE plpgsql SECURITY DEFINER SET search_path = pgmta, pg_catalog, pg_temp AS $$
DECLARE
    old webhooks := webhook_known(endpoint);
    asked bigint := 0;
    wanted text;
    place text;
    event record;
BEGIN
    IF since IS NOT NULL THEN
        UPDATE webhooks AS w SET revision = w.revision + 1, cursor = events_since(since), batch_end = NULL WHERE w.id = old.id;
    ELSIF event_ids IS NULL THEN
        UPDATE webhook_failures AS f SET asked_at = now() WHERE f.webhook_id = old.id;
        GET DIAGNOSTICS asked = ROW_COUNT;
    ELSE
        FOREACH wanted IN ARRAY event_ids LOOP
            place := webhook_place(wanted);
            SELECT e.kind, e.message_id INTO event FROM events_read(place, 1, old.kinds, old.viewer, old.tenant) AS e
            WHERE place IS NOT NULL AND e.id = wanted;
            IF NOT FOUND THEN
                RAISE EXCEPTION 'there is no event % for webhook %', to_json(left(wanted, 50)), old.id
                    USING ERRCODE = 'PG404', HINT = 'Events are kept for the time of retention.events.';
            END IF;
            INSERT INTO webhook_failures AS f (webhook_id, event_id, kind, message_id, after, reason, asked_at)
            VALUES (old.id, wanted, event.kind, event.message_id, place, 'replay', now())
            ON CONFLICT ON CONSTRAINT webhook_failures_pkey DO UPDATE SET asked_at = now();
            asked := asked + 1;
        END LOOP;
    END IF;
    PERFORM webhook_audit(old, who, 'webhook replay',
        jsonb_build_object('since', since, 'events', nullif(asked, 0)));
    RETURN asked;
END $$;
COMMENT ON FUNCTION webhook_replay IS
    'Has events posted again: all since a time, in their order and before those that follow; or those of these ids; or without '
    'both those that were set aside. Returns how many were asked for by id. Raises PG404 for an id that is not kept.';

CREATE FUNCTION webhook_place(event_id text) RETURNS text LANGUAGE sql STABLE SET search_path = pgmta, pg_catalog, pg_temp
    SET enable_seqscan = off AS $$
    SELECT event_cursor(e.commit, e.at, e.place)
    FROM regexp_match(event_id, '^([0-9]{1,18})-([0-9]{1,9})$') AS parts, mail_events AS e
    WHERE e.commit = parts[1]::bigint AND e.place = parts[2]::integer
$$;
COMMENT ON FUNCTION webhook_place IS 'The cursor before an event; null: there is none of this id.';

CREATE FUNCTION webhook_lag(cursor text) RETURNS float8 LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path = pgmta, pg_catalog, pg_temp SET enable_seqscan = off AS $$
    SELECT extract(epoch FROM now() - l.numbered_at)::float8
    FROM string_to_array(webhook_lag.cursor, '.') AS parts, event_log AS l
    WHERE l.number >= parts[2]::bigint AND (l.number > parts[2]::bigint OR l.events > parts[3]::bigint)
    ORDER BY l.number LIMIT 1
$$;
COMMENT ON FUNCTION webhook_lag IS
    'The age in seconds of the oldest event with a number behind a cursor, whether or not an endpoint gets it; null: there is '
    'none.';

CREATE FUNCTION webhooks_seen(number bigint DEFAULT NULL, after bigint DEFAULT 0, most integer DEFAULT 1000) RETURNS TABLE (
    id bigint, name text, tenant text, viewer text, url text, kinds text[], condition jsonb, secret text, owner text,
    batch integer, state text, state_at timestamptz, reason text, failing_since timestamptz, failures integer,
    next_at timestamptz, posted_at timestamptz, created_at timestamptz, created_by text, earlier_until timestamptz,
    set_aside integer, lag float8
) LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pgmta, pg_catalog, pg_temp AS $$
    SELECT w.id, w.name, w.tenant, w.viewer, CASE
            -- as a key can't change it, it need not know what may be a secret in it
            WHEN acting() LIKE 'key:%' AND w.created_by NOT LIKE 'key:%' AND w.url ~ '^[^:]*://[^/?]*[/?].'
                THEN substring(w.url FROM '^[^:]*://[^/?]*') || '/...'
            ELSE w.url END, w.kinds, w.condition, w.secret, w.owner, w.batch, w.state, w.state_at,
        w.reason, w.failing_since, w.failures, w.next_at, w.posted_at, w.created_at, w.created_by, w.earlier_until,
        (SELECT count(*) FROM webhook_failures AS f WHERE f.webhook_id = w.id)::integer, coalesce(webhook_lag(w.cursor), (
            SELECT extract(epoch FROM now() - c.at)::float8 FROM event_commits AS c ORDER BY c.commit LIMIT 1))
    FROM webhooks AS w, webhook_view() AS v
    WHERE (v.tenant IS NULL OR w.tenant = v.tenant) AND (v.viewer IS NULL OR w.viewer = v.viewer)
        AND w.id > after AND (number IS NULL OR w.id = number)
    ORDER BY w.id LIMIT most
$$;
COMMENT ON FUNCTION webhooks_seen IS
    'The endpoints that this session sees, in the order of their ids, or the one of an id. If it acts for a key, the URL of an '
    'endpoint that an operator has made ends with its host. Their lag is the age of the oldest event that is not posted, also if '
    'it has no number yet.';

CREATE FUNCTION webhook_failures_seen(endpoint bigint, after text DEFAULT '', most integer DEFAULT 1000) RETURNS TABLE (
    event_id text, kind text, message_id bigint, failed_at timestamptz, reason text, asked_at timestamptz
) LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pgmta, pg_catalog, pg_temp AS $$
BEGIN
    IF NOT EXISTS (SELECT FROM webhooks_seen(endpoint)) THEN
        RAISE EXCEPTION 'there is no webhook %', endpoint USING ERRCODE = 'no_data_found';
    END IF;
    RETURN QUERY SELECT f.event_id, f.kind, f.message_id, f.failed_at, f.reason, f.asked_at FROM webhook_failures AS f
        WHERE f.webhook_id = endpoint AND f.event_id > webhook_failures_seen.after ORDER BY f.event_id LIMIT most;
END $$;
COMMENT ON FUNCTION webhook_failures_seen IS
    'The events that an endpoint has refused, and those whose replay was asked for. Raises no_data_found for an endpoint that '
    'this session does not see.';

-- queued: it posts.

CREATE FUNCTION webhook_batch(
    endpoint bigint, revision integer, worker text, most integer, reached text DEFAULT NULL, accepted boolean DEFAULT false,
    anew boolean DEFAULT false
) RETURNS TABLE (place text, event_id text, written_at timestamptz, document text) LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pgmta, pg_catalog, pg_temp AS $$
DECLARE
    w webhooks;
    begins text;
    ends text;
BEGIN
    SELECT h.* INTO w FROM webhooks AS h
    WHERE h.id = endpoint AND h.revision = webhook_batch.revision AND h.leased_by = worker
        AND h.state IN ('active', 'failing');  -- without a lock, which would write to the table also if nothing happens
    IF w.id IS NULL THEN RETURN; END IF;
    begins := coalesce(reached, w.cursor);
    BEGIN
        FOR place, event_id, written_at, document IN
            SELECT e.cursor, e.id, e.at, e.document::text FROM events_read(begins, most, w.kinds, w.viewer, w.tenant) AS e
        LOOP
            -- its end may have been only a place, which is not returned again
            EXIT WHEN ends IS NOT NULL AND reached IS NULL AND NOT anew
                AND string_to_array(place, '.')::bigint[] > string_to_array(w.batch_end, '.')::bigint[];
            ends := place;
            RETURN NEXT;
        END LOOP;
    EXCEPTION WHEN SQLSTATE 'PG409' THEN
        begins := events_since('-infinity');
        PERFORM webhook_audit(w, worker, 'webhook events expired', jsonb_build_object('cursor', w.cursor, 'first', begins));
    END;
    IF accepted OR (w.cursor, w.batch_end) IS DISTINCT FROM (begins, ends) THEN
        UPDATE webhooks AS h SET cursor = begins, batch_end = ends,
            posted_at = CASE WHEN accepted THEN now() ELSE h.posted_at END,
            state = CASE WHEN accepted THEN 'active' ELSE h.state END,
            state_at = CASE WHEN accepted AND h.state <> 'active' THEN now() ELSE h.state_at END,
            reason = CASE WHEN accepted THEN '' ELSE h.reason END,
            failing_since = CASE WHEN NOT accepted THEN h.failing_since END,
            failures = CASE WHEN accepted THEN 0 ELSE h.failures END,
            next_at = CASE WHEN NOT accepted THEN h.next_at END
        WHERE h.id = w.id AND h.revision = w.revision AND h.leased_by = worker AND h.state = w.state;
    END IF;
END $$;
COMMENT ON FUNCTION webhook_batch IS
    'Notes that an endpoint has the events up to `reached`, and that it has accepted a request; and returns the next batch, of '
    'which a row without an event is only a place. A batch that was not noted so is returned again as it was, or anew with the '
    'events since then. Without a lease of the worker, or under another revision, it does nothing.';

CREATE FUNCTION webhook_replays(endpoint bigint, worker text, most integer)
    RETURNS TABLE (event_id text, document text) LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pgmta, pg_catalog, pg_temp AS $$
DECLARE
    w webhooks;
    after text;
BEGIN
    SELECT h.* INTO w FROM webhooks AS h
    WHERE h.id = endpoint AND h.leased_by = worker AND h.state IN ('active', 'failing');
    FOR event_id, after IN
        SELECT f.event_id, f.after FROM webhook_failures AS f
        WHERE f.webhook_id = w.id AND f.asked_at IS NOT NULL ORDER BY f.asked_at, f.failed_at, f.event_id LIMIT most
    LOOP
        document := NULL;
        BEGIN
            SELECT e.document::text INTO document FROM events_read(after, 1, w.kinds, w.viewer, w.tenant) AS e
            WHERE e.id = webhook_replays.event_id;
        EXCEPTION WHEN SQLSTATE 'PG409' THEN
            NULL;  -- it has expired
        END;
        RETURN NEXT;
    END LOOP;
END $$;
COMMENT ON FUNCTION webhook_replays IS
    'The events whose replay was asked for; without a document: it is not kept, or no event for the endpoint any more.';

CREATE FUNCTION webhook_suspend(
    endpoint bigint, revision integer, worker text, why text, sender text DEFAULT NULL, content bytea DEFAULT NULL
) RETURNS boolean LANGUAGE plpgsql SECURITY DEFINER SET search_path = pgmta, pg_catalog, pg_temp AS $$
DECLARE
    w webhooks;
BEGIN
    UPDATE webhooks AS h SET state = 'suspended', state_at = now(), reason = why, next_at = NULL
    WHERE h.id = endpoint AND h.revision = webhook_suspend.revision AND h.leased_by = worker
        AND h.state IN ('active', 'failing')
    RETURNING h.* INTO w;
    IF w.id IS NULL THEN RETURN false; END IF;
    -- one a day: whoever enables an endpoint that answers 410 could have mail sent without end
    IF content IS NOT NULL AND w.owner IS NOT NULL AND coalesce(w.noticed_at < now() - interval '1 day', true) THEN
        PERFORM submit(sender, ARRAY[w.owner], content, tenant => coalesce(w.tenant, ''));
        UPDATE webhooks AS h SET noticed_at = now() WHERE h.id = w.id;
    END IF;
    PERFORM webhook_audit(w, worker, 'webhook suspended', jsonb_build_object('reason', why));
    RETURN true;
END $$;
COMMENT ON FUNCTION webhook_suspend IS
    'Suspends an endpoint of which the worker has the lease, and mails its owner in the same transaction, once a day at most.';

INSERT INTO forget_columns (relation, names, way, condition) VALUES
    ('webhooks', '{owner,condition,url}', 'named', 'true'),
    ('webhooks', '{reason}', 'words', 'true'),
    ('webhook_failures', '{reason}', 'words', 'true');

INSERT INTO rights (object, role, privileges) VALUES
    ('webhooks', 'pgmta_queued', 'SELECT, UPDATE (state, state_at, reason, failing_since, failures, next_at, cursor)'),
    ('webhooks', 'pgmta_queued', 'UPDATE (leased_by)'),
    ('webhooks', 'pgmta_operator', 'SELECT'),
    ('webhooks', 'pgmta_reader', 'SELECT'),
    ('webhook_failures', 'pgmta_queued', 'SELECT, INSERT, UPDATE (asked_at, reason, failed_at), DELETE'),
    ('webhook_failures', 'pgmta_operator', 'SELECT'),
    ('webhook_failures', 'pgmta_reader', 'SELECT'),
    ('FUNCTION webhook_lag', 'pgmta_operator', 'EXECUTE'),
    ('FUNCTION webhook_lag', 'pgmta_reader', 'EXECUTE'),
    ('FUNCTION webhooks_seen', 'pgmta_operator', 'EXECUTE'),
    ('FUNCTION webhooks_seen', 'pgmta_reader', 'EXECUTE'),
    ('FUNCTION webhooks_seen', 'pgmta_api', 'EXECUTE'),
    ('FUNCTION webhook_failures_seen', 'pgmta_operator', 'EXECUTE'),
    ('FUNCTION webhook_failures_seen', 'pgmta_reader', 'EXECUTE'),
    ('FUNCTION webhook_failures_seen', 'pgmta_api', 'EXECUTE'),
    ('FUNCTION webhook_add', 'pgmta_operator', 'EXECUTE'),
    ('FUNCTION webhook_add', 'pgmta_api', 'EXECUTE'),
    ('FUNCTION webhook_change', 'pgmta_operator', 'EXECUTE'),
    ('FUNCTION webhook_change', 'pgmta_api', 'EXECUTE'),
    ('FUNCTION webhook_enable', 'pgmta_operator', 'EXECUTE'),
    ('FUNCTION webhook_enable', 'pgmta_api', 'EXECUTE'),
    ('FUNCTION webhook_rotate', 'pgmta_operator', 'EXECUTE'),
    ('FUNCTION webhook_rotate', 'pgmta_api', 'EXECUTE'),
    ('FUNCTION webhook_replay', 'pgmta_operator', 'EXECUTE'),
    ('FUNCTION webhook_replay', 'pgmta_api', 'EXECUTE'),
    ('FUNCTION webhook_remove', 'pgmta_operator', 'EXECUTE'),
    ('FUNCTION webhook_remove', 'pgmta_api', 'EXECUTE'),
    ('FUNCTION webhook_batch', 'pgmta_queued', 'EXECUTE'),
    ('FUNCTION webhook_replays', 'pgmta_queued', 'EXECUTE'),
    ('FUNCTION webhook_suspend', 'pgmta_queued', 'EXECUTE');

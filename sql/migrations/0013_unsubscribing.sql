-- Unsubscribing, returned mail and complaints, forgetting a person, and expiry.

SET LOCAL check_function_bodies = off;  -- functions may name later ones

DROP FUNCTION withdraw(bigint, text);
CREATE FUNCTION withdraw(id bigint, reason text, event text DEFAULT 'cancelled') RETURNS integer
LANGUAGE plpgsql SET search_path = pgmta, pg_catalog, pg_temp AS $$
DECLARE
    chances integer :=
        CASE current_setting('transaction_isolation') WHEN 'read committed' THEN 10 ELSE 1 END;
    flying bigint[];
    waiting bigint[];
    stopped integer;
BEGIN
    FOR chance IN 1 .. chances LOOP
        BEGIN
            -- A row in REPORT has its outcome, and its sender gets a DSN.
            -- Under a lease, also one that ran out: the next hop may have the mail
            SELECT array_agg(found.id) FILTER (WHERE found.lease_until IS NOT NULL),
                array_agg(found.id) FILTER (WHERE found.lease_until IS NULL)
            INTO flying, waiting
            FROM (
                SELECT q.id, q.lease_until FROM queue AS q
                WHERE q.message_id = withdraw.id AND q.status NOT IN ('DELETE', 'REPORT') ORDER BY q.id FOR UPDATE
            ) AS found;
            -- The attempt ends and its outcome counts. After a deferral queued removes the row. The trigger
            -- of the first statement would clear what the second one sets.
            UPDATE queue AS q SET status = 'DELETE' WHERE q.id = ANY (flying);
            UPDATE queue AS q SET held_by = session_user, hold_reason = coalesce(reason, '')
            WHERE q.id = ANY (flying);
            PERFORM rows_log(waiting, event, session_user::text, coalesce(reason, ''));
            DELETE FROM queue AS q WHERE q.id = ANY (waiting);
            GET DIAGNOSTICS stopped = ROW_COUNT;
            RETURN stopped;
        EXCEPTION WHEN serialization_failure OR deadlock_detected THEN
            IF chance = chances THEN RAISE; END IF;  -- a row has moved to another partition meanwhile
        END;
    END LOOP;
END $$;
COMMENT ON FUNCTION withdraw IS
    'The common part of cancel() and of triggers that withdraw mail: it asks for no right to the message.';

DROP FUNCTION attempt_returned(bigint, bigint, date, text, text);
CREATE FUNCTION attempt_returned(
    message bigint, recipient_row bigint, day date, why text, words text, complaint boolean DEFAULT false,
    OUT sender text, OUT recipient text
) LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    -- the attempt began on this day, by the clock of a worker
    earliest CONSTANT timestamptz := (day - 1)::timestamp AT TIME ZONE 'UTC';
    latest CONSTANT timestamptz := (day + 3)::timestamp AT TIME ZONE 'UTC';
    bounced CONSTANT boolean := pgmta.campaign_bounces(why) AND words LIKE '5%';
    entry record;
BEGIN
    SELECT a.ended_at, a.lease_token, a.sender, a.recipient, a.tenant, a.metadata INTO entry
    FROM pgmta.attempts AS a
    WHERE a.message_id = message AND a.row_id = recipient_row AND a.event IN ('delivered', 'unknown')
        AND a.ended_at >= earliest AND a.ended_at < latest
    ORDER BY a.ended_at DESC LIMIT 1;
    IF NOT FOUND THEN RETURN; END IF;
    sender := entry.sender;
    recipient := entry.recipient;
    IF why <> '' THEN
        UPDATE pgmta.attempts AS a
        SET class = why, returned_at = now(), returned = left(words, 1020)
        WHERE a.message_id = message AND a.row_id = recipient_row AND a.ended_at = entry.ended_at
            AND a.lease_token = entry.lease_token AND a.returned_at IS NULL;
    END IF;
    IF bounced OR complaint THEN
        PERFORM pgmta.returned_facts(message, entry.recipient, entry.tenant, entry.metadata, bounced, complaint);
    END IF;
END $$;
COMMENT ON FUNCTION attempt_returned IS
    'Returns sender and recipient of the attempt that delivered a row on that day or the next ones, null without '
    'one. With a reason it notes in the log that the mail came back, once. A hard bounce or a complaint suppresses '
    'the recipient.';

DROP TRIGGER templates_unchanged ON templates;
CREATE TRIGGER templates_unchanged BEFORE UPDATE OR DELETE OR TRUNCATE ON templates
    FOR EACH STATEMENT
    WHEN (current_setting('pgmta.writer', true) IS DISTINCT FROM 'expiry'
        OR NOT has_table_privilege('rights'::regclass, 'SELECT WITH GRANT OPTION'))
    EXECUTE FUNCTION templates_unchanged();
COMMENT ON TRIGGER templates_unchanged ON templates IS 'A retry, and another host, compose the same octets.';

COMMENT ON COLUMN message_status.state IS
    'scheduled, queued, deferred, sending, held, delivered, failed, unknown, cancelled, expired or suppressed. After '
    'failed and unknown the row may be on hold, and an operator may release it.';

CREATE INDEX campaign_recipients_waiting ON campaign_recipients (suppression_address(recipient))
    WHERE state IN ('queued', 'deferred');
COMMENT ON INDEX campaign_recipients_waiting IS 'A suppression finds the mail that waits for its address.';

CREATE FUNCTION suppressions_withdraw(addresses text[], tenants text[], scopes text[]) RETURNS integer LANGUAGE plpgsql
    SET search_path = pgmta, pg_catalog, pg_temp SET plan_cache_mode = force_custom_plan AS $$
DECLARE
    found record;
    withdrawn integer := 0;
BEGIN
    FOR found IN
        SELECT DISTINCT r.campaign_id, r.number, r.message_id
        FROM unnest(addresses, tenants, scopes) AS s (address, tenant, scope)
        JOIN campaign_recipients AS r ON suppression_address(r.recipient) = s.address AND r.state IN ('queued', 'deferred')
        JOIN campaigns AS c ON c.id = r.campaign_id AND s.tenant IN (c.tenant, '*') AND s.scope IN (c.scope, '')
        ORDER BY 3
    LOOP
        withdrawn := withdrawn + withdraw(found.message_id, 'suppressed', 'suppressed');
        -- one in flight is settled by its outcome
        UPDATE campaign_recipients AS r SET state = 'invalid', error_code = 'suppressed', message_id = NULL
        WHERE r.campaign_id = found.campaign_id AND r.number = found.number AND r.message_id = found.message_id
            AND r.state IN ('queued', 'deferred')
            AND NOT EXISTS (SELECT FROM queue AS q WHERE q.message_id = found.message_id);
    END LOOP;
    RETURN withdrawn;
END $$;
COMMENT ON FUNCTION suppressions_withdraw IS
    'Withdraws mail of campaigns that waits for suppressed addresses. An attempt whose transaction has not begun does not '
    'begin any more. Returns the number of rows that left the queue.';

CREATE FUNCTION unsubscribe(campaign bigint, number integer) RETURNS boolean LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pgmta, pg_catalog, pg_temp AS $$
DECLARE
    found record;
BEGIN
    SELECT c.tenant, c.scope, r.recipient INTO found
    FROM campaigns AS c LEFT JOIN campaign_recipients AS r
        ON r.campaign_id = c.id AND r.number = unsubscribe.number
    WHERE c.id = unsubscribe.campaign;
    IF found IS NULL OR (found.recipient IS NULL AND unsubscribe.number > 0) THEN RETURN false; END IF;
    -- number 0 is a test message; a person who had to be forgotten has no address here
    IF found.recipient <> '' THEN
        PERFORM suppressions_put(ARRAY[found.recipient], ARRAY[found.tenant], ARRAY[found.scope], ARRAY['unsubscribed'],
            ARRAY['campaign ' || unsubscribe.campaign]);
    END IF;
    RETURN true;
END $$;
COMMENT ON FUNCTION unsubscribe IS
    'Suppresses the address of a campaign''s recipient, for its tenant and scope. Returns false if there is no such '
    'recipient. The caller has verified a token that names both numbers.';

CREATE FUNCTION campaign_bounced() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pgmta, pg_catalog, pg_temp AS $$
BEGIN
    PERFORM suppressions_put(ARRAY[NEW.recipient], ARRAY[c.tenant], ARRAY[''], ARRAY['bounced'],
        ARRAY['campaign ' || c.id])
    FROM campaigns AS c WHERE c.id = NEW.campaign_id AND NEW.recipient <> '';
    RETURN NULL;
END $$;
COMMENT ON FUNCTION campaign_bounced IS 'Suppresses an address that does not exist, for all scopes of its tenant.';
CREATE TRIGGER campaign_bounced AFTER UPDATE OF bounced ON campaign_recipients FOR EACH ROW
    WHEN (NEW.bounced AND NOT OLD.bounced) EXECUTE FUNCTION campaign_bounced();
COMMENT ON TRIGGER campaign_bounced ON campaign_recipients IS
    'Whoever marks a hard bounce suppresses, whether it came with the answer or later.';

CREATE FUNCTION returned_facts(message bigint, recipient text, tenant text, metadata jsonb, bounced boolean, complaint boolean)
RETURNS void LANGUAGE plpgsql SET search_path = pgmta, pg_catalog, pg_temp AS $$
DECLARE
    path bigint[] := campaign_path(metadata);
BEGIN
    IF bounced THEN
        UPDATE campaign_recipients AS r SET bounced = true
        WHERE r.campaign_id = path[1] AND r.number = path[2] AND NOT r.bounced AND r.recipient = returned_facts.recipient;
    END IF;
    -- mail by SQL may have anything there, and a refusal would keep what came back
    PERFORM suppressions_put(ARRAY[recipient], ARRAY[tenant], ARRAY[''],
        ARRAY[CASE WHEN complaint THEN 'complained' ELSE 'bounced' END],
        ARRAY[coalesce('campaign ' || path[1], 'message ' || message)])
    WHERE mailbox_domain(recipient COLLATE "C") IS NOT NULL;
END $$;
COMMENT ON FUNCTION returned_facts IS
    'Suppresses the recipient of a message that came back for good, or about which its recipient complained, and marks '
    'a recipient of a campaign. The message was named by a VERP address of ours.';

CREATE FUNCTION campaign_complaint(campaign bigint, number integer) RETURNS boolean LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pgmta, pg_catalog, pg_temp AS $$
BEGIN
    PERFORM suppressions_put(ARRAY[r.recipient], ARRAY[c.tenant], ARRAY[''], ARRAY['complained'], ARRAY['campaign ' || c.id])
    FROM campaigns AS c JOIN campaign_recipients AS r ON r.campaign_id = c.id
    WHERE c.id = campaign AND r.number = campaign_complaint.number AND r.recipient <> '';
    RETURN FOUND;
END $$;
COMMENT ON FUNCTION campaign_complaint IS
    'Suppresses the address of a campaign''s recipient who complained, for all scopes of its tenant. The caller has '
    'verified a token that names both numbers.';

INSERT INTO rights (object, role, privileges) VALUES
    ('FUNCTION campaign_complaint', 'pgmta_queued', 'EXECUTE'),
    ('FUNCTION unsubscribe', 'pgmta_web', 'EXECUTE');

CREATE FUNCTION forget_parts() RETURNS SETOF text LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path = pgmta, pg_catalog, pg_temp AS $$
    SELECT part FROM (
        SELECT 1 AS place, 'suppressions' AS part UNION ALL SELECT 2, 'queue'
        UNION ALL SELECT 3, 'campaign ' || c.id FROM campaigns AS c
        UNION ALL SELECT 4, c.relname FROM pg_inherits AS i JOIN pg_class AS c ON c.oid = i.inhrelid
        WHERE i.inhparent IN ('attempts'::regclass, 'reports'::regclass)
    ) AS p ORDER BY place, part
$$;
COMMENT ON FUNCTION forget_parts IS
    'The parts of the database that forget() looks through, in their order: suppressions first, so that nothing new is fed.';

CREATE FUNCTION forget(address text, part text, dry_run boolean DEFAULT false) RETURNS jsonb LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pgmta, pg_catalog, pg_temp SET jit = off AS $$
DECLARE
    key CONSTANT text := suppression_address(address);
    dry CONSTANT boolean := coalesce(dry_run, true);
    campaign bigint;
BEGIN
    IF mailbox_domain(address COLLATE "C") IS NULL THEN
        PERFORM submit_refuse('address', 'it is no mailbox', NULL, 'Write LOCAL@DOMAIN, the domain in A-labels.');
    ELSIF part NOT IN (SELECT forget_parts()) THEN
        IF part LIKE 'campaign %' OR part ~ '_\d{8}$' THEN RETURN '{}'; END IF;  -- it is gone meanwhile
        PERFORM submit_refuse('part', 'there is none of this name', NULL, 'forget_parts() names them.');
    END IF;
    CASE
        WHEN part = 'suppressions' THEN RETURN forget_suppressions(key, dry);
        WHEN part = 'queue' THEN RETURN forget_queue(key, dry);
        WHEN part LIKE 'campaign %' THEN
            campaign := substr(part, 10)::bigint;
            RETURN forget_recipients(key, campaign, dry);
        WHEN part LIKE 'attempts_%' THEN RETURN forget_attempts(key, part, dry);
        ELSE RETURN forget_reports(key, part, dry);
    END CASE;
END $$;
COMMENT ON FUNCTION forget IS
    'Removes a person, by address, from one part of the database, and returns what by its number. After all parts of '
    'forget_parts() the address is nowhere but as a keyed hash. With dry_run it only counts.';

CREATE FUNCTION forget_suppressions(key text, dry boolean) RETURNS jsonb LANGUAGE plpgsql
    SET search_path = pgmta, pg_catalog, pg_temp AS $$
DECLARE
    number bigint;
BEGIN
    SELECT count(*) INTO number FROM suppressions AS s WHERE s.address = key;
    IF NOT dry THEN
        DELETE FROM suppressions AS s WHERE s.address = key;
        INSERT INTO suppressions AS s (address, tenant, reason) VALUES (suppression_hash(key), '*', 'forgotten')
        ON CONFLICT ON CONSTRAINT suppressions_pkey DO UPDATE SET at = now(), released_at = NULL;
        DELETE FROM report_counts AS r WHERE r.sender = key;
    END IF;
    RETURN jsonb_build_object('suppressions', number);
END $$;
COMMENT ON FUNCTION forget_suppressions IS 'The part of forget() that leaves the keyed hash.';

CREATE FUNCTION forget_queue(key text, dry boolean) RETURNS jsonb LANGUAGE plpgsql
    SET search_path = pgmta, pg_catalog, pg_temp AS $$
DECLARE
    flying bigint[];
    waiting bigint[];
BEGIN
    IF dry THEN
        SELECT array_agg(q.id) FILTER (WHERE q.lease_until IS NOT NULL), array_agg(q.id) FILTER (WHERE q.lease_until IS NULL)
        INTO flying, waiting FROM queue AS q
        WHERE suppression_address(q.recipient) = key OR suppression_address(q.sender) = key;
    ELSE
        SELECT array_agg(f.id) FILTER (WHERE f.lease_until IS NOT NULL), array_agg(f.id) FILTER (WHERE f.lease_until IS NULL)
        INTO flying, waiting FROM (
            SELECT q.id, q.lease_until FROM queue AS q
            WHERE suppression_address(q.recipient) = key OR suppression_address(q.sender) = key ORDER BY q.id FOR UPDATE
        ) AS f;
        UPDATE queue AS q SET status = 'DELETE' WHERE q.id = ANY (flying);
        -- without an entry in the log; a body goes with its last row
        DELETE FROM queue AS q WHERE q.id = ANY (waiting);
    END IF;
    RETURN jsonb_build_object('rows of the queue', coalesce(cardinality(waiting), 0),
        'rows under way', coalesce(cardinality(flying), 0));
END $$;
COMMENT ON FUNCTION forget_queue IS
    'The part of forget() for mail to the person and from it. A row under way ends with its attempt, so its log has to be '
    'looked through once more.';

CREATE FUNCTION forget_recipients(key text, campaign bigint, dry boolean) RETURNS jsonb LANGUAGE plpgsql
    SET search_path = pgmta, pg_catalog, pg_temp AS $$
DECLARE
    number bigint;
BEGIN
    IF dry THEN
        SELECT count(*) INTO number FROM campaign_recipients AS r
        WHERE r.campaign_id = campaign AND suppression_address(r.recipient) = key;
    ELSE
        -- the books stay: only unsent ones become invalid
        UPDATE campaign_recipients AS r SET recipient = '', domain = '', params = '{}',
            state = CASE WHEN r.state IN ('unsent', 'queued', 'deferred') THEN 'invalid' ELSE r.state END,
            error_code = CASE WHEN r.state IN ('unsent', 'queued', 'deferred') THEN 'suppressed' ELSE r.error_code END
        WHERE r.campaign_id = campaign AND suppression_address(r.recipient) = key
            AND NOT (r.state IN ('queued', 'deferred') AND EXISTS (
                SELECT FROM queue AS q WHERE q.message_id = r.message_id));
        GET DIAGNOSTICS number = ROW_COUNT;
    END IF;
    RETURN jsonb_build_object('recipients of campaigns', number);
END $$;
COMMENT ON FUNCTION forget_recipients IS 'The part of forget() for a campaign: its books keep a line without an address.';

CREATE FUNCTION forget_attempts(key text, day text, dry boolean) RETURNS jsonb LANGUAGE plpgsql
    SET search_path = pgmta, pg_catalog, pg_temp AS $$
DECLARE
    attempts bigint;
    transcripts bigint;
BEGIN
    EXECUTE format(CASE WHEN dry THEN $sql$
        WITH gone AS MATERIALIZED (
            SELECT a.message_id, a.lease_token FROM %I AS a
            WHERE suppression_address(a.recipient) = $1 OR suppression_address(a.sender) = $1)
        SELECT count(*), (SELECT count(*) FROM transcripts AS t
            WHERE t.message_id = ANY (ARRAY(SELECT message_id FROM gone))
                AND (t.message_id, t.lease_token) IN (SELECT message_id, lease_token FROM gone)) FROM gone
        $sql$ ELSE $sql$
        WITH gone AS (
            DELETE FROM %I AS a WHERE suppression_address(a.recipient) = $1 OR suppression_address(a.sender) = $1
            RETURNING a.message_id, a.lease_token
        ), said AS (
            DELETE FROM transcripts AS t
            WHERE t.message_id = ANY (ARRAY(SELECT message_id FROM gone))
                AND (t.message_id, t.lease_token) IN (SELECT message_id, lease_token FROM gone)
            RETURNING t.message_id
        )
        SELECT (SELECT count(*) FROM gone), (SELECT count(*) FROM said)
        $sql$ END, day) INTO attempts, transcripts USING key;
    RETURN jsonb_build_object('entries of the log', attempts, 'transcripts', transcripts);
END $$;
COMMENT ON FUNCTION forget_attempts IS
    'The part of forget() for a day of the log, with the transcripts of the same transactions: other recipients of a '
    'transaction share its transcript.';

CREATE FUNCTION forget_reports(key text, day text, dry boolean) RETURNS jsonb LANGUAGE plpgsql
    SET search_path = pgmta, pg_catalog, pg_temp AS $$
DECLARE
    number bigint;
BEGIN
    EXECUTE format(concat('WITH found AS (', CASE WHEN dry THEN 'SELECT FROM' ELSE 'DELETE FROM' END, ' %I AS r
            WHERE $1 IN (suppression_address(r.recipient), suppression_address(r.sender), suppression_address(r.sent_to))',
            CASE WHEN NOT dry THEN ' RETURNING true' END, ') SELECT count(*) FROM found'), day) INTO number USING key;
    RETURN jsonb_build_object('reports', number);
END $$;
COMMENT ON FUNCTION forget_reports IS 'The part of forget() for a day of the DSNs.';

INSERT INTO rights (object, role, privileges) VALUES
    ('FUNCTION forget_parts', 'pgmta_operator', 'EXECUTE'),
    ('FUNCTION forget', 'pgmta_operator', 'EXECUTE');

CREATE FUNCTION campaign_over(campaign bigint, age interval) RETURNS boolean LANGUAGE sql STABLE
    SET search_path = pgmta, pg_catalog, pg_temp AS $$
    SELECT c.created_at < now() - age AND coalesce(c.visible_at < now() - age, true) AND NOT EXISTS (
        SELECT FROM campaign_jobs AS j
        WHERE j.campaign_id = c.id AND (j.status <> 'LOGGED' OR j.changed_at >= now() - age))
    FROM campaigns AS c WHERE c.id = campaign
$$;
COMMENT ON FUNCTION campaign_over IS 'Whether nothing has happened in a campaign for that long, and nothing will by itself.';

CREATE FUNCTION recipients_expire(age interval, batch integer) RETURNS integer LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pgmta, pg_catalog, pg_temp SET jit = off AS $$
DECLARE
    campaign bigint;
    removed integer;
BEGIN
    FOR campaign IN
        SELECT c.id FROM campaigns AS c
        -- not those whose recipients are gone; by min(), because EXISTS may read the whole table
        WHERE (SELECT min(r.number) FROM campaign_recipients AS r WHERE r.campaign_id = c.id) > 0 AND campaign_over(c.id, age)
        ORDER BY c.id
    LOOP
        DELETE FROM campaign_recipients AS r WHERE r.campaign_id = campaign AND r.number = ANY (ARRAY(
            SELECT o.number FROM campaign_recipients AS o WHERE o.campaign_id = campaign
            ORDER BY o.number LIMIT batch FOR UPDATE SKIP LOCKED));
        GET DIAGNOSTICS removed = ROW_COUNT;
        IF removed > 0 THEN RETURN removed; END IF;
    END LOOP;
    RETURN 0;
END $$;
COMMENT ON FUNCTION recipients_expire IS
    'Removes one batch of recipients of campaigns that are over for so long, and returns how many. The totals stay.';

CREATE FUNCTION campaigns_expire(age interval, batch integer) RETURNS integer LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pgmta, pg_catalog, pg_temp SET jit = off AS $$
DECLARE
    campaigns_gone bigint[];
BEGIN
    campaigns_gone := ARRAY(
        SELECT c.id FROM campaigns AS c
        WHERE campaign_over(c.id, age)
            AND NOT EXISTS (SELECT FROM campaign_recipients AS r WHERE r.campaign_id = c.id)
        ORDER BY c.id LIMIT batch FOR UPDATE SKIP LOCKED);
    DELETE FROM campaign_jobs AS j WHERE j.campaign_id = ANY (campaigns_gone);
    DELETE FROM campaign_counts AS n WHERE n.campaign_id = ANY (campaigns_gone);
    DELETE FROM credential_use AS u WHERE u.campaign_id = ANY (campaigns_gone);
    DELETE FROM campaigns AS c WHERE c.id = ANY (campaigns_gone);
    RETURN cardinality(campaigns_gone);
END $$;
COMMENT ON FUNCTION campaigns_expire IS
    'Removes campaigns whose recipients are gone and that are over for so long; returns how many.';

CREATE FUNCTION templates_expire(age interval, batch integer) RETURNS integer LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pgmta, pg_catalog, pg_temp SET jit = off AS $$
DECLARE
    old bigint[];
    writer text := coalesce(current_setting('pgmta.writer', true), '');
BEGIN
    -- the last version of a name stays; one that was replaced just now may be in an open transaction
    old := ARRAY(
        SELECT t.id FROM templates AS t
        JOIN LATERAL (SELECT n.created_at FROM templates AS n
            WHERE n.tenant = t.tenant AND n.name = t.name AND n.version > t.version ORDER BY n.version LIMIT 1
        ) AS next ON next.created_at < now() - age
        WHERE NOT EXISTS (SELECT FROM campaigns AS c WHERE c.template_id = t.id)
        ORDER BY t.id LIMIT batch);
    IF old = '{}' THEN RETURN 0; END IF;
    old := ARRAY(SELECT id FROM unnest(old) AS id EXCEPT SELECT m.template_id FROM messages AS m WHERE m.template_id = ANY (old));
    PERFORM set_config('pgmta.writer', 'expiry', true);
    DELETE FROM templates AS t WHERE t.id = ANY (old);
    PERFORM set_config('pgmta.writer', writer, true);
    RETURN cardinality(old);
END $$;
COMMENT ON FUNCTION templates_expire IS
    'Removes versions of templates that were replaced so long ago and that neither mail nor a campaign has; returns how many.';

CREATE FUNCTION lifecycle_expire(tokens interval, collections interval, batch integer) RETURNS integer LANGUAGE plpgsql
    SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET jit = off AS $$
DECLARE
    removed integer;
    more integer;
BEGIN
    -- a schema that another login made is none of ours
    IF NOT EXISTS (
            SELECT FROM pg_class AS c JOIN pg_class AS ours ON ours.oid = 'pgmta.messages'::regclass
            WHERE c.oid = to_regclass('lifecycle.installation') AND c.relowner = ours.relowner) THEN
        RETURN 0;
    END IF;
    EXECUTE 'DELETE FROM lifecycle.tokens AS t WHERE t.id = ANY (ARRAY(
            SELECT o.id FROM lifecycle.tokens AS o WHERE o.expires_at < extract(epoch FROM now() - $1)
            ORDER BY o.id LIMIT $2 FOR UPDATE SKIP LOCKED))' USING tokens, batch;
    GET DIAGNOSTICS removed = ROW_COUNT;
    EXECUTE 'DELETE FROM lifecycle.collections AS c WHERE c.id = ANY (ARRAY(
            SELECT o.id FROM lifecycle.collections AS o WHERE o.ended_at < now() - $1
            ORDER BY o.id LIMIT $2 FOR UPDATE SKIP LOCKED))' USING collections, batch;
    GET DIAGNOSTICS more = ROW_COUNT;
    RETURN removed + more;
END $$;
COMMENT ON FUNCTION lifecycle_expire IS
    'Removes one batch of old tokens and collections of the schema lifecycle, if it is installed; returns how many.';

INSERT INTO rights (object, role, privileges) VALUES
    ('FUNCTION recipients_expire', 'pgmta_queued', 'EXECUTE'),
    ('FUNCTION campaigns_expire', 'pgmta_queued', 'EXECUTE'),
    ('FUNCTION templates_expire', 'pgmta_queued', 'EXECUTE'),
    ('FUNCTION lifecycle_expire', 'pgmta_queued', 'EXECUTE');

DO $$
BEGIN
    IF grants() <> '{}' THEN
        RAISE WARNING 'a role could not be made'
            USING HINT = 'Create the roles of docs/rights.md (NOLOGIN) and call pgmta.grants() as owner of the tables.';
    END IF;
END $$;

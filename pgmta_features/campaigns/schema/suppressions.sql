-- Suppressions of recipients of campaigns: mail that waits is withdrawn, and who bounces, complains or unsubscribes.

CREATE INDEX campaign_recipients_waiting ON campaign_recipients (mailbox_key(recipient))
    WHERE state IN ('queued', 'deferred');
COMMENT ON INDEX campaign_recipients_waiting IS 'A suppression finds the mail that waits for its address.';

CREATE FUNCTION campaign_suppressed() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pgmta, pg_catalog, pg_temp SET plan_cache_mode = force_custom_plan
    SET enable_hashjoin = off SET enable_mergejoin = off SET enable_seqscan = off AS $$
DECLARE
    campaigns bigint[];
    numbers integer[];
    mails bigint[];
    reasons text[];
BEGIN
    SELECT array_agg(f.campaign_id), array_agg(f.number), array_agg(f.message_id), array_agg(f.words)
    INTO campaigns, numbers, mails, reasons
    FROM (
        SELECT DISTINCT ON (r.campaign_id, r.number) r.campaign_id, r.number, r.message_id,
            suppression_words(s.at, s.reason, s.source) AS words
        FROM added AS s
        JOIN campaign_recipients AS r ON mailbox_key(r.recipient) = s.address AND r.state IN ('queued', 'deferred')
        JOIN campaigns AS c ON c.id = r.campaign_id AND s.tenant IN (c.tenant, '*') AND s.scope IN (c.scope, '')
        WHERE s.released_at IS NULL AND (s.until IS NULL OR s.until > now())
            -- a row whose outcome suppresses has left the queue in this transaction, and its recipient gets that outcome
            AND EXISTS (SELECT FROM queue AS q WHERE q.message_id = r.message_id)
        ORDER BY r.campaign_id, r.number, s.at
    ) AS f;
    IF mails IS NULL THEN RETURN NULL; END IF;
    -- locked rows are skipped: a transaction that settles one may wait for the suppression of this one
    PERFORM withdraw(array_agg(f.message_id), f.words, 'suppressed', skip_locked => true)
    FROM unnest(mails, reasons) AS f (message_id, words) GROUP BY f.words;
    -- a row in flight is settled by its outcome
    UPDATE campaign_recipients AS r SET state = 'invalid', error_code = 'suppressed', message_id = NULL
    FROM unnest(campaigns, numbers, mails) AS f (campaign_id, number, message_id)
    WHERE r.campaign_id = f.campaign_id AND r.number = f.number AND r.message_id = f.message_id
        AND r.state IN ('queued', 'deferred')
        AND NOT EXISTS (SELECT FROM queue AS q WHERE q.message_id = f.message_id);
    RETURN NULL;
END $$;
COMMENT ON FUNCTION campaign_suppressed IS
    'Withdraws mail of campaigns that waits for suppressed addresses. An attempt whose transaction has not begun does not '
    'begin any more. A row that another transaction has locked is left to campaign_withdraw(), or to its next attempt, which '
    'is refused.';
CREATE TRIGGER suppressions_added_withdraw AFTER INSERT ON suppressions REFERENCING NEW TABLE AS added
    FOR EACH STATEMENT EXECUTE FUNCTION campaign_suppressed();
CREATE TRIGGER suppressions_changed_withdraw AFTER UPDATE ON suppressions REFERENCING NEW TABLE AS added
    FOR EACH STATEMENT EXECUTE FUNCTION campaign_suppressed();
COMMENT ON TRIGGER suppressions_added_withdraw ON suppressions IS 'Whoever suppresses withdraws.';
COMMENT ON TRIGGER suppressions_changed_withdraw ON suppressions IS 'Also after a release.';

CREATE FUNCTION campaign_recipient(campaign bigint, number bigint, day date)
RETURNS TABLE (address text, tenant text, scope text, mail text) LANGUAGE sql STABLE
    SET search_path = pgmta, pg_catalog, pg_temp AS $$
    -- number 0 is a test message; a person who had to be forgotten has no address here
    SELECT r.recipient, c.tenant, c.scope, format('campaign %s recipient %s', c.id, r.number)
    FROM campaigns AS c LEFT JOIN campaign_recipients AS r ON r.campaign_id = c.id AND r.number = campaign_recipient.number
    WHERE c.id = campaign AND (r.recipient IS NOT NULL OR campaign_recipient.number <= 0)
$$;
COMMENT ON FUNCTION campaign_recipient IS 'The recipient whom a link of a campaign names.';

CREATE OR REPLACE FUNCTION suppression_message(source text) RETURNS bigint STABLE
RETURN coalesce(substring(source FROM 'message ([0-9]{1,18})$')::bigint, (
    SELECT r.message_id FROM regexp_match(source, 'campaign ([0-9]{1,18}) recipient ([0-9]{1,9})$') AS p (path)
        JOIN campaign_recipients AS r ON r.campaign_id = path[1]::bigint AND r.number = path[2]::bigint));

CREATE FUNCTION campaign_reaction(campaign bigint, number bigint, reason text) RETURNS void LANGUAGE sql
    SET search_path = pgmta, pg_catalog, pg_temp AS $$
    UPDATE campaign_recipients AS r SET unsubscribed = r.unsubscribed OR reason = 'unsubscribed',
        complained = r.complained OR reason = 'complained'
    WHERE r.campaign_id = campaign AND r.number = campaign_reaction.number
        AND NOT CASE reason WHEN 'unsubscribed' THEN r.unsubscribed ELSE r.complained END
$$;
COMMENT ON FUNCTION campaign_reaction IS 'Marks a recipient of a campaign who unsubscribed or complained by its link.';
INSERT INTO link_recipients (function, taker) VALUES ('campaign_recipient', 'campaign_reaction');

CREATE FUNCTION campaign_returned() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pgmta, pg_catalog, pg_temp AS $$
DECLARE
    path CONSTANT bigint[] := campaign_path(NEW.metadata);
    now_bounced CONSTANT boolean := returned_for_good(NEW.class, NEW.returned);
    now_complained CONSTANT boolean := NEW.complained_at IS DISTINCT FROM OLD.complained_at;
BEGIN
    UPDATE campaign_recipients AS r SET bounced = r.bounced OR now_bounced, complained = r.complained OR now_complained
    WHERE r.campaign_id = path[1] AND r.number = path[2] AND r.recipient = NEW.recipient
        AND (now_bounced AND NOT r.bounced OR now_complained AND NOT r.complained);
    RETURN NULL;
END $$;
COMMENT ON FUNCTION campaign_returned IS
    'Marks a recipient of a campaign whose mail came back for good, or who complained about it.';
-- All who write outcomes lock suppressions, then recipients of campaigns. At the commit no suppression is to come any more.
CREATE CONSTRAINT TRIGGER returned_campaign AFTER UPDATE OF returned_at, complained_at ON attempts
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW
    WHEN (NEW.metadata ? '_campaign'
        AND (NEW.returned_at, NEW.class, NEW.complained_at) IS DISTINCT FROM (OLD.returned_at, OLD.class, OLD.complained_at))
    EXECUTE FUNCTION campaign_returned();
COMMENT ON TRIGGER returned_campaign ON attempts IS 'A hard bounce or a complaint that comes later counts in its campaign too.';

INSERT INTO forget_columns (relation, names, way, condition) VALUES
    ('campaign_recipients', '{recipient}', 'waits', 'mailbox_key(t.recipient) <> %1$L
        AND t.state IN (''unsent'', ''queued'', ''deferred'')'),
    ('campaign_recipients', '{recipient}', 'words', 'mailbox_key(t.recipient) <> %1$L
        AND t.state NOT IN (''unsent'', ''queued'', ''deferred'')'),
    ('campaign_templates', '{reason}', 'words', 'true'),
    ('campaigns', '{credential,sender,halted_reason}', 'named', 'true');

CREATE FUNCTION forget_campaigns(part text) RETURNS SETOF text LANGUAGE sql STABLE SET search_path = pgmta, pg_catalog, pg_temp
    AS $$ SELECT concat(part, ' ', c.id) FROM campaigns AS c $$;
COMMENT ON FUNCTION forget_campaigns IS 'The campaigns, each a part of forget().';
INSERT INTO forget_functions (name, place, function, names) VALUES ('campaign', 3, 'forget_recipients', 'forget_campaigns');

CREATE FUNCTION forget_recipients(key text, part text, dry boolean) RETURNS jsonb LANGUAGE plpgsql
    SET search_path = pgmta, pg_catalog, pg_temp AS $$
DECLARE
    campaign CONSTANT bigint := substr(part, 10);
    number bigint;
BEGIN
    IF dry THEN
        SELECT count(*) INTO number FROM campaign_recipients AS r
        WHERE r.campaign_id = campaign AND mailbox_key(r.recipient) = key;
    ELSE
        -- counts of mail that was sent stay: only unsent recipients become invalid
        UPDATE campaign_recipients AS r SET recipient = '', domain = '', params = '{}',
            state = CASE WHEN r.state IN ('unsent', 'queued', 'deferred') THEN 'invalid' ELSE r.state END,
            error_code = CASE WHEN r.state IN ('unsent', 'queued', 'deferred') THEN 'suppressed' ELSE r.error_code END
        WHERE r.campaign_id = campaign AND mailbox_key(r.recipient) = key
            AND NOT (r.state IN ('queued', 'deferred') AND EXISTS (
                SELECT FROM queue AS q WHERE q.message_id = r.message_id));
        GET DIAGNOSTICS number = ROW_COUNT;
    END IF;
    RETURN jsonb_build_object('recipients of campaigns', number);
END $$;
COMMENT ON FUNCTION forget_recipients IS 'The part of forget() for a campaign: its books keep a line without an address.';

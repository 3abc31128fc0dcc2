-- Campaigns: one message to many recipients, their outcomes, and exact counts of these.

CREATE TABLE campaigns (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    tenant text COLLATE "C" NOT NULL DEFAULT '' CONSTRAINT campaigns_tenant CHECK (
        octet_length(tenant) <= 64 AND tenant ~ '^([A-Za-z0-9][A-Za-z0-9._@+-]*)?$'),
    name text COLLATE "C" NOT NULL CONSTRAINT campaigns_name CHECK (
        length(name) <= 64 AND name ~ '^[A-Za-z][A-Za-z0-9._-]*( [A-Za-z0-9._-]+)*$'),
    credential text COLLATE "C" NOT NULL CONSTRAINT campaigns_credential CHECK (
        credential ~ '^[A-Za-z0-9][A-Za-z0-9._@-]{0,63}$'),
    template_id bigint NOT NULL CONSTRAINT campaigns_template REFERENCES templates,
    sender text NOT NULL,
    scope text COLLATE "C" NOT NULL DEFAULT '' CONSTRAINT campaigns_scope CHECK (scope ~ '^([A-Za-z0-9][A-Za-z0-9._-]{0,63})?$'),
    priority smallint NOT NULL DEFAULT 7 CONSTRAINT campaigns_priority CHECK (priority BETWEEN 0 AND 9),
    visible_at timestamptz,
    deadline timestamptz,
    opens time,
    closes time,
    days smallint[] CONSTRAINT campaigns_days CHECK (days <@ '{1,2,3,4,5,6,7}' AND cardinality(days) > 0),
    zone text COLLATE "C" CONSTRAINT campaigns_zone CHECK (zone ~ '^[A-Za-z0-9_+/-]{1,64}$'),
    zone_column text CONSTRAINT campaigns_zone_column CHECK (octet_length(zone_column) BETWEEN 1 AND 256),
    halted_at timestamptz,
    halted_reason text,
    forgiven bigint NOT NULL DEFAULT 0,
    created_at timestamptz NOT NULL DEFAULT now(),
    created_by text NOT NULL DEFAULT acting(),
    CONSTRAINT campaigns_window CHECK (CASE WHEN opens IS NULL THEN num_nonnulls(closes, days, zone, zone_column) = 0
        ELSE num_nonnulls(closes, days, zone) = 3 AND opens <> closes END),
    CONSTRAINT campaigns_tenant_name UNIQUE (tenant, name)
);
COMMENT ON SEQUENCE campaigns_id_seq IS 'campaigns.id.';
COMMENT ON INDEX campaigns_tenant_name IS 'Campaigns by name.';
COMMENT ON CONSTRAINT campaigns_tenant_name ON campaigns IS 'A name once for each tenant.';
COMMENT ON TABLE campaigns IS 'One message to many recipients. Its sums outlive the recipients.';
COMMENT ON COLUMN campaigns.id IS 'The number of the campaign.';
COMMENT ON COLUMN campaigns.tenant IS 'As messages.tenant.';
COMMENT ON COLUMN campaigns.name IS 'Its name, which is unique for a tenant.';
COMMENT ON COLUMN campaigns.credential IS
    'Name of what it sends with; one campaign uses it at a time. Its rate is the budget credential:NAME.';
COMMENT ON COLUMN campaigns.template_id IS 'templates.id, one version of a template.';
COMMENT ON COLUMN campaigns.sender IS 'The reverse-path.';
COMMENT ON COLUMN campaigns.scope IS 'The kind of mail that suppressions name; empty: only suppressions of all kinds count.';
COMMENT ON COLUMN campaigns.priority IS 'As queue.priority.';
COMMENT ON COLUMN campaigns.visible_at IS 'It begins at this time; null: at once.';
COMMENT ON COLUMN campaigns.deadline IS 'Mail that is not sent by then fails.';
COMMENT ON COLUMN campaigns.opens IS 'Its mail begins from this time of a day on; null: at any time.';
COMMENT ON COLUMN campaigns.closes IS 'And before this one, which is of the next day if it is less.';
COMMENT ON COLUMN campaigns.days IS 'Days of the week on which it opens: 1 is Monday, 7 is Sunday.';
COMMENT ON COLUMN campaigns.zone IS 'The time zone of these times and days.';
COMMENT ON COLUMN campaigns.zone_column IS
    'The column of its lists with the time zone of each recipient; null: all have that of the campaign.';
COMMENT ON COLUMN campaigns.halted_at IS 'When too many of its recipients bounced, which stopped its jobs.';
COMMENT ON COLUMN campaigns.halted_reason IS 'Why, with the numbers.';
COMMENT ON COLUMN campaigns.forgiven IS 'Bounces that no longer count, because an operator went on.';
COMMENT ON COLUMN campaigns.created_at IS 'When it was made.';
COMMENT ON COLUMN campaigns.created_by IS 'The login that made it.';
COMMENT ON CONSTRAINT campaigns_template ON campaigns IS 'Its version of a template stays as long as the campaign.';
COMMENT ON CONSTRAINT campaigns_tenant ON campaigns IS 'As submit() takes it.';
COMMENT ON CONSTRAINT campaigns_name ON campaigns IS
    'A letter, then up to 63 letters, digits and . _ -, or single blanks within.';
COMMENT ON CONSTRAINT campaigns_credential ON campaigns IS '1 to 64 letters, digits and . _ @ -';
COMMENT ON CONSTRAINT campaigns_scope ON campaigns IS 'Up to 64 letters, digits and . _ -, or empty.';
COMMENT ON CONSTRAINT campaigns_priority ON campaigns IS '0 to 9.';
COMMENT ON CONSTRAINT campaigns_days ON campaigns IS 'At least one of 1 (Monday) to 7 (Sunday).';
COMMENT ON CONSTRAINT campaigns_zone ON campaigns IS 'Letters, digits and _ + - /';
COMMENT ON CONSTRAINT campaigns_zone_column ON campaigns IS 'Up to 256 octets.';
COMMENT ON CONSTRAINT campaigns_window ON campaigns IS 'Times that differ, days and a time zone, or nothing of these.';

CREATE TABLE campaign_recipients (
    campaign_id bigint NOT NULL,
    number integer NOT NULL CONSTRAINT campaign_recipients_number CHECK (number BETWEEN 1 AND 1000000000),
    recipient text NOT NULL,
    domain text COLLATE "C" NOT NULL,
    params jsonb NOT NULL DEFAULT '{}',
    state text COLLATE "C" NOT NULL DEFAULT 'unsent' CONSTRAINT campaign_recipients_state CHECK (
        state IN ('unsent', 'queued', 'deferred', 'sent', 'failed', 'invalid', 'unknown')),
    bounced boolean NOT NULL DEFAULT false,
    unsubscribed boolean NOT NULL DEFAULT false,
    complained boolean NOT NULL DEFAULT false,
    message_id bigint,
    sent_at timestamptz,
    answered_at timestamptz,
    error_code text,
    error_sub_type text,
    zone text COLLATE "C" CONSTRAINT campaign_recipients_zone CHECK (zone ~ '^[A-Za-z0-9_+/-]{1,64}$'),
    CONSTRAINT campaign_recipients_sizes CHECK (
        octet_length(recipient) <= 254 AND octet_length(domain) <= 255 AND pg_column_size(params) <= 200000),
    PRIMARY KEY (campaign_id, number)
) WITH (
    -- each recipient changes twice, and with it the index of recipients in the queue
    fillfactor = 50, autovacuum_vacuum_scale_factor = 0.1, autovacuum_vacuum_cost_delay = 0
);
CREATE INDEX campaign_recipients_queued ON campaign_recipients (campaign_id, state, number)
    WHERE state IN ('queued', 'deferred');
CREATE INDEX campaign_recipients_zone ON campaign_recipients (campaign_id, zone, number) WHERE zone IS NOT NULL;
CREATE INDEX campaign_recipients_failures ON campaign_recipients (campaign_id, state, error_sub_type, error_code)
    WHERE state IN ('failed', 'invalid', 'unknown', 'deferred');
COMMENT ON TABLE campaign_recipients IS 'The recipients of campaigns, and what became of each.';
COMMENT ON COLUMN campaign_recipients.campaign_id IS 'campaigns.id.';
COMMENT ON COLUMN campaign_recipients.number IS 'From 1, in the order of the import.';
COMMENT ON COLUMN campaign_recipients.recipient IS 'The mailbox or telephone number.';
COMMENT ON COLUMN campaign_recipients.domain IS 'Its domain, as queue.domain.';
COMMENT ON COLUMN campaign_recipients.params IS 'The words of the template.';
COMMENT ON COLUMN campaign_recipients.state IS
    'unsent; queued: in the queue; deferred: in the queue after a first attempt; or the outcome: sent, failed, invalid (not '
    'to be sent), unknown.';
COMMENT ON COLUMN campaign_recipients.bounced IS 'There is no such mailbox, by the next hop or by a later DSN.';
COMMENT ON COLUMN campaign_recipients.unsubscribed IS 'A link of the campaign unsubscribed the recipient.';
COMMENT ON COLUMN campaign_recipients.complained IS 'The recipient complained about mail of the campaign.';
COMMENT ON COLUMN campaign_recipients.message_id IS 'messages.id of its last mail.';
COMMENT ON COLUMN campaign_recipients.sent_at IS 'When a worker picked the mail for its last attempt.';
COMMENT ON COLUMN campaign_recipients.answered_at IS 'When the next hop had answered, or a provider reported the outcome.';
COMMENT ON COLUMN campaign_recipients.error_code IS
    'The SMTP reply code of a failure, the error code of a provider or the status of HTTP, or a word such as suppressed.';
COMMENT ON COLUMN campaign_recipients.error_sub_type IS
    'The enhanced status code and the answer class of a failure, or the sub type of the provider.';
COMMENT ON COLUMN campaign_recipients.zone IS 'The time zone of the recipient, if its campaign has a column for it.';
COMMENT ON CONSTRAINT campaign_recipients_zone ON campaign_recipients IS 'As campaigns.zone.';
COMMENT ON CONSTRAINT campaign_recipients_number ON campaign_recipients IS 'From 1 to 1,000,000,000.';
COMMENT ON CONSTRAINT campaign_recipients_sizes ON campaign_recipients IS
    'Those of a mailbox, of a domain, and far over 65,536 octets of words: one row that does not fit the queue would stop '
    'the feed.';
COMMENT ON CONSTRAINT campaign_recipients_state ON campaign_recipients IS 'The states that the column names.';
COMMENT ON INDEX campaign_recipients_queued IS
    'What a campaign has in the queue. The feed counts those before their first attempt, beside many that are deferred.';
COMMENT ON INDEX campaign_recipients_zone IS 'The feed finds the recipients of a time zone, which may be few.';
COMMENT ON INDEX campaign_recipients_failures IS 'Sums of failures: campaign_failures.';

CREATE TABLE campaign_counts (
    campaign_id bigint NOT NULL,
    slot smallint NOT NULL,
    unsent bigint NOT NULL DEFAULT 0,
    queued bigint NOT NULL DEFAULT 0,
    deferred bigint NOT NULL DEFAULT 0,
    sent bigint NOT NULL DEFAULT 0,
    failed bigint NOT NULL DEFAULT 0,
    invalid bigint NOT NULL DEFAULT 0,
    unknown bigint NOT NULL DEFAULT 0,
    bounced bigint NOT NULL DEFAULT 0,
    unsubscribed bigint NOT NULL DEFAULT 0,
    complained bigint NOT NULL DEFAULT 0,
    PRIMARY KEY (campaign_id, slot)
) WITH (fillfactor = 20);
COMMENT ON TABLE campaign_counts IS
    'How many recipients of a campaign are in each state: the sum over its slots. Triggers of campaign_recipients keep it, and '
    'recipients that expire stay counted.';
COMMENT ON COLUMN campaign_counts.campaign_id IS 'campaigns.id.';
COMMENT ON COLUMN campaign_counts.slot IS 'So that processes of PostgreSQL seldom wait for each other.';
COMMENT ON COLUMN campaign_counts.unsent IS 'Recipients in this state; one slot alone may be below 0.';
COMMENT ON COLUMN campaign_counts.queued IS 'Likewise.';
COMMENT ON COLUMN campaign_counts.deferred IS 'Likewise.';
COMMENT ON COLUMN campaign_counts.sent IS 'Likewise.';
COMMENT ON COLUMN campaign_counts.failed IS 'Likewise.';
COMMENT ON COLUMN campaign_counts.invalid IS 'Likewise.';
COMMENT ON COLUMN campaign_counts.unknown IS 'Likewise.';
COMMENT ON COLUMN campaign_counts.bounced IS 'Recipients with `bounced`, whatever their state.';
COMMENT ON COLUMN campaign_counts.unsubscribed IS 'Likewise.';
COMMENT ON COLUMN campaign_counts.complained IS 'Likewise.';

CREATE FUNCTION campaign_recipients_count() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pgmta, pg_catalog, pg_temp AS $$
BEGIN
    -- a trigger may name only the rows that its event has
    IF TG_OP = 'INSERT' THEN
        PERFORM campaign_count(ARRAY(
            SELECT (r.campaign_id, r.state, r.bounced, r.unsubscribed, r.complained, count(*))::campaign_change
            FROM after AS r GROUP BY r.campaign_id, r.state, r.bounced, r.unsubscribed, r.complained));
    ELSIF TG_OP = 'DELETE' THEN
        PERFORM campaign_count(ARRAY(
            SELECT (r.campaign_id, r.state, r.bounced, r.unsubscribed, r.complained, -count(*))::campaign_change
            FROM before AS r GROUP BY r.campaign_id, r.state, r.bounced, r.unsubscribed, r.complained));
    ELSE
        PERFORM campaign_count(ARRAY(
            SELECT (r.campaign_id, r.state, r.bounced, r.unsubscribed, r.complained, sum(r.n))::campaign_change
            FROM (SELECT campaign_id, state, bounced, unsubscribed, complained, 1 AS n FROM after UNION ALL
                SELECT campaign_id, state, bounced, unsubscribed, complained, -1 FROM before) AS r
            GROUP BY r.campaign_id, r.state, r.bounced, r.unsubscribed, r.complained));
    END IF;
    RETURN NULL;
END $$;
COMMENT ON FUNCTION campaign_recipients_count IS 'Keeps campaign_counts: whatever changes a recipient changes its count.';

CREATE TYPE campaign_change AS (
    campaign_id bigint, state text, bounced boolean, unsubscribed boolean, complained boolean, number bigint);
COMMENT ON TYPE campaign_change IS 'So many more recipients of a campaign are in this state.';

CREATE FUNCTION campaign_count(changes campaign_change[]) RETURNS void LANGUAGE sql
    SET search_path = pgmta, pg_catalog, pg_temp AS $$
    INSERT INTO campaign_counts AS c (campaign_id, slot, unsent, queued, deferred, sent, failed, invalid, unknown, bounced,
        unsubscribed, complained)
    SELECT n.campaign_id, pg_backend_pid() % 64,
        coalesce(sum(n.number) FILTER (WHERE n.state = 'unsent'), 0),
        coalesce(sum(n.number) FILTER (WHERE n.state = 'queued'), 0),
        coalesce(sum(n.number) FILTER (WHERE n.state = 'deferred'), 0),
        coalesce(sum(n.number) FILTER (WHERE n.state = 'sent'), 0),
        coalesce(sum(n.number) FILTER (WHERE n.state = 'failed'), 0),
        coalesce(sum(n.number) FILTER (WHERE n.state = 'invalid'), 0),
        coalesce(sum(n.number) FILTER (WHERE n.state = 'unknown'), 0), coalesce(sum(n.number) FILTER (WHERE n.bounced), 0),
        coalesce(sum(n.number) FILTER (WHERE n.unsubscribed), 0), coalesce(sum(n.number) FILTER (WHERE n.complained), 0)
    FROM unnest(changes) AS n
    GROUP BY n.campaign_id
    HAVING bool_or(n.number <> 0)
    ORDER BY n.campaign_id  -- all lock in this order
    ON CONFLICT ON CONSTRAINT campaign_counts_pkey DO UPDATE SET unsent = c.unsent + excluded.unsent,
        queued = c.queued + excluded.queued, deferred = c.deferred + excluded.deferred, sent = c.sent + excluded.sent,
        failed = c.failed + excluded.failed, invalid = c.invalid + excluded.invalid, unknown = c.unknown + excluded.unknown,
        bounced = c.bounced + excluded.bounced, unsubscribed = c.unsubscribed + excluded.unsubscribed,
        complained = c.complained + excluded.complained
$$;
COMMENT ON FUNCTION campaign_count IS 'Adds changes of states to campaign_counts.';

CREATE TRIGGER campaign_recipients_added AFTER INSERT ON campaign_recipients REFERENCING NEW TABLE AS after
    FOR EACH STATEMENT EXECUTE FUNCTION campaign_recipients_count();
CREATE TRIGGER campaign_recipients_changed AFTER UPDATE ON campaign_recipients
    REFERENCING OLD TABLE AS before NEW TABLE AS after FOR EACH STATEMENT EXECUTE FUNCTION campaign_recipients_count();
CREATE TRIGGER campaign_recipients_removed AFTER DELETE ON campaign_recipients REFERENCING OLD TABLE AS before
    FOR EACH STATEMENT EXECUTE FUNCTION campaign_recipients_count();
COMMENT ON TRIGGER campaign_recipients_added ON campaign_recipients IS 'Keeps the counts.';
COMMENT ON TRIGGER campaign_recipients_changed ON campaign_recipients IS 'Keeps the counts.';
COMMENT ON TRIGGER campaign_recipients_removed ON campaign_recipients IS 'Keeps the counts.';

CREATE VIEW campaign_sums AS
SELECT campaign_id, sum(unsent) AS unsent, sum(queued) AS queued, sum(deferred) AS deferred, sum(sent) AS sent,
    sum(failed) AS failed, sum(invalid) AS invalid, sum(unknown) AS unknown, sum(bounced) AS bounced,
    sum(unsubscribed) AS unsubscribed, sum(complained) AS complained
FROM campaign_counts GROUP BY campaign_id;
COMMENT ON VIEW campaign_sums IS 'The recipients of each campaign by state.';
COMMENT ON COLUMN campaign_sums.campaign_id IS 'campaigns.id.';
COMMENT ON COLUMN campaign_sums.unsent IS 'Recipients that are not in the queue yet.';
COMMENT ON COLUMN campaign_sums.queued IS 'In the queue, before their first attempt ended.';
COMMENT ON COLUMN campaign_sums.deferred IS 'In the queue after a first attempt.';
COMMENT ON COLUMN campaign_sums.sent IS 'The next hop took them.';
COMMENT ON COLUMN campaign_sums.failed IS 'Refused for good.';
COMMENT ON COLUMN campaign_sums.invalid IS 'Not to be sent, for example suppressed.';
COMMENT ON COLUMN campaign_sums.unknown IS 'The next hop may have them.';
COMMENT ON COLUMN campaign_sums.bounced IS 'There is no such mailbox.';
COMMENT ON COLUMN campaign_sums.unsubscribed IS 'By a link of the campaign.';
COMMENT ON COLUMN campaign_sums.complained IS 'About mail of the campaign.';

CREATE TABLE campaign_expired_failures (
    campaign_id bigint NOT NULL REFERENCES campaigns ON DELETE CASCADE,
    state text COLLATE "C" NOT NULL,
    error_code text NOT NULL,
    error_sub_type text NOT NULL,
    number bigint NOT NULL,
    PRIMARY KEY (campaign_id, state, error_sub_type, error_code)
);
COMMENT ON TABLE campaign_expired_failures IS 'Sums of failures whose recipients are gone.';
COMMENT ON COLUMN campaign_expired_failures.campaign_id IS 'campaigns.id.';
COMMENT ON COLUMN campaign_expired_failures.state IS 'As campaign_recipients.state.';
COMMENT ON COLUMN campaign_expired_failures.error_code IS 'As campaign_recipients.error_code; empty: null there.';
COMMENT ON COLUMN campaign_expired_failures.error_sub_type IS 'Likewise.';
COMMENT ON COLUMN campaign_expired_failures.number IS 'How many recipients.';

CREATE VIEW campaign_failures AS
SELECT campaign_id, state,
    CASE WHEN error_sub_type ~ '^[245][.][0-9]+[.][0-9]+( |$)'
        THEN substring(error_sub_type FROM ' (.*)') ELSE error_sub_type END
        AS class,
    nullif(concat_ws(' ', error_code, substring(error_sub_type FROM '^[245][.][0-9]+[.][0-9]+(?= |$)')), '') AS code,
    sum(number) AS number
FROM (
    SELECT r.campaign_id, r.state, r.error_code, r.error_sub_type, count(*) AS number FROM campaign_recipients AS r
    WHERE r.state IN ('failed', 'invalid', 'unknown', 'deferred')
    GROUP BY r.campaign_id, r.state, r.error_sub_type, r.error_code
    UNION ALL
    SELECT e.campaign_id, e.state, nullif(e.error_code, ''), nullif(e.error_sub_type, ''), e.number
    FROM campaign_expired_failures AS e) AS f
GROUP BY 1, 2, 3, 4;
COMMENT ON VIEW campaign_failures IS
    'Failures of each campaign: how many recipients have a state, class and code.';
COMMENT ON COLUMN campaign_failures.campaign_id IS 'campaigns.id.';
COMMENT ON COLUMN campaign_failures.state IS 'failed, invalid, unknown or deferred.';
COMMENT ON COLUMN campaign_failures.class IS 'The answer class, or the sub type of a provider.';
COMMENT ON COLUMN campaign_failures.code IS 'campaign_recipients.error_code, and the enhanced status code.';
COMMENT ON COLUMN campaign_failures.number IS 'How many recipients.';

CREATE TABLE campaign_alarms (
    campaign_id bigint PRIMARY KEY REFERENCES campaigns ON DELETE CASCADE,
    reason text NOT NULL
);
COMMENT ON TABLE campaign_alarms IS 'Campaigns that the next look has to halt, because a commit found too many bounces.';
COMMENT ON COLUMN campaign_alarms.campaign_id IS 'campaigns.id.';
COMMENT ON COLUMN campaign_alarms.reason IS 'Why, with the numbers of that commit.';

CREATE FUNCTION campaign_excess(campaign bigint)
    RETURNS text LANGUAGE sql STABLE SET search_path = pgmta, pg_catalog, pg_temp AS $$
    SELECT format('%s of %s answers are hard bounces', s.bounced - c.forgiven, s.sent + s.failed)
    FROM campaigns AS c JOIN campaign_sums AS s ON s.campaign_id = c.id
    WHERE c.id = campaign AND c.halted_at IS NULL AND s.bounced - c.forgiven > 10
        AND (s.bounced - c.forgiven) * 10 > s.sent + s.failed
$$;
COMMENT ON FUNCTION campaign_excess IS 'Why a campaign has to be halted; null if it has not.';

CREATE FUNCTION campaign_counts_bounces() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pgmta, pg_catalog, pg_temp AS $$
DECLARE
    excess text;
BEGIN
    -- With less than half of the share that halts, what others commit at the same time does not matter, and nobody waits.
    PERFORM FROM campaigns AS c JOIN campaign_sums AS s ON s.campaign_id = c.id
    WHERE c.id = NEW.campaign_id AND (s.bounced - c.forgiven) * 20 > s.sent + s.failed;
    IF NOT FOUND THEN
        RETURN NULL;
    END IF;
    -- Such commits come one after the other, so that each sees the bounces of all before it. The lock is the last one of a
    -- transaction, and one for all campaigns, so that two transactions never wait for each other.
    PERFORM pg_advisory_xact_lock('campaign_alarms'::regclass::oid::bigint);
    excess := campaign_excess(NEW.campaign_id);
    IF excess IS NOT NULL THEN
        INSERT INTO campaign_alarms (campaign_id, reason)
        SELECT NEW.campaign_id, excess
        WHERE EXISTS (SELECT FROM campaign_jobs AS j WHERE j.campaign_id = NEW.campaign_id AND j.status <> 'LOGGED')
        ON CONFLICT DO NOTHING;
    END IF;
    RETURN NULL;
END $$;
COMMENT ON FUNCTION campaign_counts_bounces IS
    'Notes at the commit of bounces that a campaign has too many: answers that come before the next look do not hide it.';
CREATE CONSTRAINT TRIGGER campaign_counts_first_bounces AFTER INSERT ON campaign_counts DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW WHEN (NEW.bounced > 0) EXECUTE FUNCTION campaign_counts_bounces();
CREATE CONSTRAINT TRIGGER campaign_counts_more_bounces AFTER UPDATE ON campaign_counts DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW WHEN (NEW.bounced > OLD.bounced) EXECUTE FUNCTION campaign_counts_bounces();
COMMENT ON TRIGGER campaign_counts_first_bounces ON campaign_counts IS 'Looks at each commit that counts bounces.';
COMMENT ON TRIGGER campaign_counts_more_bounces ON campaign_counts IS 'Looks at each commit that counts bounces.';

CREATE TABLE campaign_templates (
    campaign_id bigint NOT NULL REFERENCES campaigns ON DELETE CASCADE,
    first_message bigint NOT NULL,
    template_id bigint NOT NULL CONSTRAINT campaign_templates_template REFERENCES templates,
    reason text CONSTRAINT campaign_templates_reason CHECK (length(reason) BETWEEN 1 AND 500 AND reason !~ '[[:cntrl:]]'),
    at timestamptz NOT NULL DEFAULT now(),
    by text NOT NULL DEFAULT acting(),
    PRIMARY KEY (campaign_id, first_message)
);
COMMENT ON TABLE campaign_templates IS 'The templates that a campaign had: one after the other.';
COMMENT ON COLUMN campaign_templates.campaign_id IS 'campaigns.id.';
COMMENT ON COLUMN campaign_templates.first_message IS
    'Mail with this id, and later mail, has the template; before the next row of the campaign.';
COMMENT ON COLUMN campaign_templates.template_id IS 'templates.id.';
COMMENT ON COLUMN campaign_templates.reason IS 'Why it was exchanged; null: when the campaign was made, or before its start.';
COMMENT ON COLUMN campaign_templates.at IS 'From when on.';
COMMENT ON COLUMN campaign_templates.by IS 'The login that chose it.';
COMMENT ON CONSTRAINT campaign_templates_template ON campaign_templates IS
    'The version that recipients had stays as long as the campaign.';
COMMENT ON CONSTRAINT campaign_templates_reason ON campaign_templates IS 'One line of up to 500 characters.';

CREATE VIEW campaign_recipient_versions AS
SELECT r.*, v.template, v.version
FROM campaign_recipients AS r LEFT JOIN (
    SELECT e.campaign_id, t.name AS template, t.version, e.first_message AS begins,
        lead(e.first_message) OVER (PARTITION BY e.campaign_id ORDER BY e.first_message) AS ends
    FROM campaign_templates AS e JOIN templates AS t ON t.id = e.template_id
) AS v ON v.campaign_id = r.campaign_id AND r.message_id >= v.begins AND (v.ends IS NULL OR r.message_id < v.ends);
COMMENT ON VIEW campaign_recipient_versions IS 'Recipients with the template and version of their mail; null if they had none.';
COMMENT ON COLUMN campaign_recipient_versions.campaign_id IS 'As campaign_recipients.campaign_id.';
COMMENT ON COLUMN campaign_recipient_versions.number IS 'As campaign_recipients.number.';
COMMENT ON COLUMN campaign_recipient_versions.recipient IS 'As campaign_recipients.recipient.';
COMMENT ON COLUMN campaign_recipient_versions.domain IS 'As campaign_recipients.domain.';
COMMENT ON COLUMN campaign_recipient_versions.params IS 'As campaign_recipients.params.';
COMMENT ON COLUMN campaign_recipient_versions.state IS 'As campaign_recipients.state.';
COMMENT ON COLUMN campaign_recipient_versions.bounced IS 'As campaign_recipients.bounced.';
COMMENT ON COLUMN campaign_recipient_versions.unsubscribed IS 'As campaign_recipients.unsubscribed.';
COMMENT ON COLUMN campaign_recipient_versions.complained IS 'As campaign_recipients.complained.';
COMMENT ON COLUMN campaign_recipient_versions.message_id IS 'As campaign_recipients.message_id.';
COMMENT ON COLUMN campaign_recipient_versions.sent_at IS 'As campaign_recipients.sent_at.';
COMMENT ON COLUMN campaign_recipient_versions.answered_at IS 'As campaign_recipients.answered_at.';
COMMENT ON COLUMN campaign_recipient_versions.error_code IS 'As campaign_recipients.error_code.';
COMMENT ON COLUMN campaign_recipient_versions.error_sub_type IS 'As campaign_recipients.error_sub_type.';
COMMENT ON COLUMN campaign_recipient_versions.zone IS 'As campaign_recipients.zone.';
COMMENT ON COLUMN campaign_recipient_versions.template IS 'Name of the template of the last mail.';
COMMENT ON COLUMN campaign_recipient_versions.version IS 'Its version.';

CREATE FUNCTION campaign_template(template text, version integer, tenant text) RETURNS templates LANGUAGE plpgsql STABLE
    SET search_path = pgmta, pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    found templates;
BEGIN
    SELECT t.* INTO found FROM templates AS t
    WHERE t.tenant IN (tenant COLLATE "C", '') AND t.name = template COLLATE "C" AND (version IS NULL OR t.version = version)
    ORDER BY t.tenant DESC, t.version DESC LIMIT 1;
    IF found.id IS NULL THEN
        PERFORM submit_no_template(template COLLATE "C", version, tenant);
    END IF;
    RETURN found;
END $$;
COMMENT ON FUNCTION campaign_template IS
    'A template by its name: of the tenant, or of none; without a version the newest. It refuses one that is not there.';

CREATE FUNCTION campaign_make(given campaigns, present timestamptz) RETURNS bigint LANGUAGE plpgsql
    SET search_path = pgmta, pg_catalog, pg_temp AS $$
DECLARE
    made campaigns;
    broken text;
    absent text;
BEGIN
    INSERT INTO campaigns (tenant, name, credential, template_id, sender, scope, priority, visible_at, deadline,
        opens, closes, days, zone, zone_column)
    VALUES (given.tenant, given.name, given.credential, given.template_id, given.sender, given.scope, given.priority,
        given.visible_at, given.deadline, given.opens, given.closes, given.days, given.zone, given.zone_column)
    RETURNING * INTO made;
    INSERT INTO campaign_templates (campaign_id, first_message, template_id) VALUES (made.id, 0, made.template_id);
    IF made.deadline <= present THEN
        PERFORM submit_refuse('deadline', 'it is over', NULL, 'Give a later time.');
    ELSIF made.deadline <= made.visible_at THEN
        PERFORM submit_refuse('deadline', 'the campaign begins no sooner', NULL, 'Give a later deadline, or an earlier begin.');
    END IF;
    PERFORM campaign_refuse_closed(made, made.zone, present);
    IF made.scope <> '' THEN PERFORM suppression_scope(made.scope, made.tenant); END IF;
    RETURN made.id;
EXCEPTION WHEN unique_violation THEN
    RAISE EXCEPTION 'there is a campaign % already', to_json(given.name) USING ERRCODE = 'unique_violation',
        HINT = 'Choose another name, or delete that campaign.';
WHEN check_violation OR not_null_violation THEN
    -- without DETAIL, which would have the values of the row
    GET STACKED DIAGNOSTICS broken = CONSTRAINT_NAME, absent = COLUMN_NAME;
    PERFORM submit_refuse(coalesce(nullif(absent, ''), substr(broken, length('campaigns_') + 1)),
        CASE WHEN broken = '' THEN 'it is null'
        ELSE 'it does not fit' END, NULL, (SELECT obj_description(c.oid, 'pg_constraint') FROM pg_constraint AS c
            WHERE c.conrelid = 'campaigns'::regclass AND c.conname = broken));
END $$;
COMMENT ON FUNCTION campaign_make IS 'Stores a new campaign, and returns its id.';

CREATE FUNCTION campaign_create(
    name text, credential text, template text, tenant text DEFAULT '', sender text DEFAULT NULL, scope text DEFAULT '',
    priority integer DEFAULT 7, visible_at timestamptz DEFAULT NULL, deadline timestamptz DEFAULT NULL,
    version integer DEFAULT NULL,
    opens time DEFAULT NULL, closes time DEFAULT NULL, days smallint[] DEFAULT NULL, zone text DEFAULT NULL,
    zone_column text DEFAULT NULL, present timestamptz DEFAULT clock_timestamp()
) RETURNS bigint LANGUAGE plpgsql SECURITY DEFINER SET search_path = pgmta, pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    found templates;
    given campaigns;
BEGIN
    IF num_nonnulls(opens, closes) = 1 OR opens IS NULL AND num_nonnulls(days, zone, zone_column) > 0 THEN
        PERFORM submit_refuse('opens', 'a window has the times at which it opens and closes', NULL,
            'Give both opens and closes.');
    ELSIF opens = closes THEN
        PERFORM submit_refuse('closes', 'it is the time at which the window opens', NULL, 'All day is 00:00 to 24:00.');
    ELSIF opens = '24:00' THEN
        PERFORM submit_refuse('opens', 'it is the end of a day', NULL, 'Write 00:00, of the next day.');
    ELSIF days = '{}' OR NOT days <@ '{1,2,3,4,5,6,7}' THEN
        PERFORM submit_refuse('days', 'they are no days of the week', NULL, 'Give some of 1 (Monday) to 7 (Sunday).');
    END IF;
    IF opens IS NOT NULL THEN zone := campaign_zone(coalesce(zone, 'UTC')); END IF;
    found := campaign_template(template, version, tenant);
    IF sender IS NOT NULL AND sender <> '' AND mailbox_domain(sender COLLATE "C") IS NULL THEN
        PERFORM submit_refuse('sender', 'it is no mailbox', NULL, 'Give a mailbox alone, or an empty text for none.');
    END IF;
    SELECT tenant, name, credential, found.id, coalesce(sender, found.sender), scope, priority, visible_at, deadline,
        opens, closes, CASE WHEN opens IS NOT NULL THEN coalesce(days, '{1,2,3,4,5,6,7}') END, zone, zone_column
    INTO given.tenant, given.name, given.credential, given.template_id, given.sender, given.scope, given.priority,
        given.visible_at, given.deadline, given.opens, given.closes, given.days, given.zone, given.zone_column;
    RETURN campaign_make(given, present);
END $$;
COMMENT ON FUNCTION campaign_create IS
    'Makes a campaign without recipients, and returns its id. It uses the newest version of the template, or the given one. '
    'With `opens` and `closes` its mail begins between these times alone, on `days` (1 is Monday; all of them without), '
    'in the time zone `zone` (UTC without) or in that which the column `zone_column` of a list has.';

INSERT INTO rights (object, role, privileges) VALUES
    ('campaign_templates', 'pgmta_operator', 'SELECT'),
    ('campaign_templates', 'pgmta_reader', 'SELECT'),
    ('campaign_recipient_versions', 'pgmta_operator', 'SELECT'),
    ('campaign_recipient_versions', 'pgmta_reader', 'SELECT'),
    ('campaigns', 'pgmta_operator', 'SELECT'),
    ('campaigns', 'pgmta_reader', 'SELECT'),
    ('campaign_recipients', 'pgmta_queued', 'MAINTAIN'),
    ('campaign_recipients', 'pgmta_operator',
        'SELECT, INSERT (campaign_id, number, recipient, domain, params, state, error_code, zone)'),
    ('campaign_recipients', 'pgmta_reader', 'SELECT'),
    ('campaign_counts', 'pgmta_operator', 'SELECT'),
    ('campaign_counts', 'pgmta_reader', 'SELECT'),
    ('campaign_alarms', 'pgmta_operator', 'SELECT'),
    ('campaign_alarms', 'pgmta_reader', 'SELECT'),
    ('campaign_expired_failures', 'pgmta_operator', 'SELECT'),
    ('campaign_expired_failures', 'pgmta_reader', 'SELECT'),
    ('campaign_failures', 'pgmta_operator', 'SELECT'),
    ('campaign_failures', 'pgmta_reader', 'SELECT'),
    ('campaign_sums', 'pgmta_operator', 'SELECT'),
    ('campaign_sums', 'pgmta_reader', 'SELECT'),
    ('campaign_sums', 'pgmta_queued', 'SELECT'),
    ('FUNCTION campaign_create', 'pgmta_operator', 'EXECUTE');

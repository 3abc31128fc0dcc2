-- Campaigns and their jobs.

SET LOCAL check_function_bodies = off;  -- functions may name later ones

-- Campaigns: one message to many recipients, their outcomes, and exact counts of these.

CREATE TABLE campaigns (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    tenant text COLLATE "C" NOT NULL DEFAULT '' CONSTRAINT campaigns_tenant CHECK (
        octet_length(tenant) <= 64 AND tenant ~ '^([A-Za-z0-9][A-Za-z0-9._@+-]*)?$'),
    name text COLLATE "C" NOT NULL CONSTRAINT campaigns_name CHECK (name ~ '^[A-Za-z][A-Za-z0-9._-]{0,63}$'),
    credential text COLLATE "C" NOT NULL CONSTRAINT campaigns_credential CHECK (
        credential ~ '^[A-Za-z0-9][A-Za-z0-9._@-]{0,63}$'),
    template_id bigint NOT NULL,
    sender text NOT NULL,
    scope text COLLATE "C" NOT NULL DEFAULT '' CONSTRAINT campaigns_scope CHECK (scope ~ '^([A-Za-z0-9][A-Za-z0-9._-]{0,63})?$'),
    priority smallint NOT NULL DEFAULT 7 CONSTRAINT campaigns_priority CHECK (priority BETWEEN 0 AND 9),
    visible_at timestamptz,
    deadline timestamptz,
    halted_at timestamptz,
    halted_reason text,
    forgiven bigint NOT NULL DEFAULT 0,
    totals jsonb,
    created_at timestamptz NOT NULL DEFAULT now(),
    created_by text NOT NULL DEFAULT SESSION_USER,
    CONSTRAINT campaigns_tenant_name UNIQUE (tenant, name)
);
COMMENT ON SEQUENCE campaigns_id_seq IS 'campaigns.id.';
COMMENT ON INDEX campaigns_tenant_name IS 'Campaigns by name.';
COMMENT ON CONSTRAINT campaigns_tenant_name ON campaigns IS 'A name once for each tenant.';
COMMENT ON TABLE campaigns IS 'One message to many recipients. Its totals outlive the recipients.';
COMMENT ON COLUMN campaigns.id IS 'The number of the campaign.';
COMMENT ON COLUMN campaigns.tenant IS 'As messages.tenant.';
COMMENT ON COLUMN campaigns.name IS 'Its name, which is unique for a tenant.';
COMMENT ON COLUMN campaigns.credential IS 'Name of what it sends with; one campaign uses it at a time. Its rate is the budget credential:NAME.';
COMMENT ON COLUMN campaigns.template_id IS 'templates.id, one version of a template.';
COMMENT ON COLUMN campaigns.sender IS 'The reverse-path.';
COMMENT ON COLUMN campaigns.scope IS 'The kind of mail that suppressions name; empty: only suppressions of all kinds count.';
COMMENT ON COLUMN campaigns.priority IS 'As queue.priority.';
COMMENT ON COLUMN campaigns.visible_at IS 'It begins at this time; null: at once.';
COMMENT ON COLUMN campaigns.deadline IS 'Mail that is not sent by then fails.';
COMMENT ON COLUMN campaigns.halted_at IS 'When too many of its recipients bounced, which stopped its jobs.';
COMMENT ON COLUMN campaigns.halted_reason IS 'Why, with the numbers.';
COMMENT ON COLUMN campaigns.forgiven IS 'Bounces that no longer count, because an operator went on.';
COMMENT ON COLUMN campaigns.totals IS 'The counts when its last job ended.';
COMMENT ON COLUMN campaigns.created_at IS 'When it was made.';
COMMENT ON COLUMN campaigns.created_by IS 'The login that made it.';
COMMENT ON CONSTRAINT campaigns_tenant ON campaigns IS 'As submit() takes it.';
COMMENT ON CONSTRAINT campaigns_name ON campaigns IS 'A letter, then up to 63 letters, digits and . _ -';
COMMENT ON CONSTRAINT campaigns_credential ON campaigns IS '1 to 64 letters, digits and . _ @ -';
COMMENT ON CONSTRAINT campaigns_scope ON campaigns IS 'Up to 64 letters, digits and . _ -, or empty.';
COMMENT ON CONSTRAINT campaigns_priority ON campaigns IS '0 to 9.';

CREATE TABLE campaign_recipients (
    campaign_id bigint NOT NULL,
    number integer NOT NULL CONSTRAINT campaign_recipients_number CHECK (number BETWEEN 1 AND 1000000000),
    recipient text NOT NULL,
    domain text COLLATE "C" NOT NULL,
    params jsonb NOT NULL DEFAULT '{}',
    state text COLLATE "C" NOT NULL DEFAULT 'unsent' CONSTRAINT campaign_recipients_state CHECK (
        state IN ('unsent', 'queued', 'deferred', 'sent', 'failed', 'invalid', 'unknown')),
    bounced boolean NOT NULL DEFAULT false,
    message_id bigint,
    sent_at timestamptz,
    answered_at timestamptz,
    error_code text,
    error_sub_type text,
    CONSTRAINT campaign_recipients_sizes CHECK (
        octet_length(recipient) <= 254 AND octet_length(domain) <= 255 AND pg_column_size(params) <= 200000),
    PRIMARY KEY (campaign_id, number)
) WITH (
    -- each recipient changes twice, and the index of those in the queue with it
    fillfactor = 50, autovacuum_vacuum_scale_factor = 0.1, autovacuum_vacuum_cost_delay = 0
);
CREATE INDEX campaign_recipients_queued ON campaign_recipients (campaign_id, state, number)
    WHERE state IN ('queued', 'deferred');
COMMENT ON TABLE campaign_recipients IS 'The recipients of campaigns, and what became of each.';
COMMENT ON COLUMN campaign_recipients.campaign_id IS 'campaigns.id.';
COMMENT ON COLUMN campaign_recipients.number IS 'From 1, in the order of the import.';
COMMENT ON COLUMN campaign_recipients.recipient IS 'The mailbox.';
COMMENT ON COLUMN campaign_recipients.domain IS 'Its domain, as queue.domain.';
COMMENT ON COLUMN campaign_recipients.params IS 'The words of the template.';
COMMENT ON COLUMN campaign_recipients.state IS
    'unsent; queued: in the queue; deferred: in the queue after a first attempt; or the outcome: sent, failed, invalid (not '
    'to be sent), unknown.';
COMMENT ON COLUMN campaign_recipients.bounced IS 'There is no such mailbox, by the next hop or by a later DSN.';
COMMENT ON COLUMN campaign_recipients.message_id IS 'messages.id of its last mail.';
COMMENT ON COLUMN campaign_recipients.sent_at IS 'When the next hop took it.';
COMMENT ON COLUMN campaign_recipients.answered_at IS 'When the outcome was written.';
COMMENT ON COLUMN campaign_recipients.error_code IS 'The SMTP reply code of a failure, or a word such as suppressed.';
COMMENT ON COLUMN campaign_recipients.error_sub_type IS 'The enhanced status code and the answer class of a failure.';
COMMENT ON CONSTRAINT campaign_recipients_number ON campaign_recipients IS 'From 1 to 1,000,000,000.';
COMMENT ON CONSTRAINT campaign_recipients_sizes ON campaign_recipients IS
    'Those of a mailbox, of a domain, and far over 65,536 octets of words: one row that does not fit the queue would stop the feed.';
COMMENT ON CONSTRAINT campaign_recipients_state ON campaign_recipients IS 'The states that the column names.';
COMMENT ON INDEX campaign_recipients_queued IS
    'What a campaign has in the queue. The feed counts those before their first attempt, beside many that are deferred.';

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
    PRIMARY KEY (campaign_id, slot)
) WITH (fillfactor = 20);
COMMENT ON TABLE campaign_counts IS
    'How many recipients of a campaign are in each state: the sum over its slots. Triggers of campaign_recipients keep it.';
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

CREATE FUNCTION campaign_recipients_count() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pgmta, pg_catalog, pg_temp AS $$
BEGIN
    -- a trigger may name only the rows that its event has
    IF TG_OP = 'INSERT' THEN
        PERFORM campaign_count(ARRAY(SELECT (r.campaign_id, r.state, r.bounced, count(*))::campaign_change
            FROM after AS r GROUP BY r.campaign_id, r.state, r.bounced));
    ELSIF TG_OP = 'DELETE' THEN
        PERFORM campaign_count(ARRAY(SELECT (r.campaign_id, r.state, r.bounced, -count(*))::campaign_change
            FROM before AS r GROUP BY r.campaign_id, r.state, r.bounced));
    ELSE
        PERFORM campaign_count(ARRAY(SELECT (r.campaign_id, r.state, r.bounced, sum(r.n))::campaign_change
            FROM (SELECT campaign_id, state, bounced, 1 AS n FROM after UNION ALL
                SELECT campaign_id, state, bounced, -1 FROM before) AS r
            GROUP BY r.campaign_id, r.state, r.bounced));
    END IF;
    RETURN NULL;
END $$;
COMMENT ON FUNCTION campaign_recipients_count IS 'Keeps campaign_counts: whatever changes a recipient changes its count.';

CREATE TYPE campaign_change AS (campaign_id bigint, state text, bounced boolean, number bigint);
COMMENT ON TYPE campaign_change IS 'So many more recipients of a campaign are in this state.';

CREATE FUNCTION campaign_count(changes campaign_change[]) RETURNS void LANGUAGE sql
    SET search_path = pgmta, pg_catalog, pg_temp AS $$
    INSERT INTO campaign_counts AS c (campaign_id, slot, unsent, queued, deferred, sent, failed, invalid, unknown, bounced)
    SELECT n.campaign_id, pg_backend_pid() % 64,
        coalesce(sum(n.number) FILTER (WHERE n.state = 'unsent'), 0), coalesce(sum(n.number) FILTER (WHERE n.state = 'queued'), 0),
        coalesce(sum(n.number) FILTER (WHERE n.state = 'deferred'), 0), coalesce(sum(n.number) FILTER (WHERE n.state = 'sent'), 0),
        coalesce(sum(n.number) FILTER (WHERE n.state = 'failed'), 0), coalesce(sum(n.number) FILTER (WHERE n.state = 'invalid'), 0),
        coalesce(sum(n.number) FILTER (WHERE n.state = 'unknown'), 0), coalesce(sum(n.number) FILTER (WHERE n.bounced), 0)
    FROM unnest(changes) AS n
    GROUP BY n.campaign_id
    HAVING bool_or(n.number <> 0)
    ORDER BY n.campaign_id  -- all lock in this order
    ON CONFLICT ON CONSTRAINT campaign_counts_pkey DO UPDATE SET unsent = c.unsent + excluded.unsent,
        queued = c.queued + excluded.queued, deferred = c.deferred + excluded.deferred, sent = c.sent + excluded.sent,
        failed = c.failed + excluded.failed, invalid = c.invalid + excluded.invalid, unknown = c.unknown + excluded.unknown,
        bounced = c.bounced + excluded.bounced
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

CREATE FUNCTION campaign_create(
    name text, credential text, template text, tenant text DEFAULT '', sender text DEFAULT NULL, scope text DEFAULT '',
    priority integer DEFAULT 7, visible_at timestamptz DEFAULT NULL, deadline timestamptz DEFAULT NULL, version integer DEFAULT NULL
) RETURNS bigint LANGUAGE plpgsql SECURITY DEFINER SET search_path = pgmta, pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    found templates;
    made bigint;
    broken text;
    absent text;
BEGIN
    SELECT t.* INTO found FROM templates AS t
    WHERE t.tenant IN (tenant COLLATE "C", '') AND t.name = template COLLATE "C" AND (version IS NULL OR t.version = version)
    ORDER BY t.tenant DESC, t.version DESC LIMIT 1;
    IF found.id IS NULL THEN
        PERFORM submit_no_template(template COLLATE "C", version, tenant);
    ELSIF sender IS NOT NULL AND sender <> '' AND mailbox_domain(sender COLLATE "C") IS NULL THEN
        PERFORM submit_refuse('sender', 'it is no mailbox', NULL, 'Give a mailbox alone, or an empty text for none.');
    ELSIF deadline IS NOT NULL AND deadline <= now() THEN
        PERFORM submit_refuse('deadline', 'it is over', NULL, 'Give a later time.');
    END IF;
    INSERT INTO campaigns (tenant, name, credential, template_id, sender, scope, priority, visible_at, deadline)
    VALUES (tenant, name, credential, found.id, coalesce(sender, found.sender), scope, priority, visible_at, deadline)
    RETURNING id INTO made;
    RETURN made;
EXCEPTION WHEN unique_violation THEN
    RAISE EXCEPTION 'there is a campaign % already', to_json(name) USING ERRCODE = 'unique_violation',
        HINT = 'Choose another name, or delete that campaign.';
WHEN check_violation OR not_null_violation THEN
    -- not with the values of the row
    GET STACKED DIAGNOSTICS broken = CONSTRAINT_NAME, absent = COLUMN_NAME;
    PERFORM submit_refuse(coalesce(nullif(absent, ''), substr(broken, length('campaigns_') + 1)), CASE WHEN broken = '' THEN 'it is null'
        ELSE 'it does not fit' END, NULL, (SELECT obj_description(c.oid, 'pg_constraint') FROM pg_constraint AS c
            WHERE c.conrelid = 'campaigns'::regclass AND c.conname = broken));
END $$;
COMMENT ON FUNCTION campaign_create IS
    'Makes a campaign without recipients, and returns its id. It uses the newest version of the template, or the given one.';

CREATE VIEW campaign_sums AS
SELECT campaign_id, sum(unsent) AS unsent, sum(queued) AS queued, sum(deferred) AS deferred, sum(sent) AS sent,
    sum(failed) AS failed, sum(invalid) AS invalid, sum(unknown) AS unknown, sum(bounced) AS bounced
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

INSERT INTO rights (object, role, privileges) VALUES
    ('campaigns', 'pgmta_operator', 'SELECT'),
    ('campaigns', 'pgmta_reader', 'SELECT'),
    ('campaign_recipients', 'pgmta_operator',
        'SELECT, INSERT (campaign_id, number, recipient, domain, params, state, error_code)'),
    ('campaign_recipients', 'pgmta_reader', 'SELECT'),
    ('campaign_counts', 'pgmta_operator', 'SELECT'),
    ('campaign_counts', 'pgmta_reader', 'SELECT'),
    ('campaign_sums', 'pgmta_operator', 'SELECT'),
    ('campaign_sums', 'pgmta_reader', 'SELECT'),
    ('campaign_sums', 'pgmta_queued', 'SELECT'),
    ('FUNCTION campaign_create', 'pgmta_operator', 'EXECUTE');

-- Jobs of campaigns: from READY to LOGGED, fed into the queue by any worker.

CREATE TABLE campaign_jobs (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    campaign_id bigint NOT NULL REFERENCES campaigns,
    first integer NOT NULL,
    last integer NOT NULL CONSTRAINT campaign_jobs_range CHECK (first > 0 AND last >= first),
    fed_to integer NOT NULL,
    takes text[] COLLATE "C" NOT NULL DEFAULT '{unsent}' CONSTRAINT campaign_jobs_takes CHECK (
        takes <@ '{unsent,failed,unknown}' AND 'unsent' = ANY (takes)),
    again_from bigint NOT NULL DEFAULT 0,
    status text COLLATE "C" NOT NULL DEFAULT 'READY',
    former text COLLATE "C",
    created_at timestamptz NOT NULL DEFAULT now(),
    changed_at timestamptz NOT NULL DEFAULT now(),
    changed_by text NOT NULL DEFAULT SESSION_USER,
    fed_at timestamptz,
    fed_by text,
    CONSTRAINT campaign_jobs_moves CHECK (CASE WHEN former IS NULL THEN status = 'READY' ELSE (former, status) IN (
        ('READY', 'ENQUEUED'), ('READY', 'STOPPED'),
        ('ENQUEUED', 'SENDING'), ('ENQUEUED', 'SENT'), ('ENQUEUED', 'STOPPED'),
        ('SENDING', 'SENT'), ('SENDING', 'STOPPED'),
        ('SENT', 'SENDING'), ('SENT', 'LOGGED'), ('SENT', 'STOPPED'),
        ('STOPPED', 'READY'), ('STOPPED', 'LOGGED'),
        ('LOGGED', 'READY')) END)
) WITH (fillfactor = 20);
CREATE INDEX campaign_jobs_open ON campaign_jobs (id) WHERE status <> 'LOGGED';
CREATE INDEX campaign_jobs_campaign ON campaign_jobs (campaign_id, id);
COMMENT ON SEQUENCE campaign_jobs_id_seq IS 'campaign_jobs.id.';
COMMENT ON TABLE campaign_jobs IS 'Parts of campaigns: a range of recipients that is sent. The lowest id goes first.';
COMMENT ON COLUMN campaign_jobs.id IS 'The number of the job, and its place: a job keeps both when it is resumed or retried.';
COMMENT ON COLUMN campaign_jobs.campaign_id IS 'campaigns.id.';
COMMENT ON COLUMN campaign_jobs.first IS 'The first campaign_recipients.number.';
COMMENT ON COLUMN campaign_jobs.last IS 'The last one.';
COMMENT ON COLUMN campaign_jobs.fed_to IS 'Recipients up to this number were fed, or were not to be.';
COMMENT ON COLUMN campaign_jobs.takes IS 'The states of the recipients that it sends: unsent, and after a retry failed, and unknown on request.';
COMMENT ON COLUMN campaign_jobs.again_from IS 'Ids of mail from here on are of the last retry, which takes a failed or unknown recipient once.';
COMMENT ON COLUMN campaign_jobs.status IS
    'READY: waits; ENQUEUED: has its credential; SENDING: feeds the queue; SENT: all are fed; STOPPED; LOGGED: done.';
COMMENT ON COLUMN campaign_jobs.former IS 'The status before.';
COMMENT ON COLUMN campaign_jobs.created_at IS 'When it was made.';
COMMENT ON COLUMN campaign_jobs.changed_at IS 'When its status last changed.';
COMMENT ON COLUMN campaign_jobs.changed_by IS 'The login that changed it.';
COMMENT ON COLUMN campaign_jobs.fed_at IS 'When it last fed the queue.';
COMMENT ON COLUMN campaign_jobs.fed_by IS 'The process that did; another one may do the next.';
COMMENT ON CONSTRAINT campaign_jobs_range ON campaign_jobs IS 'At least one recipient.';
COMMENT ON CONSTRAINT campaign_jobs_takes ON campaign_jobs IS 'unsent, and maybe failed and unknown.';
COMMENT ON CONSTRAINT campaign_jobs_moves ON campaign_jobs IS 'The moves of a job: pgmta/states.py has the same.';
COMMENT ON INDEX campaign_jobs_open IS 'Jobs with something to do.';
COMMENT ON INDEX campaign_jobs_campaign IS 'The jobs of a campaign.';

CREATE FUNCTION campaign_jobs_move() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF NEW.status <> OLD.status THEN
        NEW.former := OLD.status;
        NEW.changed_at := now();
        NEW.changed_by := SESSION_USER;
    ELSE
        NEW.former := OLD.former;
    END IF;
    RETURN NEW;
END $$;
COMMENT ON FUNCTION campaign_jobs_move IS 'Notes the former status, so that a CHECK can refuse a move.';
CREATE TRIGGER campaign_jobs_move BEFORE UPDATE ON campaign_jobs FOR EACH ROW EXECUTE FUNCTION campaign_jobs_move();
COMMENT ON TRIGGER campaign_jobs_move ON campaign_jobs IS 'Also for statements by hand.';

CREATE TABLE credential_use (
    credential text COLLATE "C" PRIMARY KEY,
    campaign_id bigint NOT NULL REFERENCES campaigns,
    since timestamptz NOT NULL DEFAULT now()
);
COMMENT ON TABLE credential_use IS 'Which campaign uses a credential: at most one, with any number of jobs.';
COMMENT ON COLUMN credential_use.credential IS 'As campaigns.credential.';
COMMENT ON COLUMN credential_use.campaign_id IS 'campaigns.id.';
COMMENT ON COLUMN credential_use.since IS 'From when on.';

CREATE FUNCTION campaign_lock(campaign bigint) RETURNS campaigns LANGUAGE plpgsql SET search_path = pgmta, pg_catalog, pg_temp AS $$
DECLARE
    found campaigns;
BEGIN
    -- no more than that: who takes a credential refers to the campaign, and has locked a job
    SELECT c.* INTO found FROM campaigns AS c WHERE c.id = campaign FOR NO KEY UPDATE;
    IF found.id IS NULL THEN
        RAISE EXCEPTION 'there is no campaign %', campaign USING ERRCODE = 'no_data_found',
            HINT = 'The view campaign_statistics has them.';
    END IF;
    RETURN found;
END $$;
COMMENT ON FUNCTION campaign_lock IS 'Locks a campaign against other changes by operators, and returns it.';

CREATE FUNCTION campaign_start(campaign bigint, rate double precision DEFAULT NULL, jobs integer DEFAULT 1)
RETURNS SETOF bigint LANGUAGE plpgsql SECURITY DEFINER SET search_path = pgmta, pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    found campaigns := campaign_lock(campaign);
    first integer := 1 + coalesce((SELECT max(j.last) FROM campaign_jobs AS j WHERE j.campaign_id = campaign), 0);
    last integer := (SELECT max(r.number) FROM campaign_recipients AS r WHERE r.campaign_id = campaign);
    size integer;
BEGIN
    IF jobs NOT BETWEEN 1 AND 1000 THEN
        PERFORM submit_refuse('jobs', 'it is not between 1 and 1000');
    ELSIF last IS NULL THEN
        RAISE EXCEPTION 'the campaign % has no recipients', to_json(found.name)
            USING ERRCODE = 'object_not_in_prerequisite_state', HINT = 'Import some.';
    ELSIF last < first THEN
        RAISE EXCEPTION 'the campaign % was started already', to_json(found.name)
            USING ERRCODE = 'object_not_in_prerequisite_state', HINT = 'Resume or retry it.';
    END IF;
    PERFORM campaign_refuse_halted(found);
    IF rate IS NOT NULL THEN
        PERFORM budget_set('credential:' || found.credential, rate,
            (SELECT b.month_most FROM budgets AS b WHERE b.key = 'credential:' || found.credential));
    END IF;
    size := ceil((last - first + 1)::numeric / jobs);
    RETURN QUERY
        INSERT INTO campaign_jobs (campaign_id, first, last, fed_to)
        SELECT campaign, f, least(f + size - 1, last), f - 1
        FROM generate_series(first, last, size) AS f ORDER BY f
        RETURNING campaign_jobs.id;
END $$;
COMMENT ON FUNCTION campaign_start IS
    'Makes the jobs of a campaign, for its recipients without one, and returns their ids. `rate`, in mails per second, '
    'becomes that of its credential. Several jobs share the rate.';

CREATE FUNCTION campaign_refuse_halted(found campaigns) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF found.halted_at IS NOT NULL THEN
        RAISE EXCEPTION 'the campaign % is halted', to_json(found.name) USING ERRCODE = 'object_not_in_prerequisite_state',
            DETAIL = found.halted_reason, HINT = '`queuectl campaign resume NAME --halted`, or campaign_resume(id, halted => true), goes on nevertheless.';
    END IF;
END $$;
COMMENT ON FUNCTION campaign_refuse_halted IS 'Raises an error for a campaign that is halted.';

CREATE FUNCTION campaign_stop(campaign bigint) RETURNS integer LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pgmta, pg_catalog, pg_temp AS $$
DECLARE
    stopped integer;
BEGIN
    PERFORM campaign_lock(campaign);
    UPDATE campaign_jobs AS j SET status = 'STOPPED'
    WHERE j.campaign_id = campaign AND j.status IN ('READY', 'ENQUEUED', 'SENDING', 'SENT');
    GET DIAGNOSTICS stopped = ROW_COUNT;
    RETURN stopped;
END $$;
COMMENT ON FUNCTION campaign_stop IS
    'Stops the jobs of a campaign, and returns how many. After the commit no worker that asks may begin a transaction; one '
    'that has asked waits at most 20 ms for its time. A worker then takes the mail that waits out of the queue.';

CREATE FUNCTION job_stop(job bigint) RETURNS boolean LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pgmta, pg_catalog, pg_temp AS $$
BEGIN
    PERFORM campaign_lock(job_campaign(job));
    UPDATE campaign_jobs AS j SET status = 'STOPPED' WHERE j.id = job AND j.status IN ('READY', 'ENQUEUED', 'SENDING', 'SENT');
    RETURN FOUND;
END $$;
COMMENT ON FUNCTION job_stop IS 'Stops a job, and returns whether that changed anything.';

CREATE FUNCTION job_campaign(job bigint) RETURNS bigint LANGUAGE plpgsql SET search_path = pgmta, pg_catalog, pg_temp AS $$
DECLARE
    found bigint := (SELECT j.campaign_id FROM campaign_jobs AS j WHERE j.id = job);
BEGIN
    IF found IS NULL THEN
        RAISE EXCEPTION 'there is no job %', job USING ERRCODE = 'no_data_found', HINT = '`queuectl job list`, or the table campaign_jobs, has them.';
    END IF;
    RETURN found;
END $$;
COMMENT ON FUNCTION job_campaign IS 'The campaign of a job.';

CREATE FUNCTION campaign_resume(campaign bigint, halted boolean DEFAULT false) RETURNS integer LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pgmta, pg_catalog, pg_temp AS $$
BEGIN
    PERFORM campaign_clear_halt(campaign, halted);
    RETURN campaign_again(ARRAY(SELECT j.id FROM campaign_jobs AS j WHERE j.campaign_id = campaign), '{unsent}');
END $$;
COMMENT ON FUNCTION campaign_resume IS
    'Goes on with the stopped jobs of a campaign, and returns how many: recipients that are unsent. With `halted` also of one '
    'that was halted, and the bounces until now count no more.';

CREATE FUNCTION campaign_retry(campaign bigint, "unknown" boolean DEFAULT false, halted boolean DEFAULT false)
RETURNS integer LANGUAGE plpgsql SECURITY DEFINER SET search_path = pgmta, pg_catalog, pg_temp AS $$
BEGIN
    PERFORM campaign_clear_halt(campaign, halted);
    RETURN campaign_again(ARRAY(SELECT j.id FROM campaign_jobs AS j WHERE j.campaign_id = campaign),
        CASE WHEN "unknown" THEN '{unsent,failed,unknown}' ELSE '{unsent,failed}' END::text[]);
END $$;
COMMENT ON FUNCTION campaign_retry IS
    'Sends again what failed, in the jobs of a campaign that are stopped or logged, and returns how many. With `unknown` also '
    'what the next hop may have: that may be a second copy.';

CREATE FUNCTION job_resume(job bigint) RETURNS boolean LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pgmta, pg_catalog, pg_temp AS $$
BEGIN
    PERFORM campaign_clear_halt(job_campaign(job), false);
    RETURN campaign_again(ARRAY[job], '{unsent}') > 0;
END $$;
COMMENT ON FUNCTION job_resume IS 'As campaign_resume() for one job.';

CREATE FUNCTION job_retry(job bigint, "unknown" boolean DEFAULT false) RETURNS boolean LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pgmta, pg_catalog, pg_temp AS $$
BEGIN
    PERFORM campaign_clear_halt(job_campaign(job), false);
    RETURN campaign_again(ARRAY[job],
        CASE WHEN "unknown" THEN '{unsent,failed,unknown}' ELSE '{unsent,failed}' END::text[]) > 0;
END $$;
COMMENT ON FUNCTION job_retry IS 'As campaign_retry() for one job.';

CREATE FUNCTION campaign_clear_halt(campaign bigint, halted boolean) RETURNS void LANGUAGE plpgsql
    SET search_path = pgmta, pg_catalog, pg_temp AS $$
DECLARE
    found campaigns := campaign_lock(campaign);
BEGIN
    IF NOT halted THEN
        PERFORM campaign_refuse_halted(found);
    ELSIF found.halted_at IS NOT NULL THEN
        UPDATE campaigns AS c SET halted_at = NULL, halted_reason = NULL,
            forgiven = coalesce((SELECT s.bounced FROM campaign_sums AS s WHERE s.campaign_id = campaign), 0)
        WHERE c.id = campaign;
    END IF;
END $$;
COMMENT ON FUNCTION campaign_clear_halt IS 'Locks a campaign; refuses one that is halted, or ends its halt.';

CREATE FUNCTION campaign_again(jobs bigint[], takes text[]) RETURNS integer LANGUAGE plpgsql
    SET search_path = pgmta, pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    changed integer;
BEGIN
    UPDATE campaign_jobs AS j SET status = 'READY', fed_to = j.first - 1, takes = takes, again_from = nextval('message_ids')
    WHERE j.id = ANY (jobs) AND j.status IN ('STOPPED', 'LOGGED');
    GET DIAGNOSTICS changed = ROW_COUNT;
    RETURN changed;
END $$;
COMMENT ON FUNCTION campaign_again IS 'Lets jobs begin again, in their places, with recipients in these states.';

CREATE FUNCTION campaign_delete(campaign bigint) RETURNS bigint LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pgmta, pg_catalog, pg_temp AS $$
DECLARE
    found campaigns := campaign_lock(campaign);
    removed bigint;
BEGIN
    IF EXISTS (SELECT FROM campaign_jobs AS j WHERE j.campaign_id = campaign AND j.status <> 'LOGGED') THEN
        RAISE EXCEPTION 'the campaign % is not done', to_json(found.name) USING ERRCODE = 'object_not_in_prerequisite_state',
            HINT = 'Stop it, and wait until its jobs are LOGGED.';
    END IF;
    DELETE FROM campaign_recipients AS r WHERE r.campaign_id = campaign;
    GET DIAGNOSTICS removed = ROW_COUNT;
    DELETE FROM campaign_jobs AS j WHERE j.campaign_id = campaign;
    DELETE FROM campaign_counts AS n WHERE n.campaign_id = campaign;
    DELETE FROM credential_use AS u WHERE u.campaign_id = campaign;
    DELETE FROM campaigns AS c WHERE c.id = campaign;
    RETURN removed;
END $$;
COMMENT ON FUNCTION campaign_delete IS
    'Deletes a campaign that is done with all that is known of it, and returns the number of its recipients.';

-- What workers do.

CREATE FUNCTION campaign_take() RETURNS integer LANGUAGE plpgsql SECURITY DEFINER SET search_path = pgmta, pg_catalog, pg_temp AS $$
DECLARE
    job record;
    taken integer := 0;
BEGIN
    FOR job IN
        SELECT j.id, c.credential, c.id AS campaign FROM campaign_jobs AS j JOIN campaigns AS c ON c.id = j.campaign_id
        WHERE j.status = 'READY' AND coalesce(c.visible_at, '-infinity') <= clock_timestamp() AND c.halted_at IS NULL
            AND NOT EXISTS (SELECT FROM credential_use AS u WHERE u.credential = c.credential AND u.campaign_id <> c.id)
            -- another worker may have locked an older job, to give it the same credential
            AND (EXISTS (SELECT FROM credential_use AS u WHERE u.campaign_id = c.id) OR NOT EXISTS (
                SELECT FROM campaign_jobs AS k JOIN campaigns AS d ON d.id = k.campaign_id
                WHERE k.status = 'READY' AND k.id < j.id AND d.id <> c.id AND d.credential = c.credential
                    AND coalesce(d.visible_at, '-infinity') <= clock_timestamp() AND d.halted_at IS NULL))
        ORDER BY j.id LIMIT 1 FOR UPDATE OF j SKIP LOCKED
    LOOP
        -- who feeds or frees it may wait for a job that is locked here, also for one that is no longer READY: a later round
        PERFORM FROM credential_use AS u WHERE u.credential = job.credential FOR NO KEY UPDATE SKIP LOCKED;
        CONTINUE WHEN NOT FOUND AND EXISTS (SELECT FROM credential_use AS u WHERE u.credential = job.credential);
        INSERT INTO credential_use AS u (credential, campaign_id) VALUES (job.credential, job.campaign)
        ON CONFLICT (credential) DO UPDATE SET since = u.since WHERE u.campaign_id = excluded.campaign_id;
        IF FOUND THEN
            UPDATE campaign_jobs AS j SET status = 'ENQUEUED' WHERE j.id = job.id;
            taken := taken + 1;
        END IF;
    END LOOP;
    RETURN taken;
END $$;
COMMENT ON FUNCTION campaign_take IS
    'Gives the oldest READY job its credential, unless another campaign has it, and returns 1; 0 if there is no such job. The '
    'row of credential_use decides between workers.';

CREATE FUNCTION campaign_feed(credential text, worker text, OUT fed integer, OUT more boolean) LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pgmta, pg_catalog, pg_temp SET jit = off SET plan_cache_mode = force_generic_plan
    SET enable_hashjoin = off SET enable_mergejoin = off SET enable_seqscan = off AS $$
#variable_conflict use_column
DECLARE
    campaign campaigns;
    template templates;
    job campaign_jobs;
    rate double precision := (SELECT b.rate FROM budgets AS b WHERE b.key = 'credential:' || campaign_feed.credential);
    most double precision := greatest(coalesce(ceil(rate / 2), 200), 2);
    hostname text := (SELECT s.hostname FROM submit_settings AS s);
    room integer;
    scanned integer;
    picked record;
    found record;
BEGIN
    fed := 0;
    more := false;
    -- no transaction begins before a later commit, which waits for the disk for both
    PERFORM set_config('synchronous_commit', 'off', true);
    -- another worker that feeds it goes on alone: the room is counted under this lock
    SELECT c.* INTO campaign FROM credential_use AS u JOIN campaigns AS c ON c.id = u.campaign_id
    WHERE u.credential = campaign_feed.credential FOR UPDATE OF u SKIP LOCKED;
    IF campaign.id IS NULL THEN RETURN; END IF;
    -- a separate statement, whose snapshot has what the last one under the lock has fed
    -- mail in flight for long hangs, or its worker died: it keeps no other mail back. But a row waits for its time under
    -- a lease, for most / rate; with the double of it the feed of such mail is slower than the rate
    room := most - (
        SELECT count(*) FROM campaign_recipients AS r JOIN queue AS q ON q.message_id = r.message_id
        WHERE r.campaign_id = campaign.id AND r.state = 'queued' AND r.state IN ('queued', 'deferred')
            AND coalesce(q.lease_since > clock_timestamp() - make_interval(secs => coalesce(2 + 2 * most / rate, 2)), true));
    IF room <= 0 THEN
        more := true;
        RETURN;
    END IF;
    room := least(room, 1000);
    SELECT t.* INTO template FROM templates AS t WHERE t.id = campaign.template_id;
    FOR job IN
        SELECT j.* FROM campaign_jobs AS j WHERE j.campaign_id = campaign.id AND j.status IN ('ENQUEUED', 'SENDING')
        ORDER BY j.id FOR UPDATE
    LOOP
        IF room <= 0 THEN
            more := true;
            EXIT;
        END IF;
        SELECT array_agg(p.number ORDER BY p.number) AS numbers, array_agg(p.recipient ORDER BY p.number) AS recipients
        INTO picked
        FROM (
            SELECT r.number, r.recipient FROM campaign_recipients AS r
            WHERE r.campaign_id = campaign.id AND r.number > job.fed_to AND r.number <= job.last AND r.state = ANY (job.takes)
                -- a retry takes each once, and leaves mail on hold to the operator who may release it
                AND (r.state = 'unsent' OR coalesce(r.message_id, 0) < job.again_from
                    AND coalesce((SELECT false FROM queue AS q WHERE q.message_id = r.message_id LIMIT 1), true))
            ORDER BY r.number LIMIT room) AS p;
        scanned := coalesce(cardinality(picked.numbers), 0);
        IF scanned > 0 THEN
            WITH marked AS (
                UPDATE campaign_recipients AS r SET state = CASE WHEN p.suppressed THEN 'invalid' ELSE 'queued' END,
                    error_code = CASE WHEN p.suppressed THEN 'suppressed' END, error_sub_type = NULL, bounced = false,
                    answered_at = CASE WHEN p.suppressed THEN now() END, sent_at = NULL,
                    message_id = CASE WHEN NOT p.suppressed THEN nextval('message_ids') END
                FROM unnest(picked.numbers, suppressed(campaign.tenant, campaign.scope, picked.recipients))
                    AS p (number, suppressed)
                WHERE r.campaign_id = campaign.id AND r.number = p.number AND r.state = ANY (job.takes)
                RETURNING r.number, r.recipient, r.domain, r.message_id, jsonb_build_object('to',
                    jsonb_build_array(jsonb_build_array('', r.recipient)), 'words', CASE WHEN template.words ? 'recipient'
                        THEN r.params || jsonb_build_object('recipient', r.recipient) ELSE r.params END)
                    || CASE WHEN campaign.scope <> '' OR template.words ? 'unsubscribe' THEN jsonb_build_object('unsubscribe',
                        jsonb_build_object('campaign', campaign.id, 'number', r.number)) ELSE '{}' END AS params
            )
            SELECT array_agg(message_id) AS mails, array_agg(recipient) AS recipients, array_agg(domain) AS domains,
                array_agg(params) AS params, array_agg(octet_length(params::text)) AS sizes,
                array_agg(submit_trace(hostname, message_id)) AS traces,
                array_agg(concat('<', message_id, '.', right(replace(gen_random_uuid()::text, '-', ''), 16), '@',
                    coalesce(hostname, 'localhost'), '>')) AS headers,
                array_agg((campaign_metadata(campaign, rate IS NOT NULL) || jsonb_build_object('_campaign',
                    concat_ws('.', campaign.id, number, job.id)))::text) AS metadata,
                array_agg(concat(recipient, campaign.sender) ~ '[^\u0001-\u007f]' COLLATE "C") AS utf8
            INTO found FROM marked WHERE message_id IS NOT NULL;
            IF found.mails IS NOT NULL THEN
                PERFORM campaign_put(campaign, found.mails, found.recipients, found.domains, found.params, found.sizes, found.traces,
                    found.headers, found.metadata, found.utf8);
                fed := fed + cardinality(found.mails);
            END IF;
        END IF;
        UPDATE campaign_jobs AS j SET fed_at = now(), fed_by = worker,
            fed_to = CASE WHEN scanned < room THEN j.last ELSE picked.numbers[scanned] END,
            status = CASE WHEN scanned < room OR picked.numbers[scanned] = j.last
                THEN CASE WHEN j.status = 'ENQUEUED' AND scanned > 0 THEN 'SENDING' ELSE 'SENT' END
                ELSE 'SENDING' END
        WHERE j.id = job.id;
        more := more OR scanned = room OR job.status = 'ENQUEUED';
        room := room - scanned;
    END LOOP;
END $$;
COMMENT ON FUNCTION campaign_feed IS
    'Puts the next mail of a credential''s campaign into the queue: half a second of its rate, at least two, or 200 without one, '
    'less what waits there, or is in flight for at most 2 seconds and twice the time that the rate needs for as many. Mail, '
    'marks and cursor are one commit. Returns how much, and whether more may follow.';

CREATE FUNCTION campaign_metadata(campaign campaigns, rated boolean) RETURNS jsonb STABLE
RETURN jsonb_strip_nulls(jsonb_build_object('campaign', campaign.name, 'credential', campaign.credential,
    '_budget', CASE WHEN rated THEN 'credential:' || campaign.credential END,
    '_deadline', CASE WHEN campaign.deadline IS NOT NULL
        THEN to_char(campaign.deadline AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"') END));
COMMENT ON FUNCTION campaign_metadata IS 'The metadata that all mail of a campaign has.';

CREATE FUNCTION campaign_put(
    campaign campaigns, mails bigint[], recipients text[], domains text[], params jsonb[], sizes integer[], traces text[],
    headers text[], metadata text[], utf8 boolean[]
) RETURNS void LANGUAGE plpgsql SET search_path = pgmta, pg_catalog, pg_temp AS $$
DECLARE
    number integer := cardinality(mails);
BEGIN
    PERFORM queue_put(mails, sizes, traces, array_fill(''::bytea, ARRAY[number]), headers, array_fill('sql'::text, ARRAY[number]),
        array_fill(campaign.sender, ARRAY[number]), array_fill(mailbox_domain(campaign.sender COLLATE "C"), ARRAY[number]),
        array_fill(campaign.priority, ARRAY[number]), ARRAY(SELECT generate_series(1, number)), recipients, domains,
        utf8 => utf8, tenants => array_fill(campaign.tenant, ARRAY[number]),
        on_failed => array_fill('remove'::text, ARRAY[number]), once => array_fill(true, ARRAY[number]),
        logins => array_fill(campaign.created_by, ARRAY[number]), rets => array_fill('HDRS'::text, ARRAY[number]),
        metadata => metadata, template_ids => array_fill(campaign.template_id, ARRAY[number]), params => params);
END $$;
COMMENT ON FUNCTION campaign_put IS 'Puts mail of a campaign into the queue: one message a recipient.';

CREATE FUNCTION campaign_withdraw(most integer) RETURNS integer LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pgmta, pg_catalog, pg_temp SET jit = off
    SET enable_hashjoin = off SET enable_mergejoin = off SET enable_seqscan = off AS $$
DECLARE
    job record;
    rows bigint[];
    numbers integer[];
    withdrawn integer := 0;
BEGIN
    FOR job IN
        SELECT j.id, j.campaign_id, j.first, j.last, j.status, c.tenant, c.scope
        FROM campaign_jobs AS j JOIN campaigns AS c ON c.id = j.campaign_id
        WHERE j.status IN ('STOPPED', 'SENDING', 'SENT') ORDER BY j.id FOR UPDATE OF j SKIP LOCKED
    LOOP
        -- a row under a lease is refused before its transaction, and comes back
        SELECT array_agg(w.id), array_agg(w.number) INTO rows, numbers FROM (
            SELECT q.id, r.number FROM (
                SELECT p.number, p.message_id, job.status = 'STOPPED'
                    OR (suppressed(job.tenant, job.scope, ARRAY[p.recipient]))[1] AS goes
                FROM campaign_recipients AS p
                WHERE p.campaign_id = job.campaign_id AND p.number BETWEEN job.first AND job.last
                    AND p.state = ANY (CASE job.status WHEN 'STOPPED' THEN '{queued,deferred}' ELSE '{queued}' END::text[])
                    AND p.state IN ('queued', 'deferred') OFFSET 0) AS r
            JOIN queue AS q ON q.message_id = r.message_id
            -- in no order: so a batch ends with the last row that it takes
            WHERE r.goes AND q.lease_token IS NULL AND q.status IN ('QUEUED', 'DEFERRED', 'HOLD')
            LIMIT most FOR UPDATE OF q SKIP LOCKED) AS w;
        CONTINUE WHEN rows IS NULL;
        PERFORM rows_log(rows, 'cancelled', SESSION_USER::text,
            CASE job.status WHEN 'STOPPED' THEN 'the campaign was stopped' ELSE 'suppressed' END);
        DELETE FROM queue AS q WHERE q.id = ANY (rows);
        UPDATE campaign_recipients AS r SET state = CASE job.status WHEN 'STOPPED' THEN 'unsent' ELSE 'invalid' END,
            error_code = CASE WHEN job.status <> 'STOPPED' THEN 'suppressed' END, error_sub_type = NULL,
            answered_at = CASE WHEN job.status <> 'STOPPED' THEN now() END, message_id = NULL
        WHERE r.campaign_id = job.campaign_id AND r.number = ANY (numbers) AND r.state IN ('queued', 'deferred');
        withdrawn := withdrawn + cardinality(rows);
    END LOOP;
    RETURN withdrawn;
END $$;
COMMENT ON FUNCTION campaign_withdraw IS
    'Takes mail of stopped jobs out of the queue, and mail for suppressed addresses, at most so much a job, and returns how '
    'much. Its recipients are unsent, or invalid.';

CREATE FUNCTION campaign_reconcile(most integer) RETURNS integer LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pgmta, pg_catalog, pg_temp SET jit = off
    SET enable_hashjoin = off SET enable_mergejoin = off SET enable_seqscan = off AS $$
DECLARE
    job record;
    changed integer := 0;
    earliest integer;
    number integer;
BEGIN
    FOR job IN
        SELECT j.id, j.campaign_id, j.first, j.last FROM campaign_jobs AS j
        WHERE j.status IN ('STOPPED', 'SENDING', 'SENT') ORDER BY j.id FOR UPDATE OF j SKIP LOCKED
    LOOP
        WITH gone AS MATERIALIZED (
            SELECT r.number, r.message_id FROM campaign_recipients AS r
            WHERE r.campaign_id = job.campaign_id AND r.number BETWEEN job.first AND job.last
                AND r.state IN ('queued', 'deferred')
                AND NOT EXISTS (SELECT FROM queue AS q WHERE q.message_id = r.message_id)
            LIMIT most
        ), ended AS MATERIALIZED (
            SELECT g.number, g.message_id, a.* FROM gone AS g LEFT JOIN LATERAL (
                SELECT a.event, a.code, a.enhanced, a.class, a.ended_at, a.reply FROM attempts AS a
                WHERE a.message_id = g.message_id AND a.event <> 'deferred'
                -- a delivery is a fact, whatever came after it
                ORDER BY a.event = 'delivered' DESC, a.event = 'unknown' DESC, a.ended_at DESC LIMIT 1) AS a ON true
        ), told AS (
            UPDATE campaign_recipients AS r SET
                state = CASE WHEN e.event = 'delivered' THEN 'sent' WHEN e.event = 'unknown' THEN 'unknown'
                    WHEN e.event IS NULL OR e.reply = 'the campaign was stopped' THEN 'unsent'
                    WHEN e.reply = 'suppressed' THEN 'invalid' ELSE 'failed' END,
                sent_at = CASE WHEN e.event = 'delivered' THEN e.ended_at END, answered_at = e.ended_at,
                bounced = e.event = 'failed' AND campaign_bounces(e.class),
                error_code = CASE WHEN e.event = 'delivered' THEN NULL WHEN e.reply = 'suppressed' THEN 'suppressed'
                    WHEN e.code > 0 THEN e.code::text ELSE e.event END,
                error_sub_type = nullif(concat_ws(' ', nullif(e.enhanced, ''), e.class), '')
            FROM ended AS e
            WHERE r.campaign_id = job.campaign_id AND r.number = e.number AND r.message_id = e.message_id
                AND r.state IN ('queued', 'deferred')
            RETURNING r.number, r.state
        )
        SELECT count(*), min(told.number) FILTER (WHERE told.state = 'unsent') INTO number, earliest FROM told;
        changed := changed + number;
        -- what came back is fed again
        UPDATE campaign_jobs AS j SET fed_to = least(j.fed_to, earliest - 1),
            status = CASE j.status WHEN 'SENT' THEN 'SENDING' ELSE j.status END
        WHERE j.id = job.id AND earliest IS NOT NULL AND j.status IN ('ENQUEUED', 'SENDING', 'SENT');
    END LOOP;
    RETURN changed;
END $$;
COMMENT ON FUNCTION campaign_reconcile IS
    'Writes the outcome of recipients whose mail left the queue without one: a lost lease, a command of an operator. The log '
    'says which; without an entry the recipient is unsent. Returns how many, at most so many a job.';

CREATE FUNCTION campaign_bounces(class text) RETURNS boolean IMMUTABLE PARALLEL SAFE
RETURN coalesce(class IN ('unknown_user', 'disabled', 'bad_domain'), false);
COMMENT ON FUNCTION campaign_bounces IS 'Whether a failure of this answer class is a hard bounce: there is no such mailbox.';

CREATE FUNCTION campaign_finalise() RETURNS integer LANGUAGE plpgsql SECURITY DEFINER SET search_path = pgmta, pg_catalog, pg_temp AS $$
DECLARE
    job record;
    used record;
    logged integer := 0;
BEGIN
    FOR job IN
        SELECT j.id, j.campaign_id, j.first, j.last FROM campaign_jobs AS j
        WHERE j.status IN ('SENT', 'STOPPED') ORDER BY j.id FOR UPDATE SKIP LOCKED
    LOOP
        CONTINUE WHEN EXISTS (
            SELECT FROM campaign_recipients AS r WHERE r.campaign_id = job.campaign_id
                AND r.number BETWEEN job.first AND job.last AND r.state IN ('queued', 'deferred'));
        UPDATE campaign_jobs AS j SET status = 'LOGGED' WHERE j.id = job.id;
        logged := logged + 1;
    END LOOP;
    FOR used IN SELECT u.credential, u.campaign_id FROM credential_use AS u ORDER BY u.credential FOR UPDATE SKIP LOCKED LOOP
        -- an operator who has the campaign may wait for a job that was ended above
        PERFORM FROM campaigns AS c WHERE c.id = used.campaign_id FOR NO KEY UPDATE SKIP LOCKED;
        CONTINUE WHEN NOT FOUND;
        -- in a later snapshot: a worker may just have given it to a job
        CONTINUE WHEN EXISTS (
            SELECT FROM campaign_jobs AS j WHERE j.campaign_id = used.campaign_id AND j.status NOT IN ('LOGGED', 'READY'));
        -- an operator who changes it has locked it, and may wait for a job above: the next round does it
        PERFORM FROM campaigns AS c WHERE c.id = used.campaign_id FOR NO KEY UPDATE SKIP LOCKED;
        CONTINUE WHEN NOT FOUND;
        UPDATE campaigns AS c SET totals = to_jsonb(s) - 'campaign_id'
        FROM campaign_sums AS s WHERE s.campaign_id = c.id AND c.id = used.campaign_id;
        DELETE FROM credential_use AS u WHERE u.credential = used.credential;
    END LOOP;
    RETURN logged;
END $$;
COMMENT ON FUNCTION campaign_finalise IS
    'Ends jobs that have nothing in the queue, and returns how many. After the last one of a campaign its totals are written, '
    'and its credential is free. It may be repeated.';

CREATE FUNCTION campaign_halt() RETURNS integer LANGUAGE plpgsql SECURITY DEFINER SET search_path = pgmta, pg_catalog, pg_temp AS $$
DECLARE
    bad record;
    halted integer := 0;
BEGIN
    FOR bad IN
        SELECT c.id, s.bounced - c.forgiven AS bounced, s.sent + s.failed AS answered
        FROM campaigns AS c JOIN campaign_sums AS s ON s.campaign_id = c.id
        WHERE c.halted_at IS NULL AND s.bounced - c.forgiven > 10
            AND (s.bounced - c.forgiven) * 10 > s.sent + s.failed
            -- those that run, and no sums of the others
            AND s.campaign_id = ANY (ARRAY(SELECT j.campaign_id FROM campaign_jobs AS j WHERE j.status <> 'LOGGED'))
        ORDER BY c.id FOR NO KEY UPDATE OF c SKIP LOCKED
    LOOP
        UPDATE campaigns AS c SET halted_at = now(),
            halted_reason = format('%s of %s answers are hard bounces', bad.bounced, bad.answered)
        WHERE c.id = bad.id;
        UPDATE campaign_jobs AS j SET status = 'STOPPED'
        WHERE j.campaign_id = bad.id AND j.status IN ('READY', 'ENQUEUED', 'SENDING', 'SENT');
        halted := halted + 1;
    END LOOP;
    RETURN halted;
END $$;
COMMENT ON FUNCTION campaign_halt IS
    'Stops campaigns with more than 10 hard bounces that are more than 10 % of the answers, and returns how many.';

CREATE FUNCTION campaign_path(metadata jsonb) RETURNS bigint[] IMMUTABLE PARALLEL SAFE
RETURN CASE WHEN metadata ->> '_campaign' ~ '^[0-9]{1,18}[.][0-9]{1,9}[.][0-9]{1,18}$'
    THEN string_to_array(metadata ->> '_campaign', '.')::bigint[] END;
COMMENT ON FUNCTION campaign_path IS 'Campaign, number of the recipient and job of a row, from its metadata; null for other mail.';

CREATE FUNCTION campaign_may_begin(ids bigint[]) RETURNS bigint[] LANGUAGE plpgsql STABLE SECURITY DEFINER
    SET search_path = pgmta, pg_catalog, pg_temp SET jit = off SET plan_cache_mode = force_generic_plan AS $$
BEGIN
    RETURN ARRAY(
        SELECT s.id
        FROM (
            SELECT q.tenant, c.scope, array_agg(q.id ORDER BY q.id) AS ids, array_agg(q.recipient ORDER BY q.id) AS recipients
            FROM queue AS q CROSS JOIN LATERAL (SELECT campaign_path(q.metadata) AS path OFFSET 0) AS p
            LEFT JOIN campaigns AS c ON c.id = p.path[1]
            WHERE q.id = ANY (ids) AND (p.path IS NULL
                OR EXISTS (SELECT FROM campaign_jobs AS j WHERE j.id = p.path[3] AND j.status <> 'STOPPED'))
            GROUP BY q.tenant, c.scope
        -- one call for all of a kind, because a call costs more than a look-up
        ) AS kind, LATERAL unnest(kind.ids, CASE WHEN kind.scope IS NULL THEN '{}'
            ELSE suppressed(kind.tenant, kind.scope, kind.recipients) END) AS s (id, suppressed)
        WHERE s.suppressed IS NOT TRUE);
END $$;
COMMENT ON FUNCTION campaign_may_begin IS
    'Which of these rows may begin a transaction: not those of stopped jobs and suppressed addresses.';

CREATE FUNCTION campaign_outcomes(
    -- of each outcome
    campaigns bigint[], numbers integer[], mails bigint[], rows bigint[], states text[], bounced boolean[], codes text[],
    sub_types text[], ended timestamptz[],
    changed bigint[]
) RETURNS integer LANGUAGE plpgsql SECURITY DEFINER SET search_path = pgmta, pg_catalog, pg_temp SET jit = off
    SET enable_hashjoin = off SET enable_mergejoin = off SET enable_seqscan = off AS $$
#variable_conflict use_column
DECLARE
    told integer;
BEGIN
    UPDATE campaign_recipients AS r SET state = o.state, bounced = o.bounced,
        sent_at = CASE WHEN o.state = 'sent' THEN o.ended END, answered_at = CASE WHEN o.state <> 'deferred' THEN o.ended END,
        error_code = nullif(o.code, ''), error_sub_type = nullif(o.sub_type, '')
    FROM unnest(campaigns, numbers, mails, rows, states, campaign_outcomes.bounced, codes, sub_types, ended)
        AS o (campaign, number, mail, row_id, state, bounced, code, sub_type, ended)
    WHERE r.campaign_id = o.campaign AND r.number = o.number AND r.message_id = o.mail
        -- a delivery is a fact, whatever was known before
        AND (r.state IN ('queued', 'deferred') AND (o.state = 'sent' OR o.row_id = ANY (changed))
            OR r.state IN ('failed', 'unknown') AND o.state = 'sent');
    GET DIAGNOSTICS told = ROW_COUNT;
    RETURN told;
END $$;
COMMENT ON FUNCTION campaign_outcomes IS
    'Writes outcomes of attempts to the recipients of campaigns, in the commit of the outcomes. `changed` are the rows that '
    'these changed: of the others only a delivery counts. Returns how many recipients changed.';

CREATE VIEW campaign_active AS
SELECT u.credential, b.rate FROM credential_use AS u LEFT JOIN budgets AS b ON b.key = 'credential:' || u.credential
WHERE EXISTS (SELECT FROM campaign_jobs AS j WHERE j.campaign_id = u.campaign_id AND j.status IN ('ENQUEUED', 'SENDING'));
COMMENT ON VIEW campaign_active IS 'Credentials whose campaigns feed the queue.';
COMMENT ON COLUMN campaign_active.credential IS 'As credential_use.credential.';
COMMENT ON COLUMN campaign_active.rate IS 'Its mails per second; null: any number.';

CREATE VIEW campaign_statistics AS
SELECT c.id, c.tenant, c.name,
    s.unsent + s.queued + s.deferred + s.sent + s.failed + s.invalid + s.unknown AS recipients,
    s.unsent, s.queued + s.deferred AS queued, s.sent, s.failed AS errored, s.invalid, s.unknown, s.bounced,
    b.rate, CASE WHEN b.rate > 0 THEN make_interval(secs => (s.unsent + s.queued)::float8 / (b.rate * 0.97)) END AS estimated_wait,
    (SELECT jsonb_object_agg(j.status, j.number) FROM (
        SELECT status, count(*) AS number FROM campaign_jobs WHERE campaign_id = c.id GROUP BY status) AS j) AS jobs,
    c.halted_at, c.halted_reason, c.credential, c.created_at
FROM campaigns AS c
LEFT JOIN LATERAL (
    SELECT coalesce(sum(n.unsent), 0) AS unsent, coalesce(sum(n.queued), 0) AS queued, coalesce(sum(n.deferred), 0) AS deferred,
        coalesce(sum(n.sent), 0) AS sent, coalesce(sum(n.failed), 0) AS failed, coalesce(sum(n.invalid), 0) AS invalid,
        coalesce(sum(n.unknown), 0) AS unknown, coalesce(sum(n.bounced), 0) AS bounced
    FROM campaign_counts AS n WHERE n.campaign_id = c.id) AS s ON true
LEFT JOIN budgets AS b ON b.key = 'credential:' || c.credential;
COMMENT ON VIEW campaign_statistics IS
    'How far each campaign is: unsent + queued + sent + errored + invalid + unknown = recipients, in every look.';
COMMENT ON COLUMN campaign_statistics.id IS 'campaigns.id.';
COMMENT ON COLUMN campaign_statistics.tenant IS 'campaigns.tenant.';
COMMENT ON COLUMN campaign_statistics.name IS 'campaigns.name.';
COMMENT ON COLUMN campaign_statistics.recipients IS 'All of its recipients.';
COMMENT ON COLUMN campaign_statistics.unsent IS 'Not in the queue yet.';
COMMENT ON COLUMN campaign_statistics.queued IS 'In the queue.';
COMMENT ON COLUMN campaign_statistics.sent IS 'The next hop took them.';
COMMENT ON COLUMN campaign_statistics.errored IS 'Refused for good, or too late.';
COMMENT ON COLUMN campaign_statistics.invalid IS 'Not to be sent, for example suppressed.';
COMMENT ON COLUMN campaign_statistics.unknown IS 'The next hop may have them.';
COMMENT ON COLUMN campaign_statistics.bounced IS 'There is no such mailbox, whatever the state.';
COMMENT ON COLUMN campaign_statistics.rate IS 'Mails per second of its credential; null: any number.';
COMMENT ON COLUMN campaign_statistics.estimated_wait IS 'How long the rest takes at that rate; null without a rate.';
COMMENT ON COLUMN campaign_statistics.jobs IS 'The number of its jobs by status.';
COMMENT ON COLUMN campaign_statistics.halted_at IS 'campaigns.halted_at.';
COMMENT ON COLUMN campaign_statistics.halted_reason IS 'campaigns.halted_reason.';
COMMENT ON COLUMN campaign_statistics.credential IS 'campaigns.credential.';
COMMENT ON COLUMN campaign_statistics.created_at IS 'campaigns.created_at.';

INSERT INTO rights (object, role, privileges) VALUES
    ('campaign_jobs', 'pgmta_operator', 'SELECT'),
    ('campaign_jobs', 'pgmta_reader', 'SELECT'),
    ('campaign_jobs', 'pgmta_queued', 'SELECT'),
    ('credential_use', 'pgmta_operator', 'SELECT'),
    ('credential_use', 'pgmta_reader', 'SELECT'),
    ('credential_use', 'pgmta_queued', 'SELECT'),
    ('campaign_active', 'pgmta_operator', 'SELECT'),
    ('campaign_active', 'pgmta_reader', 'SELECT'),
    ('campaign_active', 'pgmta_queued', 'SELECT'),
    ('campaign_statistics', 'pgmta_operator', 'SELECT'),
    ('campaign_statistics', 'pgmta_reader', 'SELECT'),
    ('FUNCTION campaign_start', 'pgmta_operator', 'EXECUTE'),
    ('FUNCTION campaign_stop', 'pgmta_operator', 'EXECUTE'),
    ('FUNCTION campaign_resume', 'pgmta_operator', 'EXECUTE'),
    ('FUNCTION campaign_retry', 'pgmta_operator', 'EXECUTE'),
    ('FUNCTION campaign_delete', 'pgmta_operator', 'EXECUTE'),
    ('FUNCTION job_stop', 'pgmta_operator', 'EXECUTE'),
    ('FUNCTION job_resume', 'pgmta_operator', 'EXECUTE'),
    ('FUNCTION job_retry', 'pgmta_operator', 'EXECUTE'),
    ('FUNCTION campaign_take', 'pgmta_queued', 'EXECUTE'),
    ('FUNCTION campaign_feed', 'pgmta_queued', 'EXECUTE'),
    ('FUNCTION campaign_withdraw', 'pgmta_queued', 'EXECUTE'),
    ('FUNCTION campaign_reconcile', 'pgmta_queued', 'EXECUTE'),
    ('FUNCTION campaign_finalise', 'pgmta_queued', 'EXECUTE'),
    ('FUNCTION campaign_halt', 'pgmta_queued', 'EXECUTE'),
    ('FUNCTION campaign_may_begin', 'pgmta_queued', 'EXECUTE'),
    ('FUNCTION campaign_outcomes', 'pgmta_queued', 'EXECUTE');

SELECT grants();

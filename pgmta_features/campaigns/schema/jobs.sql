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
    zone text COLLATE "C",
    pause interval,
    opens_at timestamptz,
    closes_at timestamptz,
    status text COLLATE "C" NOT NULL DEFAULT 'READY',
    former text COLLATE "C",
    created_at timestamptz NOT NULL DEFAULT now(),
    changed_at timestamptz NOT NULL DEFAULT now(),
    changed_by text NOT NULL DEFAULT acting(),
    fed_at timestamptz,
    fed_by text,
    CONSTRAINT campaign_jobs_moves CHECK (CASE WHEN former IS NULL THEN status = 'READY' ELSE (former, status) IN (
        ('READY', 'ENQUEUED'), ('READY', 'STOPPED'),
        ('ENQUEUED', 'READY'), ('ENQUEUED', 'SENDING'), ('ENQUEUED', 'SENT'), ('ENQUEUED', 'STOPPED'),
        ('SENDING', 'READY'), ('SENDING', 'SENT'), ('SENDING', 'STOPPED'),
        ('SENT', 'READY'), ('SENT', 'LOGGED'), ('SENT', 'STOPPED'),
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
COMMENT ON COLUMN campaign_jobs.takes IS
    'The states of the recipients that it sends: unsent, and after a retry failed, and unknown on request.';
COMMENT ON COLUMN campaign_jobs.again_from IS
    'Ids of mail from here on are of the last retry, which takes a failed or unknown recipient once.';
COMMENT ON COLUMN campaign_jobs.zone IS 'It has the recipients of its range in this time zone; null: all of them.';
COMMENT ON COLUMN campaign_jobs.pause IS
    'It begins this long after the first part of its start was fed; null: it has begun, or is of that part.';
COMMENT ON COLUMN campaign_jobs.opens_at IS 'Its mail begins from this time on: its window, or the next one; null: at any time.';
COMMENT ON COLUMN campaign_jobs.closes_at IS 'And before this one.';
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
COMMENT ON CONSTRAINT campaign_jobs_moves ON campaign_jobs IS 'The moves of a job: states.py of the feature has the same.';
COMMENT ON INDEX campaign_jobs_open IS 'Jobs with something to do.';
COMMENT ON INDEX campaign_jobs_campaign IS 'The jobs of a campaign.';

CREATE FUNCTION campaign_jobs_move() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF NEW.status <> OLD.status THEN
        NEW.former := OLD.status;
        NEW.changed_at := now();
        NEW.changed_by := pgmta.acting();
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
COMMENT ON TABLE credential_use IS 'Which campaign feeds the queue with a credential: at most one, with any number of jobs.';
COMMENT ON COLUMN credential_use.credential IS 'As campaigns.credential.';
COMMENT ON COLUMN credential_use.campaign_id IS 'campaigns.id.';
COMMENT ON COLUMN credential_use.since IS 'From when on.';

CREATE FUNCTION campaign_lock(campaign bigint)
    RETURNS campaigns LANGUAGE plpgsql SET search_path = pgmta, pg_catalog, pg_temp AS $$
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

CREATE FUNCTION campaign_start(
    campaign bigint, rate double precision DEFAULT NULL, jobs integer DEFAULT 1, part numeric DEFAULT NULL,
    pause interval DEFAULT NULL, present timestamptz DEFAULT clock_timestamp()
) RETURNS SETOF bigint LANGUAGE plpgsql SECURITY DEFINER SET search_path = pgmta, pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    found campaigns := campaign_lock(campaign);
    first integer := 1 + coalesce((SELECT max(j.last) FROM campaign_jobs AS j WHERE j.campaign_id = campaign), 0);
    last integer := (SELECT max(r.number) FROM campaign_recipients AS r WHERE r.campaign_id = campaign);
    ranges int4range[];
    zones text[] := ARRAY[NULL];
    size integer;
    unsent bigint;
    parted integer;
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
    IF (part IS NULL) <> (pause IS NULL) THEN
        PERFORM submit_refuse('pause', 'a first part has a pause after it, and the other way round');
    ELSIF part <= 0 OR part > 1 AND part <> trunc(part) OR part = 'NaN' THEN
        PERFORM submit_refuse('part', 'it is neither a share below 1 nor a number');
    ELSIF pause < '0' THEN
        PERFORM submit_refuse('pause', 'it is less than 0');
    END IF;
    IF found.zone_column IS NOT NULL THEN
        -- programs may leave the zone out
        UPDATE campaign_recipients AS r SET zone = found.zone
        WHERE r.campaign_id = campaign AND r.number BETWEEN first AND last AND r.zone IS NULL;
        zones := ARRAY(SELECT DISTINCT r.zone FROM campaign_recipients AS r
            WHERE r.campaign_id = campaign AND r.number BETWEEN first AND last AND r.zone IS NOT NULL ORDER BY 1);
        PERFORM campaign_zone(z) FROM unnest(zones) AS z
        WHERE lower(z COLLATE "C") NOT IN (SELECT lower(n COLLATE "C") FROM campaign_zones() AS n);
    END IF;
    PERFORM campaign_refuse_closed(found, coalesce(z, found.zone), present) FROM unnest(zones) AS z;
    IF part IS NOT NULL THEN
        unsent := (SELECT count(*) FROM campaign_recipients AS r
            WHERE r.campaign_id = campaign AND r.number BETWEEN first AND last AND r.state = 'unsent');
        parted := CASE WHEN part < 1 THEN ceil(unsent * part) ELSE part END;
        IF parted >= unsent THEN
            PERFORM submit_refuse('part', format('%s of %s recipients leaves none for later', parted, unsent), NULL,
                'Leave it out, or give less.');
        END IF;
        parted := (SELECT r.number FROM campaign_recipients AS r
            WHERE r.campaign_id = campaign AND r.number BETWEEN first AND last AND r.state = 'unsent'
            ORDER BY r.number OFFSET parted - 1 LIMIT 1);
        ranges := ARRAY[int4range(first, parted, '[]')];
        first := parted + 1;
    END IF;
    size := ceil((last - first + 1)::numeric / jobs);
    ranges := ranges || ARRAY(
        SELECT int4range(f, least(f + size - 1, last), '[]') FROM generate_series(first, last, size) AS f ORDER BY f);
    IF rate IS NOT NULL THEN
        PERFORM budget_set('credential:' || found.credential, rate,
            (SELECT b.month_most FROM budgets AS b WHERE b.key = 'credential:' || found.credential));
    END IF;
    RETURN QUERY
        INSERT INTO campaign_jobs (campaign_id, first, last, fed_to, zone, pause, opens_at, closes_at)
        SELECT campaign, lower(p.range), upper(p.range) - 1, lower(p.range) - 1, z.name,
            CASE WHEN part IS NOT NULL AND p.place > 1 THEN pause END, z.opens_at, z.closes_at
        FROM unnest(ranges) WITH ORDINALITY AS p (range, place) CROSS JOIN (
            SELECT n.name, w.opens_at, w.closes_at
            FROM unnest(zones) AS n (name),
                LATERAL campaign_window(found, coalesce(n.name, found.zone), present) AS w OFFSET 0) AS z
        WHERE z.name IS NULL OR EXISTS (SELECT FROM campaign_recipients AS r
            WHERE r.campaign_id = campaign AND r.zone = z.name AND r.number BETWEEN lower(p.range) AND upper(p.range) - 1)
        ORDER BY p.place, z.name
        RETURNING campaign_jobs.id;
END $$;
COMMENT ON FUNCTION campaign_start IS
    'Makes the jobs of a campaign, for its recipients without one, and returns their ids. `rate`, in mails per second, '
    'becomes that of its credential. Several jobs share the rate. With `part`, a share below 1 or a number, so many recipients '
    'get their mail first, and the others `pause` after all of these were fed. Each time zone of recipients has a job.';

CREATE FUNCTION campaign_refuse_halted(found campaigns) RETURNS void LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF found.halted_at IS NOT NULL THEN
        RAISE EXCEPTION 'the campaign % is halted', to_json(found.name) USING ERRCODE = 'object_not_in_prerequisite_state',
            DETAIL = found.halted_reason,
            HINT = '`queuectl campaign resume NAME --halted`, or campaign_resume(id, halted => true), goes on nevertheless.';
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
        RAISE EXCEPTION 'there is no job %', job USING ERRCODE = 'no_data_found',
            HINT = '`queuectl campaign job list`, or the table campaign_jobs, has them.';
    END IF;
    RETURN found;
END $$;
COMMENT ON FUNCTION job_campaign IS 'The campaign of a job.';

CREATE FUNCTION campaign_resume(campaign bigint, halted boolean DEFAULT false) RETURNS integer LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pgmta, pg_catalog, pg_temp AS $$
BEGIN
    PERFORM campaign_clear_halt(campaign, halted);
    IF halted THEN
        UPDATE campaign_jobs AS j SET pause = NULL
        WHERE j.campaign_id = campaign AND j.pause IS NOT NULL AND campaign_first_failed(j) IS NOT NULL;
    END IF;
    RETURN campaign_again(ARRAY(SELECT j.id FROM campaign_jobs AS j WHERE j.campaign_id = campaign), '{unsent}');
END $$;
COMMENT ON FUNCTION campaign_resume IS
    'Goes on with the stopped jobs of a campaign, and returns how many: recipients that are unsent. With `halted` also of one '
    'that was halted: the bounces until now no longer count, and the rest waits no longer for a first part that failed.';

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
        DELETE FROM campaign_alarms AS a WHERE a.campaign_id = campaign;
    END IF;
END $$;
COMMENT ON FUNCTION campaign_clear_halt IS 'Locks a campaign; refuses one that is halted, or ends its halt.';

CREATE FUNCTION campaign_again(jobs bigint[], takes text[]) RETURNS integer LANGUAGE plpgsql
    SET search_path = pgmta, pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    changed integer;
BEGIN
    UPDATE campaign_jobs AS j SET status = 'READY', fed_to = j.first - 1, takes = takes, again_from = next_message_id()
    WHERE j.id = ANY (jobs) AND (j.status = 'STOPPED' OR j.status = 'LOGGED' AND EXISTS (
        SELECT FROM campaign_recipients AS r
        WHERE r.campaign_id = j.campaign_id AND r.number BETWEEN j.first AND j.last AND r.state = ANY (takes)
            AND (j.zone IS NULL OR r.zone = j.zone)));
    GET DIAGNOSTICS changed = ROW_COUNT;
    RETURN changed;
END $$;
COMMENT ON FUNCTION campaign_again IS
    'Lets jobs begin again, in their places, with recipients in these states; not those that are done and have none.';

CREATE FUNCTION campaign_delete(campaign bigint) RETURNS bigint LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pgmta, pg_catalog, pg_temp AS $$
DECLARE
    found campaigns := campaign_lock(campaign);
    removed bigint;
BEGIN
    PERFORM FROM campaigns AS c WHERE c.id = campaign FOR UPDATE;  -- waits for the end of an import
    IF EXISTS (SELECT FROM campaign_jobs AS j WHERE j.campaign_id = campaign AND j.status <> 'LOGGED') THEN
        RAISE EXCEPTION 'the campaign % is not done', to_json(found.name) USING ERRCODE = 'object_not_in_prerequisite_state',
            HINT = 'Stop it, and wait until its jobs are LOGGED: `queuectl campaign delete --wait` does both.';
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
    s.unsubscribed, s.complained, b.rate,
    CASE WHEN b.rate > 0 THEN make_interval(secs => (s.unsent + s.queued)::float8 / (b.rate * 0.97)) END AS estimated_wait,
    (SELECT jsonb_object_agg(j.status, j.number) FROM (
        SELECT status, count(*) AS number FROM campaign_jobs WHERE campaign_id = c.id GROUP BY status) AS j) AS jobs,
    c.halted_at, c.halted_reason, c.credential, c.created_at
FROM campaigns AS c
LEFT JOIN LATERAL (
    SELECT coalesce(sum(n.unsent), 0) AS unsent, coalesce(sum(n.queued), 0) AS queued, coalesce(sum(n.deferred), 0) AS deferred,
        coalesce(sum(n.sent), 0) AS sent, coalesce(sum(n.failed), 0) AS failed, coalesce(sum(n.invalid), 0) AS invalid,
        coalesce(sum(n.unknown), 0) AS unknown, coalesce(sum(n.bounced), 0) AS bounced,
        coalesce(sum(n.unsubscribed), 0) AS unsubscribed, coalesce(sum(n.complained), 0) AS complained
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
COMMENT ON COLUMN campaign_statistics.unsubscribed IS 'A link of the campaign unsubscribed them.';
COMMENT ON COLUMN campaign_statistics.complained IS 'They complained about mail of the campaign.';
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
    ('FUNCTION job_retry', 'pgmta_operator', 'EXECUTE');

-- Campaigns in the queue: workers feed them, withdraw, reconcile, halt and finalise.

CREATE FUNCTION campaign_rest_at(job campaign_jobs)
    RETURNS timestamptz LANGUAGE sql STABLE SET search_path = pgmta, pg_catalog, pg_temp AS $$
    SELECT coalesce(max(CASE WHEN e.status = 'SENT' OR e.status = 'LOGGED' AND (e.former = 'SENT' OR NOT EXISTS (
            SELECT FROM campaign_recipients AS r WHERE r.campaign_id = e.campaign_id AND r.number BETWEEN e.first AND e.last
                AND (e.zone IS NULL OR r.zone = e.zone) AND r.state = 'unsent'))
        THEN coalesce(e.fed_at, e.changed_at) + job.pause ELSE 'infinity' END), '-infinity')
    FROM campaign_jobs AS e
    WHERE e.campaign_id = job.campaign_id AND e.created_at = job.created_at AND e.first = (
        SELECT min(s.first) FROM campaign_jobs AS s WHERE s.campaign_id = job.campaign_id AND s.created_at = job.created_at)
$$;
COMMENT ON FUNCTION campaign_rest_at IS 'When a job with a pause may begin: infinity while the first part has not fed all.';

CREATE FUNCTION campaign_is_due(job campaign_jobs, visible_at timestamptz, present timestamptz)
    RETURNS boolean LANGUAGE plpgsql STABLE
    SET search_path = pgmta, pg_catalog, pg_temp AS $$
BEGIN
    RETURN coalesce(visible_at <= present, true) AND coalesce(job.opens_at <= present AND job.closes_at > present, true)
        AND CASE WHEN job.pause IS NULL THEN true WHEN campaign_rest_at(job) > present THEN false
            -- campaign_halt() may come a second later
            ELSE campaign_first_failed(job) IS NULL END;
END $$;
COMMENT ON FUNCTION campaign_is_due IS
    'Whether the time of a job has come: of its campaign, its window, and the end of its pause if its first part went well.';

CREATE FUNCTION campaign_first_failed(job campaign_jobs) RETURNS text LANGUAGE plpgsql STABLE
    SET search_path = pgmta, pg_catalog, pg_temp AS $$
DECLARE
    part record;
    failed bigint;
    others bigint;
BEGIN
    SELECT e.first, e.last INTO part FROM campaign_jobs AS e
    WHERE e.campaign_id = job.campaign_id AND e.created_at = job.created_at ORDER BY e.first LIMIT 1;
    failed := (SELECT count(*) FROM campaign_recipients AS r
        WHERE r.campaign_id = job.campaign_id AND r.state = 'failed' AND r.number BETWEEN part.first AND part.last);
    IF failed = 0 THEN RETURN NULL; END IF;
    -- no more of them is read than decides
    others := (SELECT count(*) FROM (
        SELECT FROM campaign_recipients AS r WHERE r.campaign_id = job.campaign_id AND r.number BETWEEN part.first AND part.last
            AND r.state NOT IN ('invalid', 'failed')
        LIMIT failed) AS o);
    RETURN CASE WHEN others < failed THEN format('%s of %s mails of the first part failed', failed, failed + others) END;
END $$;
COMMENT ON FUNCTION campaign_first_failed IS
    'Why the rest of a campaign must not follow its first part: more than half of it failed. Null if it may.';

CREATE FUNCTION campaign_take(present timestamptz DEFAULT clock_timestamp()) RETURNS integer LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pgmta, pg_catalog, pg_temp AS $$
DECLARE
    job record;
    taken integer := 0;
BEGIN
    FOR job IN
        SELECT j.id, c.credential, c.id AS campaign FROM campaign_jobs AS j JOIN campaigns AS c ON c.id = j.campaign_id
        WHERE j.status = 'READY' AND c.halted_at IS NULL AND campaign_is_due(j, c.visible_at, present)
            AND NOT EXISTS (SELECT FROM credential_use AS u WHERE u.credential = c.credential AND u.campaign_id <> c.id)
            -- another worker may have locked an older job, to give it the same credential
            AND (EXISTS (SELECT FROM credential_use AS u WHERE u.campaign_id = c.id) OR NOT EXISTS (
                SELECT FROM campaign_jobs AS k JOIN campaigns AS d ON d.id = k.campaign_id
                WHERE k.status = 'READY' AND k.id < j.id AND d.id <> c.id AND d.credential = c.credential
                    AND d.halted_at IS NULL AND campaign_is_due(k, d.visible_at, present)))
        ORDER BY j.id LIMIT 1 FOR UPDATE OF j SKIP LOCKED
    LOOP
        -- a transaction that feeds or frees the credential may wait for a job that is locked here, also for one that is
        -- no longer READY: a later round
        PERFORM FROM credential_use AS u WHERE u.credential = job.credential FOR NO KEY UPDATE SKIP LOCKED;
        CONTINUE WHEN NOT FOUND AND EXISTS (SELECT FROM credential_use AS u WHERE u.credential = job.credential);
        INSERT INTO credential_use AS u (credential, campaign_id) VALUES (job.credential, job.campaign)
        ON CONFLICT (credential) DO UPDATE SET since = u.since WHERE u.campaign_id = excluded.campaign_id;
        IF FOUND THEN
            UPDATE campaign_jobs AS j SET status = 'ENQUEUED', pause = NULL WHERE j.id = job.id;
            taken := taken + 1;
        END IF;
    END LOOP;
    RETURN taken;
END $$;
COMMENT ON FUNCTION campaign_take IS
    'Gives the oldest READY job its credential, unless another campaign has it, and returns 1; 0 if there is no such job. The '
    'row of credential_use decides between workers.';

CREATE FUNCTION campaign_feed(
    credential text, worker text, present timestamptz DEFAULT clock_timestamp(), OUT fed integer, OUT more boolean
) LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pgmta, pg_catalog, pg_temp
    SET standard_conforming_strings = on SET jit = off SET plan_cache_mode = force_generic_plan
    SET enable_hashjoin = off SET enable_mergejoin = off SET enable_seqscan = off AS $$
#variable_conflict use_column
DECLARE
    campaign campaigns;
    template templates;
    job campaign_jobs;
    rate double precision := (SELECT b.rate FROM budgets AS b WHERE b.key = 'credential:' || campaign_feed.credential
        ORDER BY b.generation DESC LIMIT 1);  -- found before its dead versions
    most double precision := greatest(coalesce(ceil(rate * 2), 200), 2);  -- commits and round trips take a second of it
    hostname text := (SELECT s.hostname FROM submit_settings AS s);
    words text[];
    room integer;
    scanned integer;
    picked record;
    found record;
BEGIN
    fed := 0;
    more := false;
    -- no attempt begins before a later commit, whose fsync makes this one durable too
    PERFORM set_config('synchronous_commit', 'off', true);
    -- a worker that finds the credential locked leaves it to the other: what fits into the queue is counted under this lock
    room := (SELECT 1 FROM credential_use AS u WHERE u.credential = campaign_feed.credential FOR UPDATE SKIP LOCKED);
    IF room IS NULL THEN RETURN; END IF;
    -- separate statements, whose snapshots have what others committed under the lock: another template, or what they fed
    SELECT c.* INTO campaign FROM credential_use AS u JOIN campaigns AS c ON c.id = u.campaign_id
    WHERE u.credential = campaign_feed.credential;
    -- mail on hold keeps no other mail back, nor does mail in flight for long, which hangs, or whose worker died. But a row waits
    -- for its time under a lease, for most / rate; with the double of it the feed of such mail is slower than the rate
    room := most - (
        SELECT count(*) FROM campaign_recipients AS r JOIN queue AS q ON q.message_id = r.message_id
        WHERE r.campaign_id = campaign.id AND r.state = 'queued' AND r.state IN ('queued', 'deferred') AND q.status <> 'HOLD'
            AND coalesce(q.lease_since > present - make_interval(secs => coalesce(2 + 2 * most / rate, 2)), true));
    IF room <= 0 THEN
        more := true;
        RETURN;
    END IF;
    room := least(room, 1000);
    SELECT t.* INTO template FROM templates AS t WHERE t.id = campaign.template_id;
    words := ARRAY(SELECT jsonb_object_keys(template.words));
    FOR job IN
        SELECT j.* FROM campaign_jobs AS j WHERE j.campaign_id = campaign.id AND j.status IN ('ENQUEUED', 'SENDING')
            AND coalesce(j.closes_at > present, true)
        ORDER BY j.id FOR UPDATE
    LOOP
        IF room <= 0 THEN
            more := true;
            EXIT;
        END IF;
        -- a retry takes each recipient once, and none whose mail is on hold, because an operator may release that
        IF job.zone IS NULL THEN
            SELECT array_agg(p.number ORDER BY p.number) AS numbers, array_agg(p.recipient ORDER BY p.number) AS recipients
            INTO picked
            FROM (
                SELECT r.number, r.recipient FROM campaign_recipients AS r
                WHERE r.campaign_id = campaign.id AND r.number > job.fed_to AND r.number <= job.last
                    AND r.state = ANY (job.takes)
                    AND (r.state = 'unsent' OR coalesce(r.message_id, 0) < job.again_from
                        AND coalesce((SELECT false FROM queue AS q WHERE q.message_id = r.message_id LIMIT 1), true))
                ORDER BY r.number LIMIT room) AS p;
        ELSE
            SELECT array_agg(p.number ORDER BY p.number) AS numbers, array_agg(p.recipient ORDER BY p.number) AS recipients
            INTO picked
            FROM (
                SELECT r.number, r.recipient FROM campaign_recipients AS r
                WHERE r.campaign_id = campaign.id AND r.number > job.fed_to AND r.number <= job.last
                    AND r.state = ANY (job.takes)
                    AND r.zone = job.zone AND r.zone IS NOT NULL  -- the index of zones
                    AND (r.state = 'unsent' OR coalesce(r.message_id, 0) < job.again_from
                        AND coalesce((SELECT false FROM queue AS q WHERE q.message_id = r.message_id LIMIT 1), true))
                ORDER BY r.number LIMIT room) AS p;
        END IF;
        scanned := coalesce(cardinality(picked.numbers), 0);
        IF scanned > 0 THEN
            WITH marked AS (
                UPDATE campaign_recipients AS r SET state = CASE WHEN p.suppressed THEN 'invalid' ELSE 'queued' END,
                    error_code = CASE WHEN p.suppressed THEN 'suppressed' END, error_sub_type = NULL, bounced = false,
                    answered_at = CASE WHEN p.suppressed THEN now() END, sent_at = NULL,
                    message_id = CASE WHEN NOT p.suppressed THEN next_message_id() END
                FROM unnest(picked.numbers, suppressed(campaign.tenant, campaign.scope, picked.recipients))
                    AS p (number, suppressed)
                WHERE r.campaign_id = campaign.id AND r.number = p.number AND r.state = ANY (job.takes)
                RETURNING r.number, r.recipient, r.domain, r.message_id, jsonb_build_object('to',
                    jsonb_build_array(jsonb_build_array('', r.recipient)),
                    -- a list may have words that another template had
                    'words', CASE WHEN jsonb_typeof(r.params) <> 'object' THEN r.params
                        WHEN r.params - words = '{}' THEN r.params
                        ELSE r.params - ARRAY(SELECT jsonb_object_keys(r.params - words)) END
                        || CASE WHEN template.words ? 'recipient' THEN jsonb_build_object('recipient', r.recipient)
                            ELSE '{}' END)
                    || CASE WHEN campaign.scope <> '' OR template.words ? 'unsubscribe' THEN jsonb_build_object('unsubscribe',
                        jsonb_build_object('campaign', campaign.id, 'number', r.number)) ELSE '{}' END AS params
            )
            SELECT array_agg(campaign_message(campaign, message_id, recipient, params, hostname)) AS mails,
                array_agg(recipient) AS recipients, array_agg(domain) AS domains,
                array_agg(campaign_metadata(campaign, rate IS NOT NULL) || jsonb_build_object('_campaign',
                    concat_ws('.', campaign.id, number, job.id))) AS metadata
            INTO found FROM marked WHERE message_id IS NOT NULL;
            IF found.mails IS NOT NULL THEN
                fed := fed + queue_put(found.mails, ARRAY(SELECT new_row(n::integer, r, d, m)
                    FROM unnest(found.recipients, found.domains, found.metadata) WITH ORDINALITY AS each (r, d, m, n)), true);
            END IF;
        END IF;
        UPDATE campaign_jobs AS j SET fed_at = present, fed_by = worker,
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
    'Puts the next mail of a credential''s campaign into the queue: two seconds of its rate, at least two, or 200 without one, '
    'less what waits there and is not on hold, or is in flight for at most 2 seconds and twice the time that the rate needs for '
    'as many. Mail, marks and cursor are one commit. Returns how much, and whether more may follow.';

CREATE FUNCTION campaign_metadata(campaign campaigns, rated boolean) RETURNS jsonb STABLE
RETURN jsonb_strip_nulls(jsonb_build_object('campaign', campaign.name, 'credential', campaign.credential,
    '_scope', campaign.scope, '_budget', CASE WHEN rated THEN 'credential:' || campaign.credential END,
    '_deadline', CASE WHEN campaign.deadline IS NOT NULL
        THEN to_char(campaign.deadline AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"') END));
COMMENT ON FUNCTION campaign_metadata IS 'The metadata that all mail of a campaign has.';

CREATE FUNCTION campaign_message(campaign campaigns, id bigint, recipient text, params jsonb, hostname text) RETURNS new_message
LANGUAGE sql RETURN new_message(id => id, size => octet_length(params::text), priority => (campaign).priority,
    trace => submit_trace(hostname, id), body => '', sender => (campaign).sender,
    sender_domain => mailbox_domain((campaign).sender COLLATE "C"), on_failed => 'remove',
    message_id_header => composed_message_id(id, hostname), origin => 'sql',
    utf8 => concat(recipient, (campaign).sender) ~ '[^\u0001-\u007f]' COLLATE "C", tenant => (campaign).tenant, once => true,
    submitted_by => (campaign).created_by, ret => 'HDRS', template_id => (campaign).template_id, params => params);
COMMENT ON FUNCTION campaign_message IS 'A message of a campaign for queue_put; it has one recipient.';

CREATE FUNCTION campaign_withdraw(most integer, present timestamptz DEFAULT clock_timestamp())
    RETURNS integer LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pgmta, pg_catalog, pg_temp SET jit = off
    SET enable_hashjoin = off SET enable_mergejoin = off SET enable_seqscan = off AS $$
DECLARE
    job record;
    rows bigint[];
    numbers integer[];
    reasons text[];
    back boolean;
    withdrawn integer := 0;
BEGIN
    FOR job IN
        SELECT j.id, j.campaign_id, j.first, j.last, j.zone, j.status, j.opens_at, j.closes_at, c.tenant, c.scope
        FROM campaign_jobs AS j JOIN campaigns AS c ON c.id = j.campaign_id
        WHERE j.status <> 'LOGGED' ORDER BY j.id FOR UPDATE OF j SKIP LOCKED
    LOOP
        IF job.closes_at <= present THEN
            SELECT w.opens_at, w.closes_at INTO job.opens_at, job.closes_at
            FROM campaigns AS c, LATERAL campaign_window(c, coalesce(job.zone, c.zone), present) AS w
            WHERE c.id = job.campaign_id;
            UPDATE campaign_jobs AS j SET opens_at = job.opens_at, closes_at = job.closes_at,
                status = CASE WHEN j.status IN ('ENQUEUED', 'SENDING') AND job.opens_at > present THEN 'READY' ELSE j.status END
            WHERE j.id = job.id;
            PERFORM campaign_park(job.campaign_id, job.first, job.last, job.zone, job.opens_at, present);
        END IF;
        back := job.status = 'STOPPED' OR coalesce(job.opens_at > present, false);
        -- a row under a lease ends before its transaction, or is refused there and comes back
        SELECT array_agg(w.id), array_agg(w.number), array_agg(w.words) INTO rows, numbers, reasons FROM (
            SELECT q.id, r.number, r.words FROM (
                SELECT p.number, p.message_id, CASE WHEN job.status = 'STOPPED' THEN 'the campaign was stopped'
                    WHEN back THEN 'the hours of the campaign are over'
                    ELSE (suppressed_because(ARRAY[job.tenant], ARRAY[job.scope], ARRAY[p.recipient]))[1] END AS words
                FROM campaign_recipients AS p
                WHERE p.campaign_id = job.campaign_id AND p.number BETWEEN job.first AND job.last
                    AND p.state = ANY (CASE job.status WHEN 'STOPPED' THEN '{queued,deferred}' ELSE '{queued}' END::text[])
                    AND p.state IN ('queued', 'deferred') AND (job.zone IS NULL OR p.zone = job.zone) OFFSET 0) AS r
            JOIN queue AS q ON q.message_id = r.message_id
            -- without ORDER BY: so a batch ends with the last row that it takes
            WHERE r.words IS NOT NULL AND q.lease_token IS NULL AND q.status IN ('QUEUED', 'DEFERRED', 'HOLD')
                -- outside its hours mail keeps its attempts, so that it ends some day, and the hold of an operator
                AND (q.attempts = 0 AND q.status <> 'HOLD' OR NOT back OR job.status = 'STOPPED')
            LIMIT most FOR UPDATE OF q SKIP LOCKED) AS w;
        CONTINUE WHEN rows IS NULL;
        PERFORM rows_log(rows, CASE WHEN back THEN 'cancelled' ELSE 'suppressed' END, acting()::text, NULL, reasons);
        DELETE FROM queue AS q WHERE q.id = ANY (rows);
        UPDATE campaign_recipients AS r SET state = CASE WHEN back THEN 'unsent' ELSE 'invalid' END,
            error_code = CASE WHEN NOT back THEN 'suppressed' END, error_sub_type = NULL,
            answered_at = CASE WHEN NOT back THEN now() END, message_id = NULL
        WHERE r.campaign_id = job.campaign_id AND r.number = ANY (numbers) AND r.state IN ('queued', 'deferred');
        IF back AND job.status <> 'STOPPED' THEN
            UPDATE campaign_jobs AS j SET fed_to = least(j.fed_to, (SELECT min(n) FROM unnest(numbers) AS n) - 1),
                status = CASE j.status WHEN 'SENT' THEN 'READY' ELSE j.status END
            WHERE j.id = job.id;
        END IF;
        withdrawn := withdrawn + cardinality(rows);
    END LOOP;
    RETURN withdrawn;
END $$;
COMMENT ON FUNCTION campaign_withdraw IS
    'Takes mail of stopped jobs out of the queue, mail outside its hours that was never tried, and mail for suppressed '
    'addresses, at most so much a job, and returns how much. Its recipients are unsent, or invalid. A job whose window is '
    'over gets the next one.';

CREATE FUNCTION campaign_park(campaign bigint, first integer, last integer, zone text, until timestamptz, present timestamptz)
RETURNS void LANGUAGE plpgsql SET search_path = pgmta, pg_catalog, pg_temp SET jit = off
    SET enable_hashjoin = off SET enable_mergejoin = off SET enable_seqscan = off AS $$
#variable_conflict use_variable
BEGIN
    -- the server no longer knows the time zone: looked at again
    IF until = 'infinity' THEN until := date_trunc('day', present) + interval '2 days'; END IF;
    UPDATE queue AS q SET next_attempt = until WHERE q.id = ANY (ARRAY(
        SELECT w.id FROM campaign_recipients AS r JOIN queue AS w ON w.message_id = r.message_id
        WHERE r.campaign_id = campaign AND r.number BETWEEN first AND last AND (zone IS NULL OR r.zone = zone)
            AND r.state IN ('queued', 'deferred')
            AND w.attempts > 0 AND w.next_attempt < until AND w.lease_token IS NULL AND w.status IN ('QUEUED', 'DEFERRED')
        FOR UPDATE OF w SKIP LOCKED));
END $$;
COMMENT ON FUNCTION campaign_park IS 'Lets mail of a job that was tried before wait until its window opens.';

CREATE FUNCTION reply_word(reply text, name text) RETURNS text IMMUTABLE PARALLEL SAFE
RETURN CASE WHEN reply ~ '^[245][.\d]+ HTTP \d' COLLATE "C"
    THEN substring(reply FROM concat(' ', name, '=(.+?)(?: error_sub_type=| error_text=| \(given up |$)')) END;
COMMENT ON FUNCTION reply_word IS 'The error code or sub type of a provider in a reply by HTTP, as queued writes it.';

CREATE FUNCTION campaign_reconcile(most integer, present timestamptz DEFAULT clock_timestamp())
    RETURNS integer LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pgmta, pg_catalog, pg_temp SET standard_conforming_strings = on SET jit = off
    SET enable_hashjoin = off SET enable_mergejoin = off SET enable_seqscan = off AS $$
DECLARE
    job record;
    changed integer := 0;
    earliest integer;
    number integer;
BEGIN
    FOR job IN
        SELECT j.id, j.campaign_id, j.first, j.last, j.zone, j.opens_at FROM campaign_jobs AS j
        WHERE j.status <> 'LOGGED' ORDER BY j.id FOR UPDATE OF j SKIP LOCKED
    LOOP
        WITH gone AS MATERIALIZED (
            SELECT r.number, r.message_id FROM campaign_recipients AS r
            WHERE r.campaign_id = job.campaign_id AND r.number BETWEEN job.first AND job.last
                AND r.state IN ('queued', 'deferred') AND (job.zone IS NULL OR r.zone = job.zone)
                AND NOT EXISTS (SELECT FROM queue AS q WHERE q.message_id = r.message_id)
            LIMIT most
        ), ended AS MATERIALIZED (
            SELECT g.number, g.message_id, a.* FROM gone AS g LEFT JOIN LATERAL (
                SELECT a.event, a.code, a.enhanced, a.class, a.started_at, a.ended_at, a.reply FROM attempts AS a
                WHERE a.message_id = g.message_id AND a.event <> 'deferred'
                -- a delivery is a fact, whatever outcome came after it
                ORDER BY a.event = 'delivered' DESC, a.event = 'unknown' DESC, a.ended_at DESC LIMIT 1) AS a ON true
        ), told AS (
            UPDATE campaign_recipients AS r SET
                state = CASE WHEN e.event = 'delivered' THEN 'sent' WHEN e.event = 'unknown' THEN 'unknown'
                    WHEN e.event IS NULL OR e.reply IN ('the campaign was stopped', 'the hours of the campaign are over')
                        THEN 'unsent'
                    WHEN e.event = 'suppressed' THEN 'invalid' ELSE 'failed' END,
                sent_at = CASE WHEN e.event IN ('delivered', 'failed', 'unknown') THEN e.started_at END,
                answered_at = e.ended_at,
                bounced = e.event = 'failed' AND is_hard_bounce(e.class),
                error_code = CASE WHEN e.event = 'delivered' THEN NULL WHEN e.event = 'suppressed' THEN 'suppressed'
                    ELSE left(coalesce(reply_word(e.reply, 'error'), substring(e.reply FROM '^[245][.\d]+ HTTP (\d{3})\M'),
                        nullif(e.code, 0)::text, e.event), 100) END,
                error_sub_type = left(coalesce(reply_word(e.reply, 'error_sub_type'),
                    nullif(concat_ws(' ', nullif(e.enhanced, ''), e.class), '')), 100)
            FROM ended AS e
            WHERE r.campaign_id = job.campaign_id AND r.number = e.number AND r.message_id = e.message_id
                AND r.state IN ('queued', 'deferred')
            RETURNING r.number, r.state
        )
        SELECT count(*), min(told.number) FILTER (WHERE told.state = 'unsent') INTO number, earliest FROM told;
        changed := changed + number;
        -- what came back is fed again; another campaign may have the credential by now
        UPDATE campaign_jobs AS j SET fed_to = least(j.fed_to, earliest - 1),
            status = CASE j.status WHEN 'SENT' THEN 'READY' ELSE j.status END
        WHERE j.id = job.id AND earliest IS NOT NULL AND j.status IN ('READY', 'ENQUEUED', 'SENDING', 'SENT');
        -- an attempt that may not begin is handed back: of a stopped job, campaign_withdraw() takes it now
        UPDATE campaign_recipients AS r SET state = 'queued'
        WHERE r.campaign_id = job.campaign_id AND r.number BETWEEN job.first AND job.last AND r.state = 'deferred'
            AND (job.zone IS NULL OR r.zone = job.zone)
            -- mail that was tried stays deferred, which leaves the room of the feed to others
            AND EXISTS (SELECT FROM queue AS q WHERE q.message_id = r.message_id AND q.status = 'QUEUED' AND q.attempts = 0);
        IF job.opens_at > present THEN
            PERFORM campaign_park(job.campaign_id, job.first, job.last, job.zone, job.opens_at, present);
        END IF;
    END LOOP;
    RETURN changed;
END $$;
COMMENT ON FUNCTION campaign_reconcile IS
    'Writes the outcome of recipients whose mail left the queue without one: a lost lease, a command of an operator. The log '
    'says which; without an entry the recipient is unsent. Returns how many, at most so many a job.';

CREATE FUNCTION campaign_finalise(lease interval, present timestamptz DEFAULT clock_timestamp())
    RETURNS integer LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pgmta, pg_catalog, pg_temp SET jit = off
    SET enable_hashjoin = off SET enable_mergejoin = off SET enable_seqscan = off AS $$
DECLARE
    job record;
    used record;
    logged integer := 0;
BEGIN
    FOR job IN
        SELECT j.id, j.campaign_id, j.first, j.last, j.zone FROM campaign_jobs AS j
        WHERE j.status IN ('SENT', 'STOPPED') ORDER BY j.id FOR UPDATE SKIP LOCKED
    LOOP
        CONTINUE WHEN EXISTS (
            SELECT FROM campaign_recipients AS r WHERE r.campaign_id = job.campaign_id
                AND r.number BETWEEN job.first AND job.last AND r.state IN ('queued', 'deferred')
                AND (job.zone IS NULL OR r.zone = job.zone));
        UPDATE campaign_jobs AS j SET status = 'LOGGED' WHERE j.id = job.id;
        logged := logged + 1;
    END LOOP;
    FOR used IN SELECT u.credential, u.campaign_id FROM credential_use AS u ORDER BY u.credential FOR UPDATE SKIP LOCKED LOOP
        -- in a later snapshot: who gives it to a job, and who feeds the job, has locked the row before
        CONTINUE WHEN EXISTS (
            SELECT FROM campaign_jobs AS j WHERE j.campaign_id = used.campaign_id AND j.status IN ('ENQUEUED', 'SENDING'));
        CONTINUE WHEN EXISTS (
            SELECT FROM campaign_recipients AS r JOIN queue AS q ON q.message_id = r.message_id
            WHERE r.campaign_id = used.campaign_id AND r.state IN ('queued', 'deferred')
                AND (q.lease_token IS NOT NULL
                    OR q.status IN ('QUEUED', 'DEFERRED') AND q.next_attempt <= present + lease));
        DELETE FROM credential_use AS u WHERE u.credential = used.credential;
    END LOOP;
    RETURN logged;
END $$;
COMMENT ON FUNCTION campaign_finalise IS
    'Ends jobs that have nothing in the queue, and returns how many. A credential is free when its campaign has fed all, '
    'and no mail of that is in flight or due within a lease. It may be repeated.';

CREATE FUNCTION campaign_halt()
    RETURNS integer LANGUAGE plpgsql SECURITY DEFINER SET search_path = pgmta, pg_catalog, pg_temp AS $$
DECLARE
    bad record;
    halted integer := 0;
BEGIN
    FOR bad IN
        SELECT c.id, found.reason FROM campaigns AS c, LATERAL (
            -- the share may also rise because answers are taken back by a retry
            SELECT coalesce(
                (SELECT a.reason FROM campaign_alarms AS a WHERE a.campaign_id = c.id), campaign_excess(c.id),
                (SELECT max(campaign_first_failed(r::campaign_jobs)) FROM (
                    SELECT DISTINCT ON (j.created_at) j.* FROM campaign_jobs AS j
                    WHERE j.campaign_id = c.id AND j.status = 'READY' AND j.pause IS NOT NULL) AS r
                    -- while a retry feeds the first part again, its former failures say nothing
                    WHERE campaign_rest_at(r::campaign_jobs) < 'infinity')) AS reason
            OFFSET 0) AS found
        -- only jobs that run, because sums of the others would cost time
        WHERE c.halted_at IS NULL AND c.id = ANY (ARRAY(SELECT j.campaign_id FROM campaign_jobs AS j WHERE j.status <> 'LOGGED'))
            AND found.reason IS NOT NULL
        ORDER BY c.id FOR NO KEY UPDATE OF c SKIP LOCKED
    LOOP
        UPDATE campaigns AS c SET halted_at = now(), halted_reason = bad.reason WHERE c.id = bad.id;
        UPDATE campaign_jobs AS j SET status = 'STOPPED'
        WHERE j.campaign_id = bad.id AND j.status IN ('READY', 'ENQUEUED', 'SENDING', 'SENT');
        halted := halted + 1;
    END LOOP;
    -- jobs that are halted now, or were done before this look
    DELETE FROM campaign_alarms AS a USING campaigns AS c WHERE c.id = a.campaign_id AND (c.halted_at IS NOT NULL
        OR NOT EXISTS (SELECT FROM campaign_jobs AS j WHERE j.campaign_id = c.id AND j.status <> 'LOGGED'));
    RETURN halted;
END $$;
COMMENT ON FUNCTION campaign_halt IS
    'Stops campaigns with more than 10 hard bounces that were more than 10 % of the answers in any commit, or whose first '
    'part failed by more than half, and returns how many.';

CREATE FUNCTION campaign_path(metadata jsonb) RETURNS bigint[] IMMUTABLE PARALLEL SAFE
RETURN CASE WHEN metadata ->> '_campaign' ~ '^[0-9]{1,18}[.][0-9]{1,9}[.][0-9]{1,18}$'
    THEN string_to_array(metadata ->> '_campaign', '.')::bigint[] END;
COMMENT ON FUNCTION campaign_path IS
    'Campaign, number of the recipient and job of a row, from its metadata; null for other mail.';

CREATE FUNCTION campaign_event(message bigint, metadata jsonb, kind text, code text, sub_type text, at timestamptz) RETURNS void
LANGUAGE plpgsql SET search_path = pgmta, pg_catalog, pg_temp AS $$
DECLARE
    path CONSTANT bigint[] := campaign_path(metadata);
BEGIN
    IF kind = 'delivered' THEN
        UPDATE campaign_recipients AS r SET state = 'sent', answered_at = at, error_code = NULL, error_sub_type = NULL
        WHERE r.campaign_id = path[1] AND r.number = path[2] AND r.message_id = message AND r.state = 'unknown';
    ELSIF kind <> 'complained' THEN
        UPDATE campaign_recipients AS r SET state = 'failed', answered_at = at,
            error_code = left(coalesce(nullif(code, ''), kind), 100), error_sub_type = left(nullif(sub_type, ''), 100)
        WHERE r.campaign_id = path[1] AND r.number = path[2] AND r.message_id = message
            AND r.state IN ('sent', 'failed', 'unknown');
    END IF;
END $$;
COMMENT ON FUNCTION campaign_event IS
    'Writes the outcome of a recipient of a campaign that a callback reports: a failure has the last word, and a delivery '
    'settles an unknown outcome. Mail that was sent again is not touched.';
INSERT INTO event_functions (function) VALUES ('campaign_event');

-- the time is that of the statement, so that PostgreSQL calls it once for all rows
CREATE FUNCTION campaign_may_begin(ids bigint[], present timestamptz DEFAULT statement_timestamp()) RETURNS bigint[]
LANGUAGE plpgsql STABLE SECURITY DEFINER
    SET search_path = pgmta, pg_catalog, pg_temp SET jit = off SET plan_cache_mode = force_generic_plan AS $$
BEGIN
    RETURN ARRAY(
        SELECT q.id FROM queue AS q CROSS JOIN LATERAL (SELECT campaign_path(q.metadata) AS path OFFSET 0) AS p
        WHERE q.id = ANY (ids) AND (p.path IS NULL
            OR EXISTS (SELECT FROM campaign_jobs AS j WHERE j.id = p.path[3] AND j.status <> 'STOPPED'
                AND coalesce(j.opens_at <= present AND j.closes_at > present, true)))
        ORDER BY q.id);
END $$;
COMMENT ON FUNCTION campaign_may_begin IS
    'Which of these rows may begin a transaction: not those of stopped jobs, and none outside its hours.';

CREATE FUNCTION campaign_outcomes(
    -- arrays with a value for each outcome
    campaigns bigint[], numbers integer[], mails bigint[], rows bigint[], states text[], bounced boolean[], codes text[],
    sub_types text[], started timestamptz[], ended timestamptz[],
    changed bigint[]
) RETURNS integer LANGUAGE plpgsql SECURITY DEFINER SET search_path = pgmta, pg_catalog, pg_temp SET jit = off
    SET enable_hashjoin = off SET enable_mergejoin = off SET enable_seqscan = off AS $$
#variable_conflict use_column
DECLARE
    told integer;
BEGIN
    UPDATE campaign_recipients AS r SET state = o.state, bounced = o.bounced,
        -- a suppressed one had no attempt
        sent_at = CASE WHEN o.state = 'invalid' THEN r.sent_at ELSE o.started END,
        answered_at = CASE WHEN o.state <> 'deferred' THEN o.ended END,
        error_code = left(nullif(o.code, ''), 100), error_sub_type = left(nullif(o.sub_type, ''), 100)
    FROM unnest(campaigns, numbers, mails, rows, states, campaign_outcomes.bounced, codes, sub_types, started, ended)
        AS o (campaign, number, mail, row_id, state, bounced, code, sub_type, started, ended)
    WHERE r.campaign_id = o.campaign AND r.number = o.number AND r.message_id = o.mail
        -- a delivery is a fact, whatever outcome was known before
        AND (r.state IN ('queued', 'deferred') AND (o.state = 'sent' OR o.row_id = ANY (changed))
            OR r.state IN ('failed', 'unknown') AND o.state = 'sent');
    GET DIAGNOSTICS told = ROW_COUNT;
    RETURN told;
END $$;
COMMENT ON FUNCTION campaign_outcomes IS
    'Writes outcomes of attempts to the recipients of campaigns, in the commit of the outcomes. `changed` are the rows that '
    'these changed: of the others only a delivery counts. Returns how many recipients changed.';

CREATE FUNCTION campaign_obstacles(campaign bigint) RETURNS TABLE (
    visible_at timestamptz, user_of_credential text, next_at timestamptz, month_is_over boolean, worker boolean, later bigint,
    hours text[], parted boolean, rest_at timestamptz, rest_after timestamptz, part_zone text, held bigint, message_id bigint,
    recipient text, words text, next_attempt timestamptz
) LANGUAGE sql VOLATILE SECURITY DEFINER ROWS 1 SET search_path = pgmta, pg_catalog, pg_temp AS $$
    SELECT c.visible_at,
        -- keys of the HTTP API learn nothing of other tenants
        CASE WHEN o.tenant = c.tenant OR NOT acting()::text ^@ 'key:' THEN o.name WHEN o.id IS NOT NULL THEN '' END
            AS user_of_credential, b.next_at, b.month_most <= CASE
            WHEN b.month = date_trunc('month', clock_timestamp() AT TIME ZONE 'UTC') THEN b.month_used ELSE 0 END AS month_is_over,
        EXISTS (SELECT FROM worker_overview AS w WHERE w.action = 'deliver' AND w.alive) AS worker,
        (SELECT count(*) FROM campaign_recipients AS r WHERE r.campaign_id = c.id
            AND r.number > (SELECT max(j.last) FROM campaign_jobs AS j WHERE j.campaign_id = c.id)) AS later,
        ARRAY(SELECT concat('in ', w.zone, CASE WHEN w.opens_at = 'infinity' THEN ', a time zone that the server does not know'
                    ELSE to_char(w.opens_at, '", which begin at "YYYY-MM-DD HH24:MI:SSTZHTZM') END)
            FROM (SELECT DISTINCT j.zone, j.rest_at, CASE WHEN j.rest_at < 'infinity' THEN
                    (campaign_window(c, j.zone, greatest(j.rest_at, clock_timestamp()))).opens_at ELSE j.opens_at END AS opens_at
                FROM (SELECT o.opens_at, coalesce(o.zone, c.zone) AS zone,
                        CASE WHEN o.status = 'READY' AND o.pause IS NOT NULL THEN campaign_rest_at(o) END AS rest_at
                    FROM campaign_jobs AS o WHERE o.campaign_id = c.id AND o.status IN ('READY', 'ENQUEUED', 'SENDING')) AS j) AS w
            WHERE w.opens_at > greatest(clock_timestamp(), nullif(w.rest_at, 'infinity'))
            GROUP BY w.opens_at, w.zone ORDER BY w.opens_at, w.zone) AS hours,
        rest.at IS NOT NULL AS parted, nullif(rest.at, 'infinity') AS rest_at, part.at AS rest_after, part.zone AS part_zone,
        (SELECT count(*) FROM queue AS q WHERE q.status = 'HOLD' AND q.metadata ->> '_campaign' ^@ concat(c.id, '.')) AS held,
        m.message_id, m.recipient, m.words, m.next_attempt
    FROM campaigns AS c
    LEFT JOIN LATERAL (
        SELECT min(campaign_rest_at(j)) AS at FROM campaign_jobs AS j
        WHERE j.campaign_id = c.id AND j.status = 'READY' AND j.pause IS NOT NULL) AS rest ON true
    LEFT JOIN LATERAL (
        -- the job of the first part that opens last
        SELECT nullif(f.opens_at, 'infinity') + j.pause AS at, coalesce(f.zone, c.zone) AS zone
        FROM campaign_jobs AS j JOIN campaign_jobs AS f ON f.campaign_id = j.campaign_id AND f.created_at = j.created_at
        WHERE j.campaign_id = c.id AND j.status = 'READY' AND j.pause IS NOT NULL AND f.pause IS NULL AND f.first < j.first
            AND f.status = 'READY' AND f.opens_at > clock_timestamp()
        ORDER BY f.opens_at DESC LIMIT 1) AS part ON true
    LEFT JOIN credential_use AS u ON u.credential = c.credential AND u.campaign_id <> c.id
    LEFT JOIN campaigns AS o ON o.id = u.campaign_id
    LEFT JOIN budgets AS b ON b.key = 'credential:' || c.credential
    LEFT JOIN LATERAL (
        SELECT r.message_id, r.recipient, coalesce(q.hold_reason, q.last_reply) AS words,
            CASE WHEN q.hold_reason IS NULL THEN q.next_attempt END AS next_attempt
        FROM campaign_recipients AS r JOIN queue AS q ON q.message_id = r.message_id
        WHERE r.campaign_id = c.id AND r.state IN ('queued', 'deferred') AND coalesce(q.hold_reason, q.last_reply) IS NOT NULL
        ORDER BY r.number LIMIT 1
    ) AS m ON true
    WHERE c.id = campaign_obstacles.campaign
$$;
COMMENT ON FUNCTION campaign_obstacles IS
    'What keeps the mail of a campaign back: its time, its credential, its budget, workers, its hours, and a mail that waits.';

INSERT INTO rights (object, role, privileges) VALUES
    ('FUNCTION campaign_obstacles', 'pgmta_operator', 'EXECUTE'),
    ('FUNCTION campaign_obstacles', 'pgmta_reader', 'EXECUTE'),
    ('FUNCTION campaign_rest_at', 'pgmta_operator', 'EXECUTE'),
    ('FUNCTION campaign_rest_at', 'pgmta_reader', 'EXECUTE'),
    ('FUNCTION campaign_take', 'pgmta_queued', 'EXECUTE'),
    ('FUNCTION campaign_feed', 'pgmta_queued', 'EXECUTE'),
    ('FUNCTION campaign_withdraw', 'pgmta_queued', 'EXECUTE'),
    ('FUNCTION campaign_reconcile', 'pgmta_queued', 'EXECUTE'),
    ('FUNCTION campaign_finalise', 'pgmta_queued', 'EXECUTE'),
    ('FUNCTION campaign_halt', 'pgmta_queued', 'EXECUTE'),
    ('FUNCTION campaign_may_begin', 'pgmta_queued', 'EXECUTE'),
    ('FUNCTION campaign_outcomes', 'pgmta_queued', 'EXECUTE');

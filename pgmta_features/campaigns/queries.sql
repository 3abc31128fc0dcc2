-- name: settled
-- Part of settle: the recipients of campaigns, in the commit of their outcomes.
campaign_outcomes(%(of_campaigns)b::bigint[], %(of_numbers)b::integer[], %(of_mails)b::bigint[],
    %(of_rows)b::bigint[], %(of_states)b::text[], %(of_bounces)b::boolean[], %(of_codes)b::text[], %(of_sub_types)b::text[],
    %(of_started)b::timestamptz[], %(of_ended)b::timestamptz[], ARRAY(SELECT id FROM changed))

-- name: may_begin
-- Part of begin: a row whose job was stopped, or whose recipient was suppressed, may not begin.
id = ANY (campaign_may_begin(%(ids)b::bigint[]))

-- name: due
-- Whether the feed, or the jobs, may have something to do.
EXISTS (SELECT FROM campaign_jobs WHERE status <> 'LOGGED') OR EXISTS (SELECT FROM credential_use)

-- name: expire_recipients
-- One batch of recipients of campaigns that are over.
SELECT recipients_expire(make_interval(secs => %(age)s), %(batch)s)

-- name: expire_campaigns
-- One batch of campaigns without recipients.
SELECT campaigns_expire(make_interval(secs => %(age)s), %(batch)s)

-- name: take
-- Give the oldest job that waits its credential.
SELECT campaign_take()

-- name: active
-- The credentials whose campaigns feed the queue.
SELECT credential, rate FROM campaign_active ORDER BY credential

-- name: feed
-- Put the next mail of a credential's campaign into the queue.
SELECT fed, more FROM campaign_feed(%(credential)s, %(worker)s)

-- name: withdraw
-- Take mail of stopped jobs, and for suppressed addresses, out of the queue.
SELECT campaign_withdraw(%(most)s)

-- name: reconcile
-- Write the outcome of recipients whose mail left the queue without one.
SELECT campaign_reconcile(%(most)s)

-- name: finalise
-- End jobs that have nothing in the queue, and free credentials.
SELECT campaign_finalise(make_interval(secs => %(lease)s))

-- name: halt
-- Stop campaigns with too many bounces.
SELECT campaign_halt()

-- name: waiting
-- How many recipients of open jobs are in the queue.
SELECT coalesce(sum(s.queued + s.deferred), 0)::bigint FROM campaign_sums AS s
WHERE s.campaign_id = ANY (ARRAY(SELECT campaign_id FROM campaign_jobs WHERE status <> 'LOGGED'))

-- name: create
-- Make a campaign.
SELECT campaign_create(%(name)s, %(credential)s, %(template)s, %(tenant)s, %(sender)s, %(scope)s, %(priority)s,
    %(visible_at)s, %(deadline)s, %(version)s, %(opens)s::time, %(closes)s::time, %(days)s::smallint[], %(zone)s,
    %(zone_column)s) AS id

-- name: campaign
-- A campaign with its version of a template.
SELECT c.id, c.name, c.tenant, c.scope, c.credential, c.template_id, left(c.opens::text, 5) AS opens,
    left(c.closes::text, 5) AS closes, c.days, c.zone, c.zone_column, c.sender AS reverse_path, t.name AS template, t.version,
    t.sender, t.from_field, t.reply_to, t.subject, t.body, t.html, t.headers
FROM campaigns AS c JOIN templates AS t ON t.id = c.template_id WHERE c.id = %(campaign)s

-- name: zones
-- The names of all time zones.
SELECT name FROM campaign_zones() AS z (name)

-- name: rated
-- Credentials that have a budget.
SELECT substr(key, length('credential:') + 1) AS credential FROM budgets WHERE key ^@ 'credential:' ORDER BY key

-- name: worker
-- Whether a worker that delivers runs.
SELECT EXISTS (SELECT FROM worker_overview WHERE action = 'deliver' AND alive) AS runs

-- name: begin
-- Keep the campaign; the highest number of its recipients.
SELECT campaign_import(%(campaign)s) AS base

-- name: checked
-- The template now: a list was checked for that of a while ago.
SELECT template_id FROM campaigns WHERE id = %(campaign)s

-- name: note_list
-- Note the recipients from a number on as a list.
SELECT campaign_list(%(campaign)s, %(name)s, %(first)s) AS number

-- name: table
-- The list as it comes: `place` is the line of a file, or the number of a row.
CREATE TEMP TABLE imported_list (place integer, recipient text, domain text COLLATE "C", params jsonb, zone text COLLATE "C")

-- name: copy
-- Rows of the list.
COPY pg_temp.imported_list (place, recipient, domain, params, zone) FROM STDIN

-- name: other_kind
-- Take out rows of the other kind: a campaign goes to telephone numbers, or to mailboxes.
WITH kind AS MATERIALIZED (
    SELECT campaign_by_sms(%(campaign)s, count(*) FILTER (WHERE domain = 'sms'), count(*) FILTER (WHERE domain <> 'sms'),
        (SELECT domain = 'sms' FROM pg_temp.imported_list ORDER BY place LIMIT 1)) AS by_sms
    FROM pg_temp.imported_list
)
DELETE FROM pg_temp.imported_list AS i USING kind WHERE (i.domain = 'sms') <> kind.by_sms
RETURNING i.place, i.recipient, campaign_other_kind(kind.by_sms) AS problem

-- name: twice
-- Rows whose mailbox an earlier row has: places below 0 are recipients of earlier imports.
CREATE TEMP TABLE imported_twice ON COMMIT DROP AS
SELECT place, recipient, first FROM (
    SELECT place, recipient, min(place) OVER (PARTITION BY mailbox_key(recipient)) AS first FROM (
        SELECT place, recipient FROM pg_temp.imported_list
        UNION ALL SELECT number - {base} - 1, recipient FROM campaign_recipients WHERE campaign_id = {campaign}) AS listed
    ) AS found
WHERE place > first AND place > 0

-- name: duplicates
-- The rows of mailboxes that came before, by the place of the row.
SELECT place, recipient, first FROM pg_temp.imported_twice ORDER BY place

-- name: index
-- An index for the batches of `store`.
CREATE INDEX ON pg_temp.imported_list (place)

-- name: analyze
-- Statistics, so that PostgreSQL uses the index.
ANALYZE pg_temp.imported_list, pg_temp.imported_twice

-- name: store
-- Recipients of the rows of some places, without duplicates; how many, and how many are suppressed.
WITH batch AS MATERIALIZED (
    SELECT i.recipient, i.domain, i.params, i.zone, row_number() OVER (ORDER BY i.place) AS n FROM pg_temp.imported_list AS i
    WHERE i.place > %(after)s AND i.place <= %(last)s
        AND NOT EXISTS (SELECT FROM pg_temp.imported_twice AS t WHERE t.place = i.place)
), added AS (
    INSERT INTO campaign_recipients (campaign_id, number, recipient, domain, params, state, error_code, zone)
    SELECT %(campaign)s, %(base)s + b.n, b.recipient, b.domain, b.params,
        CASE WHEN s.suppressed THEN 'invalid' ELSE 'unsent' END, CASE WHEN s.suppressed THEN 'suppressed' END, b.zone
    FROM batch AS b JOIN unnest(suppressed(%(tenant)s, %(scope)s, ARRAY(SELECT o.recipient FROM batch AS o ORDER BY o.n)))
        WITH ORDINALITY AS s (suppressed, n) USING (n)
    ORDER BY b.n
    RETURNING state
)
SELECT count(*) AS added, count(*) FILTER (WHERE state = 'invalid') AS suppressed FROM added

-- name: recipient_by_number
-- One recipient.
SELECT number, recipient, params FROM campaign_recipients WHERE campaign_id = %(campaign)s AND number = %(number)s

-- name: recipient_from_number
-- The next recipient from a number on.
SELECT number, recipient, params FROM campaign_recipients WHERE campaign_id = %(campaign)s AND number >= %(number)s
ORDER BY number LIMIT 1

-- name: recipient_with_address
-- The recipient with an address, and its words.
SELECT number, recipient, params FROM campaign_recipients
WHERE campaign_id = %(campaign)s AND mailbox_key(recipient) = mailbox_key(%(recipient)s) ORDER BY number LIMIT 1

-- name: last
-- The highest number.
SELECT coalesce(max(number), 0) AS number FROM campaign_recipients WHERE campaign_id = %(campaign)s

-- name: test
-- Put a mail for none of the recipients into the queue.
SELECT campaign_test(%(campaign)s, %(recipient)s, %(params)s::jsonb) AS id

-- name: csv
-- Recipients as CSV; times are of ISO 8601, in UTC.
COPY (SELECT {columns} FROM campaign_recipient_versions
    WHERE campaign_id = {campaign} AND {chosen} ORDER BY number)
TO STDOUT (FORMAT csv, HEADER)

-- name: json
-- Recipients as JSON, a line each.
COPY (SELECT row_to_json(each)::text FROM (
    SELECT {columns} FROM campaign_recipient_versions
    WHERE campaign_id = {campaign} AND {chosen} ORDER BY number) AS each) TO STDOUT
-- no character that would be quoted is in JSON
(FORMAT csv, QUOTE E'\x01', DELIMITER E'\x02')

-- name: statistics
-- How far campaigns are, the newest first; null for all names.
SELECT id, tenant, name, recipients::bigint, unsent::bigint, queued::bigint, sent::bigint, errored::bigint, invalid::bigint,
    unknown::bigint, bounced::bigint, unsubscribed::bigint, complained::bigint, rate,
    extract(epoch FROM estimated_wait)::float8 AS wait, jobs, halted_at, halted_reason, credential, created_at,
    CASE WHEN %(failures)s THEN (SELECT jsonb_agg(to_jsonb(f) - 'campaign_id' ORDER BY f.number DESC, f.state, f.class, f.code)
            FROM campaign_failures AS f WHERE f.campaign_id = campaign_statistics.id) END AS failures
FROM campaign_statistics
WHERE (%(name)s::text IS NULL OR name = %(name)s) AND (%(tenant)s::text IS NULL OR tenant = %(tenant)s)
    AND (%(before)s::bigint IS NULL OR id < %(before)s)
ORDER BY id DESC LIMIT %(most)s

-- name: obstacles
-- What keeps the mail of a campaign back.
SELECT visible_at, user_of_credential, next_at, month_is_over, worker, later, hours, parted, rest_at, rest_after, part_zone, held,
    message_id, recipient, words, next_attempt
FROM campaign_obstacles(%(campaign)s)

-- name: settings
-- How a campaign was made; days are numbers, 1 for Monday.
SELECT sender, scope, priority, visible_at, deadline, left(opens::text, 5) AS opens, left(closes::text, 5) AS closes, days,
    zone, zone_column
FROM campaigns WHERE id = %(campaign)s

-- name: recipient_by_address
-- The recipient of a campaign with this address.
SELECT number, recipient, state, bounced, unsubscribed, complained, message_id, template, version, sent_at, answered_at,
    error_code, error_sub_type
FROM campaign_recipient_versions
WHERE campaign_id = %(campaign)s AND mailbox_key(recipient) = mailbox_key(%(recipient)s) ORDER BY number LIMIT 1

-- name: templates
-- The templates that a campaign had, the first one first.
SELECT t.name AS template, t.version, e.reason, e.at, e.by
FROM campaign_templates AS e JOIN templates AS t ON t.id = e.template_id
WHERE e.campaign_id = %(campaign)s ORDER BY e.first_message

-- name: lists
-- The lists of a campaign, the first one first.
SELECT number, name, first, last, imported_at AS at, imported_by AS by FROM campaign_lists
WHERE campaign_id = %(campaign)s ORDER BY number

-- name: exchange
-- Give a campaign another template.
SELECT campaign_exchange(%(campaign)s, %(template)s, %(version)s, %(reason)s) AS changed

-- name: remove
-- Take recipients out of a campaign.
SELECT removed, kept FROM campaign_remove(%(campaign)s, %(recipients)s::text[], %(list)s)

-- name: copy_campaign
-- Make a campaign as another one is.
SELECT campaign_copy(%(campaign)s, %(name)s, %(states)s::text[], %(recipients)s, %(visible_at)s, %(deadline)s) AS id

-- name: jobs
-- The jobs of a campaign, or all open ones.
SELECT j.id, c.name, j.status, j.first, j.last, j.zone, j.fed_to, j.changed_at, j.fed_at, j.fed_by
FROM campaign_jobs AS j JOIN campaigns AS c ON c.id = j.campaign_id
WHERE CASE WHEN %(campaign)s::bigint IS NULL THEN j.status <> 'LOGGED' ELSE j.campaign_id = %(campaign)s END
ORDER BY j.id LIMIT %(most)s

-- name: suppressed
-- How many recipients that a retry of a campaign, or of one of its jobs, takes are suppressed.
SELECT count(*) FILTER (WHERE s.suppressed) AS number
FROM campaigns AS c, unnest(suppressed(c.tenant, c.scope, ARRAY(
    SELECT r.recipient FROM campaign_jobs AS j JOIN campaign_recipients AS r ON r.campaign_id = j.campaign_id
    WHERE j.campaign_id = c.id AND (%(job)s::bigint IS NULL OR j.id = %(job)s) AND j.status IN ('STOPPED', 'LOGGED')
        AND r.number BETWEEN j.first AND j.last AND (j.zone IS NULL OR r.zone = j.zone)
        AND r.state = ANY (CASE WHEN %(unknown)s THEN '{failed,unknown}' ELSE '{failed}' END::text[])))) AS s (suppressed)
WHERE c.id = coalesce(%(campaign)s, (SELECT j.campaign_id FROM campaign_jobs AS j WHERE j.id = %(job)s))

-- name: find
-- The id of a campaign by its name.
SELECT id FROM campaigns WHERE tenant = %(tenant)s AND name = %(name)s

-- name: names
-- Names of campaigns, for the hint of an error.
SELECT name FROM campaigns WHERE tenant = %(tenant)s ORDER BY id DESC LIMIT 1000

-- name: start
-- Make the jobs of a campaign.
SELECT campaign_start(%(campaign)s, %(rate)s, %(jobs)s, %(part)s, make_interval(secs => %(pause)s)) AS job

-- name: stop
-- Stop the jobs of a campaign.
SELECT campaign_stop(%(campaign)s) AS changed

-- name: resume
-- Go on with stopped jobs.
SELECT campaign_resume(%(campaign)s, %(halted)s) AS changed

-- name: retry
-- Send again what failed.
SELECT campaign_retry(%(campaign)s, %(unknown)s, %(halted)s) AS changed

-- name: delete
-- Delete a campaign that is done.
SELECT campaign_delete(%(campaign)s) AS changed

-- name: stop_job
-- Stop one job.
SELECT job_stop(%(job)s) AS changed

-- name: resume_job
-- Go on with one job.
SELECT job_resume(%(job)s) AS changed

-- name: retry_job
-- Send again what failed of one job.
SELECT job_retry(%(job)s, %(unknown)s) AS changed

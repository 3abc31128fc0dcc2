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
-- End jobs that have nothing in the queue.
SELECT campaign_finalise()

-- name: halt
-- Stop campaigns with too many bounces.
SELECT campaign_halt()

-- name: open
-- Whether any job is not done.
SELECT EXISTS (SELECT FROM campaign_jobs WHERE status <> 'LOGGED')

-- name: waiting
-- How many recipients of open jobs are in the queue.
SELECT coalesce(sum(s.queued + s.deferred), 0)::bigint FROM campaign_sums AS s
WHERE s.campaign_id IN (SELECT campaign_id FROM campaign_jobs WHERE status <> 'LOGGED')

-- name: statistics
-- How far campaigns are, the newest first; null for all names.
SELECT id, tenant, name, recipients::bigint, unsent::bigint, queued::bigint, sent::bigint, errored::bigint, invalid::bigint,
    unknown::bigint, bounced::bigint, rate, extract(epoch FROM estimated_wait)::float8, jobs::text, halted_at, credential, created_at
FROM campaign_statistics
WHERE (%(name)s::text IS NULL OR name = %(name)s) AND (%(tenant)s::text IS NULL OR tenant = %(tenant)s)
ORDER BY id DESC LIMIT %(most)s

-- name: jobs
-- The jobs of a campaign, or all open ones.
SELECT j.id, c.name, j.status, j.first, j.last, j.fed_to, j.changed_at, j.fed_at, j.fed_by
FROM campaign_jobs AS j JOIN campaigns AS c ON c.id = j.campaign_id
WHERE CASE WHEN %(campaign)s::bigint IS NULL THEN j.status <> 'LOGGED' ELSE j.campaign_id = %(campaign)s END
ORDER BY j.id LIMIT %(most)s

-- name: find
-- The id of a campaign by its name.
SELECT id FROM campaigns WHERE tenant = %(tenant)s AND name = %(name)s

-- name: names
-- Names of campaigns, for the hint of an error.
SELECT name FROM campaigns WHERE tenant = %(tenant)s ORDER BY id DESC LIMIT 1000

-- name: start
-- Make the jobs of a campaign.
SELECT campaign_start(%(campaign)s, %(rate)s, %(jobs)s)

-- name: stop
-- Stop the jobs of a campaign.
SELECT campaign_stop(%(campaign)s)

-- name: resume
-- Go on with stopped jobs.
SELECT campaign_resume(%(campaign)s, %(halted)s)

-- name: retry
-- Send again what failed.
SELECT campaign_retry(%(campaign)s, %(unknown)s, %(halted)s)

-- name: delete
-- Delete a campaign that is done.
SELECT campaign_delete(%(campaign)s)

-- name: stop_job
-- Stop one job.
SELECT job_stop(%(job)s)

-- name: resume_job
-- Go on with one job.
SELECT job_resume(%(job)s)

-- name: retry_job
-- Send again what failed of one job.
SELECT job_retry(%(job)s, %(unknown)s)

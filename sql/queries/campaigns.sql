-- name: statistics
-- How far campaigns are, the newest first; null for all names.
SELECT id, tenant, name, recipients::bigint, unsent::bigint, queued::bigint, sent::bigint, errored::bigint, invalid::bigint,
    unknown::bigint, bounced::bigint, rate, extract(epoch FROM estimated_wait)::float8 AS wait, jobs, halted_at,
    halted_reason, credential, created_at
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
SELECT campaign_start(%(campaign)s, %(rate)s, %(jobs)s) AS job

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

-- name: statistics
-- How far campaigns are, the newest first; null for all names.
SELECT id, tenant, name, recipients::bigint, unsent::bigint, queued::bigint, sent::bigint, errored::bigint, invalid::bigint,
    unknown::bigint, bounced::bigint, rate, extract(epoch FROM estimated_wait)::float8 AS wait, jobs, halted_at,
    halted_reason, credential, created_at
FROM campaign_statistics
WHERE (%(name)s::text IS NULL OR name = %(name)s) AND (%(tenant)s::text IS NULL OR tenant = %(tenant)s)
ORDER BY id DESC LIMIT %(most)s

-- name: obstacles
-- What keeps the mail of a campaign back: its time, its credential, its budget, workers, and a mail that waits.
SELECT c.visible_at, o.name AS user_of_credential, b.next_at, b.month_most <= CASE
        WHEN b.month = date_trunc('month', clock_timestamp() AT TIME ZONE 'UTC') THEN b.month_used ELSE 0 END AS month_is_over,
    EXISTS (SELECT FROM worker_overview AS w WHERE w.action = 'deliver' AND w.alive) AS worker,
    coalesce((SELECT max(r.number) FROM campaign_recipients AS r WHERE r.campaign_id = c.id)
        - (SELECT max(j.last) FROM campaign_jobs AS j WHERE j.campaign_id = c.id), 0)::bigint AS later,
    m.message_id, m.recipient, m.words, m.next_attempt
FROM campaigns AS c
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
WHERE c.id = %(campaign)s

-- name: recipient
-- The recipient of a campaign with this address.
SELECT number, recipient, state, bounced, message_id, sent_at, answered_at, error_code, error_sub_type
FROM campaign_recipients WHERE campaign_id = %(campaign)s AND lower(recipient COLLATE "C") = lower(%(recipient)s COLLATE "C")
ORDER BY number LIMIT 1

-- name: jobs
-- The jobs of a campaign, or all open ones.
SELECT j.id, c.name, j.status, j.first, j.last, j.fed_to, j.changed_at, j.fed_at, j.fed_by
FROM campaign_jobs AS j JOIN campaigns AS c ON c.id = j.campaign_id
WHERE CASE WHEN %(campaign)s::bigint IS NULL THEN j.status <> 'LOGGED' ELSE j.campaign_id = %(campaign)s END
ORDER BY j.id LIMIT %(most)s

-- name: suppressed
-- How many recipients that a retry of a campaign, or of one of its jobs, takes are suppressed.
SELECT count(*) FILTER (WHERE s.suppressed) AS number
FROM campaigns AS c, unnest(suppressed(c.tenant, c.scope, ARRAY(
    SELECT r.recipient FROM campaign_jobs AS j JOIN campaign_recipients AS r ON r.campaign_id = j.campaign_id
    WHERE j.campaign_id = c.id AND (%(job)s::bigint IS NULL OR j.id = %(job)s) AND j.status IN ('STOPPED', 'LOGGED')
        AND r.number BETWEEN j.first AND j.last
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

-- name: settled
-- Part of settle: the recipients of campaigns, in the commit of their outcomes.
campaign_outcomes(%(of_campaigns)b::bigint[], %(of_numbers)b::integer[], %(of_mails)b::bigint[],
    %(of_rows)b::bigint[], %(of_states)b::text[], %(of_bounces)b::boolean[], %(of_codes)b::text[], %(of_sub_types)b::text[],
    %(of_started)b::timestamptz[], %(of_ended)b::timestamptz[], ARRAY(SELECT id FROM changed))

-- name: may_begin
-- Part of begin: the job of a row may be stopped, its recipient suppressed.
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

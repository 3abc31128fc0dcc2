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

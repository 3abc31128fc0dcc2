-- name: any_webhook
EXISTS (SELECT FROM pgmta.webhooks WHERE state IN ('active', 'failing'))

-- name: claim
-- Take endpoints that no other process has, and keep those of this one; all that this one has now.
UPDATE pgmta.webhooks AS w SET leased_by = %(worker)s, leased_until = now() + make_interval(secs => %(lease)s)
WHERE w.id IN (
    SELECT h.id FROM pgmta.webhooks AS h
    WHERE h.state IN ('active', 'failing')
        AND (h.leased_by = %(worker)s OR h.leased_until IS NULL OR h.leased_until < now())
    ORDER BY h.id FOR UPDATE)
RETURNING w.id, w.revision, w.name, w.tenant, w.viewer, w.url, w.condition::text, w.secret,
    CASE WHEN w.earlier_until > now() THEN w.earlier_secret END, w.owner, w.batch, w.failures,
    coalesce(extract(epoch FROM w.next_at - now()), 0)::float8,
    EXISTS (SELECT FROM pgmta.webhook_failures AS f WHERE f.webhook_id = w.id AND f.asked_at IS NOT NULL)

-- name: release
UPDATE pgmta.webhooks SET leased_until = now() WHERE leased_by = %(worker)s AND leased_until > now()

-- name: batch
SELECT place, event_id, written_at, document
FROM pgmta.webhook_batch(%(id)s, %(revision)s, %(worker)s, %(most)s, %(reached)s, %(accepted)s, %(anew)s)

-- name: failed
-- Note a failure, after which the next request waits; the seconds since the first one in a row.
UPDATE pgmta.webhooks AS w SET state = 'failing', reason = %(reason)s, failures = %(failures)s,
    state_at = CASE WHEN w.state = 'failing' THEN w.state_at ELSE now() END,
    failing_since = CASE WHEN %(failures)s > 1 THEN coalesce(w.failing_since, now()) ELSE now() END,
    next_at = now() + make_interval(secs => %(wait)s),
    cursor = coalesce(%(reached)s::text, w.cursor)
WHERE w.id = %(id)s AND w.revision = %(revision)s AND w.leased_by = %(worker)s AND w.state IN ('active', 'failing')
RETURNING extract(epoch FROM now() - w.failing_since)::float8

-- name: set_aside
INSERT INTO pgmta.webhook_failures (webhook_id, event_id, after, reason)
VALUES (%(id)s, %(event)s, %(after)s, %(reason)s)
ON CONFLICT ON CONSTRAINT webhook_failures_pkey
DO UPDATE SET asked_at = NULL, failed_at = now(), reason = EXCLUDED.reason

-- name: replays
SELECT event_id, document FROM pgmta.webhook_replays(%(id)s, %(worker)s, %(most)s)

-- name: replayed
DELETE FROM pgmta.webhook_failures WHERE webhook_id = %(id)s AND event_id = %(event)s

-- name: not_replayed
UPDATE pgmta.webhook_failures SET asked_at = NULL, failed_at = now(), reason = %(reason)s
WHERE webhook_id = %(id)s AND event_id = %(event)s

-- name: end
SELECT pgmta.webhook_end(%(id)s, %(revision)s, %(worker)s, %(state)s, %(reason)s, %(sender)s, %(content)s)

-- name: add
SELECT pgmta.webhook_add(%(name)s, %(url)s, %(kinds)s::text[], %(condition)s::jsonb, %(secret)s, %(owner)s, %(batch)s,
    %(tenant)s, %(viewer)s, %(who)s) AS id

-- name: change
SELECT pgmta.webhook_change(%(id)s, %(tenant)s, %(viewer)s, %(changes)s::jsonb, %(who)s)

-- name: enable
SELECT pgmta.webhook_enable(%(id)s, %(tenant)s, %(viewer)s, %(enabled)s, %(reason)s, %(who)s)

-- name: rotate
SELECT pgmta.webhook_rotate(%(id)s, %(tenant)s, %(viewer)s, %(secret)s, who => %(who)s) AS until

-- name: remove
SELECT pgmta.webhook_remove(%(id)s, %(tenant)s, %(viewer)s, %(who)s)

-- name: replay
SELECT pgmta.webhook_replay(%(id)s, %(tenant)s, %(viewer)s, %(since)s, %(events)s::text[], %(who)s) AS asked

-- name: list
-- The endpoints of a tenant and viewer (null: all), after one.
SELECT w.id, w.name, w.tenant, w.viewer, w.url, w.kinds, w.condition, w.secret, w.owner, w.batch, w.state, w.state_at,
    w.reason, w.failing_since, w.failures, w.next_at, w.posted_at, w.created_at, w.created_by, w.earlier_until,
    (SELECT count(*) FROM pgmta.webhook_failures AS f WHERE f.webhook_id = w.id)::integer AS set_aside,
    pgmta.webhook_lag(w.cursor) AS lag
FROM pgmta.webhooks AS w
WHERE (%(tenant)s::text IS NULL OR w.tenant = %(tenant)s) AND (%(viewer)s::text IS NULL OR w.viewer = %(viewer)s)
    AND w.id > %(after)s AND (%(id)s::bigint IS NULL OR w.id = %(id)s)
ORDER BY w.id LIMIT %(most)s

-- name: failures
SELECT f.event_id, f.failed_at, f.reason, f.asked_at FROM pgmta.webhook_failures AS f
WHERE f.webhook_id = %(id)s AND f.event_id > %(after)s ORDER BY f.event_id LIMIT %(most)s

-- name: unwell
SELECT w.id, w.name, w.state, w.reason, w.failing_since, extract(epoch FROM now() - w.failing_since)::float8 AS seconds,
    w.leased_until IS NULL OR w.leased_until < now() AS alone,
    NOT EXISTS (SELECT FROM pgmta.event_subscriptions AS s WHERE s.kind = 'webhook') AS unsubscribed, pgmta.webhook_lag(w.cursor) AS lag
FROM pgmta.webhooks AS w WHERE w.state <> 'disabled' ORDER BY w.id

-- name: any_webhook
EXISTS (SELECT FROM pgmta.webhooks WHERE state <> 'disabled')

-- name: claim
-- Take endpoints that no living process has; all that this one has now. Nothing is written if there is none to take.
WITH taken AS (
    UPDATE pgmta.webhooks AS w SET leased_by = %(worker)s
    WHERE w.id IN (
        SELECT h.id FROM pgmta.webhooks AS h
        WHERE h.state IN ('active', 'failing') AND h.leased_by IS DISTINCT FROM %(worker)s AND NOT EXISTS (
            SELECT FROM pgmta.daemons AS d
            WHERE d.process = h.leased_by AND d.seen_at > now() - make_interval(secs => %(lease)s))
        ORDER BY h.id FOR UPDATE)
    RETURNING w.*)
SELECT w.id, w.revision, w.name, w.tenant, w.viewer, w.url, w.condition::text, w.secret,
    CASE WHEN w.earlier_until > now() THEN w.earlier_secret END, w.owner, w.batch, w.created_by, w.failures,
    coalesce(extract(epoch FROM w.next_at - now()), 0)::float8,
    EXISTS (SELECT FROM pgmta.webhook_failures AS f WHERE f.webhook_id = w.id AND f.asked_at IS NOT NULL)
FROM (
    SELECT * FROM taken UNION ALL
    SELECT * FROM pgmta.webhooks AS h WHERE h.leased_by = %(worker)s AND h.state IN ('active', 'failing')) AS w

-- name: suspended
SELECT id::text, name FROM pgmta.webhooks WHERE state = 'suspended' ORDER BY id

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
INSERT INTO pgmta.webhook_failures (webhook_id, event_id, kind, message_id, after, reason)
VALUES (%(id)s, %(event)s, %(kind)s, %(message)s::text::bigint, %(after)s, %(reason)s)
ON CONFLICT ON CONSTRAINT webhook_failures_pkey
DO UPDATE SET asked_at = NULL, failed_at = now(), reason = EXCLUDED.reason

-- name: replays
SELECT event_id, document FROM pgmta.webhook_replays(%(id)s, %(worker)s, %(most)s)

-- name: replayed
DELETE FROM pgmta.webhook_failures WHERE webhook_id = %(id)s AND event_id = %(event)s

-- name: not_replayed
UPDATE pgmta.webhook_failures SET asked_at = NULL, failed_at = now(), reason = %(reason)s
WHERE webhook_id = %(id)s AND event_id = %(event)s

-- name: suspend
SELECT pgmta.webhook_suspend(%(id)s, %(revision)s, %(worker)s, %(reason)s, %(sender)s, %(content)s)

-- name: add
SELECT pgmta.webhook_add(%(name)s, %(url)s, %(kinds)s::text[], %(condition)s::jsonb, %(secret)s, %(owner)s, %(batch)s,
    %(tenant)s, %(who)s) AS id

-- name: change
SELECT pgmta.webhook_change(%(id)s, %(changes)s::jsonb, %(who)s)

-- name: enable
SELECT pgmta.webhook_enable(%(id)s, %(enabled)s, %(reason)s, %(who)s)

-- name: rotate
SELECT pgmta.webhook_rotate(%(id)s, %(secret)s, %(force)s, who => %(who)s) AS until

-- name: remove
SELECT pgmta.webhook_remove(%(id)s, %(who)s)

-- name: replay
SELECT pgmta.webhook_replay(%(id)s, %(since)s, %(events)s::text[], %(who)s) AS asked

-- name: list
SELECT * FROM pgmta.webhooks_seen(%(id)s, %(after)s, %(most)s)

-- name: ids
SELECT id FROM pgmta.webhooks WHERE %(name)s IN (name, id::text) ORDER BY id

-- name: names
SELECT DISTINCT name FROM pgmta.webhooks ORDER BY name

-- name: failures
SELECT * FROM pgmta.webhook_failures_seen(%(id)s, %(after)s, %(most)s)

-- name: expired
-- Remove some events that were set aside so many seconds ago; how many.
WITH gone AS (
    DELETE FROM pgmta.webhook_failures WHERE (webhook_id, event_id) IN (
        SELECT f.webhook_id, f.event_id FROM pgmta.webhook_failures AS f
        WHERE f.failed_at < now() - make_interval(secs => %(age)s) LIMIT %(most)s)
    RETURNING 1)
SELECT count(*) FROM gone

-- name: unwell
SELECT w.id, w.name, w.state, w.reason, w.failures, extract(epoch FROM now() - w.failing_since)::float8 AS seconds,
    NOT EXISTS (
        SELECT FROM pgmta.daemons AS d WHERE d.process = w.leased_by AND d.seen_at > now() - interval '1 minute') AS unposted,
    NOT EXISTS (SELECT FROM pgmta.event_subscriptions AS s WHERE s.kind = 'webhook') AS unsubscribed,
    pgmta.webhook_lag(w.cursor) AS lag,
    (SELECT count(*) FROM pgmta.webhook_failures AS f WHERE f.webhook_id = w.id AND f.asked_at IS NULL) AS set_aside
FROM pgmta.webhooks AS w WHERE w.state <> 'disabled' ORDER BY w.id

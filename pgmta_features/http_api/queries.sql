-- name: submit
-- The requests of a group commit, each for its key. Repeat the same group after a lost answer.
SELECT "set", request, outcome, ids, problems, suppressed, refused_early FROM pgmta.api_submit(%(sets)s::jsonb)

-- name: upload
-- The next piece of an upload. Returns the octets that a message may have.
SELECT pgmta.api_upload(%(upload)s, %(position)s, %(data)s)

-- name: upload_removed
-- Uploads of a request that was not completed.
SELECT pgmta.api_upload_removed(%(uploads)s)

-- name: expire_requests
-- One batch of requests whose Idempotency-Key is over.
WITH gone AS (
    DELETE FROM api_requests WHERE (acting, key) IN (
        SELECT acting, key FROM api_requests
        WHERE requested_at < now() - make_interval(secs => %(age)s)
        ORDER BY requested_at LIMIT %(batch)s
        FOR UPDATE SKIP LOCKED)
    RETURNING key)
SELECT count(*) FROM gone

-- name: expire_uploads
-- One batch of pieces of uploads whose process has died.
WITH gone AS (
    DELETE FROM api_uploads WHERE (upload, position) IN (
        SELECT upload, position FROM api_uploads
        WHERE stored_at < now() - make_interval(secs => %(age)s) LIMIT %(batch)s)
    RETURNING upload)
SELECT count(*) FROM gone

-- name: end_subscriptions
-- End the subscriptions of keys that read no events any more; return how many.
SELECT api_subscriptions_end()

-- name: keys
-- The keys, or the one of a name, with the last use of each.
SELECT k.name, k.scopes, k.tenant, k.senders, k.credentials, k.priority_first, k.priority_last,
    k.networks::text[] AS networks, k.sees, k.expires_at, k.revoked_at, k.created_at, k.created_by, used.used_at, host(used.used_from) AS used_from,
    k.revoked_at IS NULL AND coalesce(k.expires_at > now(), true) AS holds
FROM api_keys AS k LEFT JOIN LATERAL (
    SELECT s.used_at, s.used_from FROM api_secrets AS s WHERE s.key = k.name ORDER BY s.used_at DESC NULLS LAST LIMIT 1
) AS used ON true
WHERE %(name)s::text IS NULL OR k.name = %(name)s
ORDER BY k.revoked_at IS NOT NULL, k.name

-- name: secrets
-- The secrets of a key, also those that have ended, the newest first.
SELECT id, created_at, ends_at, used_at, host(used_from) AS used_from, coalesce(ends_at > now(), true) AS holds
FROM api_secrets WHERE key = %(name)s ORDER BY created_at DESC, ends_at DESC NULLS FIRST

-- name: new
-- Make a key, unless there is or was one of that name.
INSERT INTO api_keys (name, scopes, tenant, senders, credentials, priority_first, priority_last, networks, sees, expires_at)
VALUES (%(name)s, %(scopes)s, %(tenant)s, %(senders)s, %(credentials)s, %(priority_first)s, %(priority_last)s,
    %(networks)s::cidr[], %(sees)s, %(expires_at)s)
ON CONFLICT DO NOTHING RETURNING name

-- name: set
-- Change a key.
UPDATE api_keys SET scopes = %(scopes)s, tenant = %(tenant)s, senders = %(senders)s, credentials = %(credentials)s,
    priority_first = %(priority_first)s, priority_last = %(priority_last)s, networks = %(networks)s::cidr[], sees = %(sees)s, expires_at = %(expires_at)s
WHERE name = %(name)s

-- name: end_secrets
-- End the secrets of a key: the newest one after a time, the others at once. They stay for a month, so that it can be asked
-- where one was last used.
WITH newest AS (SELECT id FROM api_secrets WHERE key = %(name)s ORDER BY created_at DESC, ends_at DESC NULLS FIRST LIMIT 1),
gone AS (DELETE FROM api_secrets WHERE key = %(name)s AND ends_at < now() - interval '30 days'),
ended AS (
    UPDATE api_secrets SET ends_at = least(ends_at, now() + CASE WHEN id IN (SELECT id FROM newest) THEN %(seconds)s ELSE 0 END
        * interval '1 second')
    WHERE key = %(name)s AND coalesce(ends_at > now() - interval '30 days', true) RETURNING id, ends_at)
SELECT ends_at FROM ended WHERE id IN (SELECT id FROM newest) AND ends_at > now()

-- name: add_secret
-- Give a key a secret.
INSERT INTO api_secrets (id, key, digest) VALUES (%(id)s, %(name)s, %(digest)s)

-- name: lock
-- Lock a key that is not revoked.
SELECT name FROM api_keys WHERE name = %(name)s AND revoked_at IS NULL FOR NO KEY UPDATE

-- name: revoke
-- End a key for ever.
UPDATE api_keys SET revoked_at = now() WHERE name = %(name)s AND revoked_at IS NULL RETURNING name

-- name: waiting
-- How much mail of a key waits, scheduled mail too.
SELECT count(*) AS waiting FROM messages AS m JOIN queue AS q ON q.message_id = m.id
WHERE m.submitted_by = %(who)s AND q.status IN ('QUEUED', 'DEFERRED', 'SCHEDULED')

-- name: endpoints
-- The endpoints of a key that get events, if feature webhooks is there; `beyond`: also such as it may not have any more, because
-- endpoints keep the view with which webhook_view() made them.
SELECT w.id, w.name, w.url, NOT (
    'webhooks' = ANY (k.scopes) AND (k.sees <> 'own' OR coalesce(w.viewer = %(who)s, false))
    AND (k.sees = 'all' OR k.tenant = '*' OR coalesce(w.tenant = k.tenant, false))) AS beyond
FROM webhooks AS w JOIN api_keys AS k ON 'key:' || k.name = %(who)s
WHERE (w.created_by = %(who)s OR w.viewer = %(who)s) AND w.state <> 'disabled' ORDER BY w.id

-- name: unsubscribe
-- End the subscription with which a key reads events, if it has one.
SELECT events_unsubscribe(name) FROM event_subscriptions WHERE name = %(who)s

-- name: expiring
-- Keys that end within some days.
SELECT k.name, k.expires_at FROM api_keys AS k
WHERE k.revoked_at IS NULL AND k.expires_at BETWEEN now() AND now() + %(days)s * interval '1 day'
ORDER BY k.expires_at, k.name

-- name: unused_api
-- Whether a process of the API runs, and there is no key for it.
SELECT EXISTS (SELECT FROM daemons WHERE program = 'api' AND seen_at > now() - interval '1 minute')
    AND NOT EXISTS (SELECT FROM api_keys WHERE revoked_at IS NULL AND coalesce(expires_at > now(), true)) AS unused

-- name: message
-- A message that the key sees.
SELECT accepted_at, size, sender, tenant, message_id_header, submitted_by, template, version, metadata
FROM pgmta.api_message(%(id)s)

-- name: recipients
-- The recipients of a message behind a row.
SELECT row_id, recipient, state, attempts, next_attempt, at, code, enhanced, reply, class, host, returned_at, returned,
    complained_at, status, lease_until, send_at, held_by, hold_reason, hold_until, report_kind, priority, last_reply,
    malformed, sender, suppressed, worker
FROM pgmta.api_recipients(%(id)s, %(after)s, %(most)s)

-- name: attempts
-- The log of a message behind an entry.
SELECT ended_at, row_id, lease_token, recipient, attempt, started_at, event, code, enhanced, reply, class, command, host,
    tls_version, tls_verified, returned_at, returned, confirmed_at, complained_at
FROM pgmta.api_attempts(%(id)s, %(at)s, %(row)s, %(token)s, %(most)s)

-- name: search
-- Recipients that the key sees.
SELECT message_id, row_id, recipient, state, attempts, next_attempt, at, code, enhanced, reply, class, sender, tenant,
    message_id_header, metadata
FROM pgmta.api_search(%(states)s, %(ids)s::bigint[], %(recipients)s, %(sender)s, %(header)s, %(words)s::jsonb, %(tenant)s,
    %(since)s, %(until)s, %(before)s, %(after)s, %(most)s, %(seconds)s)

-- name: change
-- Cancel, hold or release a message, or some recipients of it.
SELECT changed, absent, known, states FROM pgmta.api_change(%(action)s, %(id)s, %(recipients)s, %(reason)s)

-- name: usage
-- What the log of a day says of the mail that the key sees.
SELECT delivered, deferred, bounced, "unknown", expired, cancelled, suppressed, returned, complained
FROM pgmta.api_usage(%(day)s)

-- name: events
-- The events that the key sees behind a cursor. A last row without an id has the place that was reached.
SELECT cursor, id, kind, document FROM pgmta.api_events(%(after)s, %(most)s, %(kinds)s)

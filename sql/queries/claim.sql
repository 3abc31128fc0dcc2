-- name: claim
-- Lease up to `limit` due rows: by priority, then by time. A row whose lease ran out is due as
-- well; that attempt's outcome is unknown and goes into the log before the next one begins.
-- The CTE keeps LIMIT exact, and the array keeps the UPDATE on the index (docs/decisions/0005).
WITH due AS MATERIALIZED (
    SELECT pick.*
    FROM generate_series(0, 9) AS level (priority)
    CROSS JOIN LATERAL (
        SELECT id, message_id, status, sender, recipient, domain, attempts, lease_owner,
            lease_token, lease_since
        FROM queue
        WHERE status IN ('QUEUED', 'DEFERRED', 'SENDING')
            AND queue.priority = level.priority
            AND next_attempt <= now()
            AND (status <> 'SENDING' OR lease_until < now())
            AND domain <> ALL (%(busy)b::text[])
            AND ({where})
        ORDER BY next_attempt
        LIMIT %(limit)s
        FOR UPDATE SKIP LOCKED
    ) AS pick
    LIMIT %(limit)s
), lost AS (
    INSERT INTO attempts (started_at, queue_id, message_id, lease_token, attempt, code, event,
        sender, recipient, domain, worker, host, command, enhanced, reply)
    SELECT lease_since, id, message_id, lease_token, attempts, 0, 'unknown',
        sender, recipient, domain, lease_owner, '', '', '',
        'lease ran out: the worker died or lost the database'
    FROM due WHERE status = 'SENDING'
)
UPDATE queue
SET status = 'SENDING', attempts = attempts + 1, lease_owner = %(owner)s,
    lease_since = now(),
    lease_token = (SELECT nextval('lease_tokens')),
    lease_until = now() + make_interval(secs => %(lease)s)
WHERE id = ANY (ARRAY(SELECT id FROM due)) AND status IN ('QUEUED', 'DEFERRED', 'SENDING')
RETURNING id, message_id, sender, recipient, domain, attempts, ts, lease_token

-- name: messages
-- The claimed messages, those of at most `inline` octets with their content.
SELECT id, size, utf8, trace, chunks,
    CASE WHEN chunks = 0 AND size <= %(inline)s THEN body END
FROM messages WHERE id = ANY (%(ids)b::bigint[])

-- name: body
-- The content of one message that is no small one and no large one.
SELECT body FROM messages WHERE id = %(id)s

-- name: chunk
-- One piece of a large message.
SELECT data FROM message_chunks WHERE message_id = %(id)s AND position = %(position)s

-- name: renew
-- Prolong leases; what is not returned is not ours any more.
UPDATE queue SET lease_until = now() + make_interval(secs => %(lease)s)
FROM unnest(%(ids)b::bigint[], %(tokens)b::bigint[]) AS ours (id, token)
WHERE queue.id = ours.id AND status = 'SENDING' AND lease_token = ours.token
RETURNING queue.id

-- name: next_due
-- Seconds until the earliest next attempt that is still to come.
SELECT extract(epoch FROM min(earliest) - now())::float8
FROM generate_series(0, 9) AS level (priority)
CROSS JOIN LATERAL (
    SELECT next_attempt AS earliest FROM queue
    WHERE status IN ('QUEUED', 'DEFERRED', 'SENDING') AND queue.priority = level.priority
        AND next_attempt > now()
    ORDER BY next_attempt LIMIT 1
) AS first

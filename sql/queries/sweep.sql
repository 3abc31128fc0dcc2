-- name: hold
-- One batch of waiting rows to HOLD. Rows under a lease are in flight; their outcome decides. Where the
-- condition fails on a row, `key` finds the reason.
UPDATE queue
SET status = 'HOLD', hold_reason = coalesce(faults ->> %(key)s::text, %(reason)s), held_by = %(who)s,
    hold_until = now() + make_interval(secs => %(hold)s::float8),
    metadata = CASE WHEN %(quarantine)s::text IS NULL THEN metadata
        ELSE jsonb_set(metadata, '{_quarantineid}', to_jsonb(%(quarantine)s::text)) END
WHERE id = ANY (ARRAY(
        SELECT id FROM queue
        WHERE status IN ('QUEUED', 'DEFERRED', 'SENDING')
            AND (lease_until IS NULL OR lease_until < now())
            AND ts <= now() - make_interval(secs => %(older)s)
            AND ({where})
        LIMIT %(batch)s
        FOR UPDATE SKIP LOCKED))
    AND status IN ('QUEUED', 'DEFERRED', 'SENDING')
RETURNING id

-- name: release
-- One batch of held rows back into the queue. Rows with a malformed address stay on hold and are not
-- counted; where their hold ends, the trigger queue_hold_stamp makes it last, so each is met once.
WITH released AS (
    UPDATE queue
    SET status = 'QUEUED'
    WHERE id = ANY (ARRAY(
            SELECT id FROM queue
            WHERE status = 'HOLD' AND ts <= now() - make_interval(secs => %(older)s) AND ({where})
                AND (hold_until <= now() OR NOT queue_malformed(sender, recipient, domain))
            LIMIT %(batch)s
            FOR UPDATE SKIP LOCKED))
        AND status = 'HOLD'
    RETURNING id, status
)
SELECT id FROM released WHERE status <> 'HOLD'

-- name: retry
-- One batch of deferred rows due at once.
UPDATE queue
SET next_attempt = now()
WHERE id = ANY (ARRAY(
        SELECT id FROM queue
        WHERE status = 'DEFERRED' AND next_attempt > now()
            AND ts <= now() - make_interval(secs => %(older)s) AND ({where})
        LIMIT %(batch)s
        FOR UPDATE SKIP LOCKED))
    AND status = 'DEFERRED'
RETURNING id

-- name: delete
-- One batch of rows away, each with a last entry in the log. Rows under a lease are left.
WITH picked AS MATERIALIZED (
    SELECT id FROM queue
    WHERE (lease_until IS NULL OR lease_until < now())
        AND ts <= now() - make_interval(secs => %(older)s) AND ({where})
    LIMIT %(batch)s
    FOR UPDATE SKIP LOCKED
), gone AS (
    DELETE FROM queue WHERE id = ANY (ARRAY(SELECT id FROM picked))
    RETURNING id, message_id, attempts, sender, recipient, domain, lease_token
)
INSERT INTO attempts (started_at, queue_id, message_id, lease_token, attempt, code, event,
    sender, recipient, domain, worker, host, command, enhanced, reply)
SELECT now(), id, message_id, coalesce(lease_token, 0), attempts, 0, 'deleted',
    sender, left(recipient, 600), domain, %(who)s, '', '', '', %(reason)s
FROM gone
RETURNING queue_id

-- name: standing
-- Whether a standing rule is there.
SELECT name FROM rules WHERE name = %(rule)s

-- name: asked
-- Whether there are rows to delete, holds to release, rules to remove. The least time comes from the
-- index, whatever the statistics say.
SELECT EXISTS (SELECT FROM queue WHERE status = 'DELETE'),
    coalesce((SELECT min(hold_until) FROM queue WHERE status = 'HOLD') <= now(), false),
    EXISTS (SELECT FROM rules WHERE expires_at <= now())

-- name: orphans
-- One batch of bodies that no row refers to: left by TRUNCATE, or by DML sent straight to a leaf.
DELETE FROM messages
WHERE id = ANY (ARRAY(
    SELECT id FROM messages AS m
    WHERE received_at < now() - make_interval(secs => %(age)s)
        AND NOT EXISTS (SELECT FROM queue AS q WHERE q.message_id = m.id)
    LIMIT %(batch)s
    FOR UPDATE SKIP LOCKED))
RETURNING id

-- name: orphan_chunks
-- The pieces of one batch of messages that were never acknowledged, or are gone. The walk goes from
-- message to message by the index: to read the table would be to read all content.
WITH RECURSIVE walk AS (
    (SELECT message_id FROM message_chunks ORDER BY message_id LIMIT 1)
    UNION ALL
    SELECT (SELECT message_id FROM message_chunks AS c WHERE c.message_id > walk.message_id
            ORDER BY message_id LIMIT 1)
    FROM walk WHERE walk.message_id IS NOT NULL
), gone AS (
    SELECT message_id FROM walk
    WHERE (SELECT true FROM messages AS m WHERE m.id = walk.message_id) IS NULL
        AND (SELECT stored_at FROM message_chunks AS c WHERE c.message_id = walk.message_id
             ORDER BY position DESC LIMIT 1) < now() - make_interval(secs => %(age)s)
    LIMIT %(batch)s
)
DELETE FROM message_chunks WHERE message_id = ANY (ARRAY(SELECT message_id FROM gone))
RETURNING message_id

-- name: expire_attempts
-- Drop old day partitions of the attempts log.
SELECT attempts_expire(make_interval(secs => %(age)s))

-- name: expire_rules
-- Standing rules whose time is over.
DELETE FROM rules WHERE expires_at <= now() RETURNING name

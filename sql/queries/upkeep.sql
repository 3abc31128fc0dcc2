-- name: look
-- Which duties may have something to do now or within a second: one look of an idle process for all of them.
SELECT {conditions}

-- name: requests
-- Whether operators have asked for something. As each part of the look it is a step in an index, whatever the
-- statistics say.
EXISTS (SELECT FROM queue WHERE status = 'DELETE')
    OR coalesce((SELECT min(hold_until) FROM queue WHERE status = 'HOLD') <= now() + interval '1 second', false)
    OR EXISTS (SELECT FROM rules WHERE expires_at <= now() + interval '1 second')

-- name: scheduled
-- Whether scheduled mail is due.
coalesce((SELECT min(send_at) FROM queue WHERE status = 'SCHEDULED')
    <= now() + schedule_ahead() + interval '1 second', false)

-- name: reports
-- Whether senders wait for DSNs.
(SELECT id FROM queue WHERE status = 'REPORT' ORDER BY held_at, id LIMIT 1) IS NOT NULL
    OR (SELECT at FROM delays WHERE noticed_at IS NULL ORDER BY at LIMIT 1) IS NOT NULL

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
-- The chunks of one batch of messages that were never acknowledged, or are gone. The walk goes from
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

-- name: expire_keys
-- One batch of keys of submissions whose time is over. An open transaction has none of them locked for long.
DELETE FROM idempotency_keys
WHERE ctid = ANY (ARRAY(
    SELECT ctid FROM idempotency_keys
    WHERE created_at < now() - make_interval(secs => %(age)s)
    ORDER BY created_at LIMIT %(batch)s
    FOR UPDATE SKIP LOCKED))
RETURNING message_id

-- name: expire_calls
-- One batch of calls of submit_mails() that no program repeats any more.
DELETE FROM submit_calls
WHERE call = ANY (ARRAY(
    SELECT call FROM submit_calls
    WHERE called_at < now() - make_interval(secs => %(age)s)
    ORDER BY called_at LIMIT %(batch)s
    FOR UPDATE SKIP LOCKED))
RETURNING call

-- name: introduce
-- The host name of trace fields, as long as an operator has set none.
UPDATE submit_settings SET hostname = %(hostname)s WHERE hostname IS NULL

-- name: expire_rules
-- Remove standing rules whose time is over, and count the rows that each leaves on hold.
DELETE FROM rules WHERE expires_at <= now()
RETURNING name, id, (SELECT count(*) FROM queue WHERE status = 'HOLD' AND held_under = 'rule ' || rules.id)

-- name: clock
-- Note the database's time, and shorten the waits after a step back. The time in seconds; the step back and the
-- rows whose waits were shortened, null without one.
SELECT extract(epoch FROM seen)::float8, extract(epoch FROM back)::float8, rows
FROM database_clock_look(make_interval(secs => %(least)s), make_interval(secs => %(lease)s))

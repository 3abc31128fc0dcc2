-- name: block
-- The first of the next 100 message ids, and which migrations the database has.
SELECT nextval('message_ids')::bigint, ARRAY(SELECT name FROM schema_migrations)

-- name: messages
-- Part of both below: the messages of a group. The whole group fails if one id exists already,
-- because the caller is repeating a group that did commit then.
WITH new_messages AS (
    INSERT INTO messages (id, size, utf8, chunks, trace, body)
    SELECT id, size, utf8, {chunks}, trace, body
    FROM unnest(
        %(ids)b::bigint[], %(sizes)b::bigint[], %(utf8)b::boolean[], %(chunks)b::integer[],
        %(traces)b::text[], %(bodies)b::bytea[]) AS message (id, size, utf8, chunks, trace, body)
)

-- name: chunk_count
-- The number of chunks of a message, in a group that has some. It is null if some are missing, and
-- the column refuses null. Chunks are written without a sync, so a crash before this statement can
-- lose them.
CASE WHEN chunks = 0 OR chunks = (
    SELECT count(*) FROM message_chunks AS chunk WHERE chunk.message_id = message.id)
THEN chunks END

-- name: enqueue
-- A group of messages and all their rows in one statement, which is one commit.
{messages}
INSERT INTO queue (message_id, sender, sender_domain, recipient, domain, priority, metadata)
SELECT message_id, sender, sender_domain, recipient, domain, priority, metadata::jsonb
FROM unnest(
    %(message_ids)b::bigint[], %(senders)b::text[], %(sender_domains)b::text[], %(recipients)b::text[],
    %(domains)b::text[], %(priorities)b::smallint[], %(metadata)b::text[])
    AS row (message_id, sender, sender_domain, recipient, domain, priority, metadata)

-- name: enqueue_held
-- The same where some rows go on hold at once, each with its reason.
{messages}
INSERT INTO queue (message_id, sender, sender_domain, recipient, domain, priority, metadata,
    status, hold_reason, held_by, held_at)
SELECT message_id, sender, sender_domain, recipient, domain, priority, metadata::jsonb,
    CASE WHEN hold IS NULL THEN 'QUEUED' ELSE 'HOLD' END, hold,
    CASE WHEN hold IS NOT NULL THEN 'smtpd' END, CASE WHEN hold IS NOT NULL THEN now() END
FROM unnest(
    %(message_ids)b::bigint[], %(senders)b::text[], %(sender_domains)b::text[], %(recipients)b::text[],
    %(domains)b::text[], %(priorities)b::smallint[], %(metadata)b::text[], %(holds)b::text[])
    AS row (message_id, sender, sender_domain, recipient, domain, priority, metadata, hold)

-- name: known
-- Which of these messages are stored, or were until a worker was done with them.
SELECT id FROM messages WHERE id = ANY (%(ids)b::bigint[])
UNION ALL SELECT message_id FROM attempts WHERE message_id = ANY (%(ids)b::bigint[])

-- name: chunks
-- Chunks of content, ahead of the rows of their messages. COPY writes a page per chunk, and extends
-- the table by many pages at once.
COPY message_chunks (message_id, position, data) FROM STDIN (FORMAT binary)

-- name: drop_chunks
-- Chunks of messages that were not accepted in the end. No join: see claim.sql.
DELETE FROM message_chunks WHERE message_id = ANY (ARRAY(
    SELECT one FROM unnest(%(ids)b::bigint[]) AS one
    WHERE (SELECT true FROM messages WHERE id = one) IS NULL))

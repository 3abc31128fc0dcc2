-- name: block
-- The first of the next 100 message ids, and which migrations the database has.
SELECT nextval('message_ids')::bigint, ARRAY(SELECT name FROM schema_migrations)

-- name: enqueue
-- A group of messages and all their rows, in one commit. The whole group fails if one id exists already,
-- because the caller is repeating a group that did commit then. It stores what queue_put stores, which would
-- slow the relay down (docs/decisions/0029-submission.md; tests/sql/test_one_door.py compares both).
WITH new_messages AS (
    INSERT INTO messages (id, size, utf8, chunks, trace, body, message_id_header, origin)
    SELECT * FROM unnest(
        %(ids)b::bigint[], %(sizes)b::bigint[], %(utf8)b::boolean[], %(chunks)b::integer[],
        %(traces)b::text[], %(bodies)b::bytea[], %(message_id_headers)b::text[], %(origins)b::text[])
)
INSERT INTO queue (message_id, sender, sender_domain, recipient, domain, priority, metadata, on_failed)
SELECT message_id, sender, sender_domain, recipient, domain, priority, metadata::jsonb, %(on_failed)b::text
FROM unnest(
    %(message_ids)b::bigint[], %(senders)b::text[], %(sender_domains)b::text[], %(recipients)b::text[],
    %(domains)b::text[], %(priorities)b::smallint[], %(metadata)b::text[]
) AS row (message_id, sender, sender_domain, recipient, domain, priority, metadata)

-- name: put
-- The same for a group in which a message has chunks, a hold with its reason, or options, or in which
-- messages differ in on_failed. An answer without
-- columns is the cheapest to read.
SELECT FROM queue_put(
    %(ids)b::bigint[], %(sizes)b::bigint[], %(utf8)b::boolean[], %(chunks)b::integer[],
    %(traces)b::text[], %(bodies)b::bytea[], %(message_id_headers)b::text[],
    %(message_ids)b::bigint[], %(senders)b::text[], %(sender_domains)b::text[], %(recipients)b::text[],
    %(domains)b::text[], %(priorities)b::smallint[], %(metadata)b::text[],
    %(holds)b::text[], %(tenants)b::text[], %(on_failed)b::text[], %(once)b::boolean[], %(logins)b::text[],
    %(envids)b::text[], %(rets)b::text[], %(requiretls)b::boolean[], %(notifies)b::text[], %(orcpts)b::text[],
    %(origins)b::text[], %(tls_optional)b::boolean[])

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

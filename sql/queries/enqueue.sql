-- name: reserve
-- The next message ids, and which migrations the database has. A sequence writes WAL for some values ahead, and a
-- reservation within these would not wait for it: after a crash another process could get the same ids, and a look for
-- them would find its mail. The message in the WAL makes this commit wait.
SELECT ARRAY(SELECT nextval('message_ids') FROM generate_series(1, %(number)s)),
    ARRAY(SELECT name FROM schema_migrations), pg_logical_emit_message(true, 'pgmta', '')

-- name: put
-- A group of messages and all their rows, in one commit. The whole group fails if one id exists already,
-- because the caller is repeating a group that did commit then. `columns` is
-- `wake` if the transaction has its own NOTIFY, and else nothing: an answer without columns is the cheapest to read.
SELECT {columns} FROM queue_put(%(messages)b, %(rows)b)

-- name: wake
-- Part of put: the workers are notified at the commit.
notify_channel('pgmta_queue')

-- name: known
-- Whether these messages, here without content, are stored, or were until a worker was done with them.
SELECT group_stored(%(messages)b)

-- name: chunks
-- Chunks of content, ahead of the rows of their messages. COPY writes a page per chunk, and extends
-- the table by many pages at once.
COPY message_chunks (message_id, position, data) FROM STDIN (FORMAT binary)

-- name: chunks_stored
-- How many chunks of a message are stored.
SELECT count(*) FROM message_chunks WHERE message_id = %(id)s

-- name: drop_chunks
-- Chunks of messages that were not accepted in the end. No join: see claim.sql.
DELETE FROM message_chunks WHERE message_id = ANY (ARRAY(
    SELECT one FROM unnest(%(ids)b::bigint[]) AS one
    WHERE (SELECT true FROM messages WHERE id = one) IS NULL))

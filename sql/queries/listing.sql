-- name: list
-- Rows of the queue as an operator reads them, oldest first.
SELECT q.message_id, q.id, q.status, q.priority, q.ts, q.next_attempt, q.attempts, m.size,
    q.sender, q.recipient, q.domain, q.last_reply, q.lease_owner, q.lease_until,
    q.hold_reason, q.held_by, q.held_at, q.hold_until, q.metadata
FROM (SELECT * FROM queue WHERE {where}) AS q JOIN messages AS m ON m.id = q.message_id
ORDER BY q.ts, q.id
LIMIT %(limit)s

-- name: message
-- One message: how it came, and the start of its content, which holds the header.
SELECT m.id, m.received_at, m.size, m.utf8, m.chunks, m.trace,
    CASE WHEN m.chunks = 0 THEN substr(m.body, 1, %(head)s)
        ELSE (SELECT substr(string_agg(c.data, '' ORDER BY c.position), 1, %(head)s)
              FROM message_chunks AS c
              WHERE c.message_id = m.id
                  AND c.position <= %(head)s::bigint * m.chunks / greatest(m.size, 1)) END AS head
FROM messages AS m WHERE m.id = %(id)s

-- name: history
-- Every attempt for a message, in order; it outlives the message.
SELECT started_at, ended_at, event, attempt, code, enhanced, reply, command, host, worker, sender,
    recipient, row_id, lease_token, address, tls_version, tls_cipher, tls_verified, dns_seconds,
    connect_seconds, tls_seconds, transaction_seconds
FROM attempts WHERE message_id = %(id)s ORDER BY ended_at, row_id

-- name: transcripts
-- The transcripts of a message, in order.
SELECT ended_at, row_ids, lease_token, traces, dialogue
FROM transcripts WHERE message_id = %(id)s ORDER BY ended_at, row_ids

-- name: count
-- Rows by the value of one column.
SELECT {column} AS value, count(*), min(ts) FROM queue WHERE {where} GROUP BY 1 ORDER BY 2 DESC, 1

-- name: matching
-- How many rows a condition matches.
SELECT count(*) FROM queue WHERE {where}

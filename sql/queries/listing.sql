-- name: list
-- The rows after a row, as an operator reads them, the oldest first: the index by id has this order.
SELECT q.message_id, q.id, q.status, q.priority, q.ts, q.next_attempt, q.attempts, m.size,
    q.sender, q.recipient, q.domain, q.tenant, q.last_reply, q.lease_owner, q.lease_until,
    q.hold_reason, q.report_kind, q.held_by, q.held_at, q.hold_until, q.on_failed, q.metadata, q.send_at,
    {waits_for} AS waits_for
FROM (SELECT * FROM queue WHERE id > %(after)s AND {where} ORDER BY id LIMIT %(limit)s) AS q
    LEFT JOIN messages AS m ON m.id = q.message_id
ORDER BY q.id

-- name: message
-- One message: how it came, and the start of its content, which holds the header.
SELECT m.id, m.received_at, m.size, m.utf8, m.chunks, m.trace, m.message_id_header,
    composition_shown(m.template_id, m.params)::text AS composition,
    CASE WHEN m.chunks = 0 THEN substr(m.body, 1, %(head)s)
        ELSE (SELECT substr(string_agg(c.data, '' ORDER BY c.position), 1, %(head)s)
              FROM message_chunks AS c
              WHERE c.message_id = m.id
                  AND c.position <= %(head)s::bigint * m.chunks / greatest(m.size, 1)) END AS head
FROM messages AS m WHERE m.id = %(id)s

-- name: parameters
-- The parts of a message, or the words of its template; they may have secrets.
SELECT coalesce(params -> 'words', params)::text AS params FROM messages WHERE id = %(id)s

-- name: arrival
-- Who submitted a message, and how; readers see it too.
SELECT trace, submitted_by, origin FROM messages WHERE id = %(id)s

-- name: history
-- Every attempt for a message, in order; it outlives the message.
SELECT started_at, ended_at, event, attempt, code, enhanced, reply, command, host, worker, sender,
    recipient, row_id, lease_token, address, tls_version, tls_cipher, tls_verified, dns_seconds,
    connect_seconds, tls_seconds, transaction_seconds, class, returned_at, returned, submitted_by,
    confirmed_at, complained_at, host(client) AS client, client_helo, client_protocol
FROM attempts WHERE message_id = %(id)s ORDER BY ended_at, row_id

-- name: transcripts
-- The transcripts of a message, in order.
SELECT ended_at, row_ids, lease_token, traces, dialogue
FROM transcripts WHERE message_id = %(id)s ORDER BY ended_at, row_ids

-- name: notified
-- Which DSNs there were about a message, to whom, and why there was none.
SELECT at, kind, recipient, row_id, sent_to, report_id, class, reason
FROM reports WHERE message_id = %(id)s ORDER BY at, row_id

-- name: origins
-- Of which message and recipients a message is the DSN.
SELECT at, kind, message_id, recipient, row_id, sender, class, reason
FROM reports WHERE report_id = %(id)s ORDER BY at, row_id

-- name: count
-- Rows by the value of one column.
SELECT {column} AS value, count(*), min(ts) FROM queue WHERE {where} GROUP BY 1 ORDER BY 2 DESC, 1

-- name: ages
-- Rows by their age, in classes, the youngest first.
SELECT (ARRAY['below 1m', '1m to 10m', '10m to 1h', '1h to 4h', '4h to 1d', '1d to 3d', '3d and more'])[step] AS value,
    count, min
FROM (
    SELECT width_bucket(extract(epoch FROM now() - ts)::float8,
        ARRAY['-infinity', 60, 600, 3600, 14400, 86400, 259200]::float8[]) AS step, count(*), min(ts)
    FROM queue WHERE {where} GROUP BY 1
) AS counted ORDER BY step

-- name: last_class
-- Stands in place of `column`: the class of the last attempt in the log, if there was one. It is in the partitions of the days
-- since the row came in, with a day for clocks that differ.
CASE WHEN attempts > 0 THEN (
    SELECT a.class FROM attempts AS a WHERE a.message_id = queue.message_id AND a.row_id = queue.id
        AND a.ended_at > queue.ts - interval '1 day' AND a.ended_at < now() + interval '1 day'
    ORDER BY a.attempt DESC, a.ended_at DESC LIMIT 1) END

-- name: count_attempts
-- Attempts of the last time by the value of one column. The condition names columns as queue has them.
SELECT {column} AS value, count(*), min(ended_at), max(ended_at)
FROM (
    SELECT *, attempt AS attempts, concat_ws(' ', nullif(code, 0), nullif(reply, '')) AS last_reply,
        lower(substring(sender COLLATE "C" FROM '[^@]*$')) AS sender_domain
    FROM attempts WHERE ended_at > now() - make_interval(secs => %(since)s)
) AS queue
WHERE {where} GROUP BY 1 ORDER BY 2 DESC, 1

-- name: matching
-- How many rows a condition matches.
SELECT count(*) FROM queue WHERE {where}

-- name: waiting
-- Rows of the queue that match, the newest first.
SELECT q.message_id, q.id AS row_id, q.status AS state, q.ts AS at, q.sender, q.recipient,
    q.message_id_header, q.metadata, q.attempts, q.last_reply, q.hold_reason, host(q.client) AS client,
    {waits_for} AS waits_for
FROM (
    SELECT queue.*, m.message_id_header, m.submitted_by, split_part(trace_client(m.trace), '|', 1)::inet AS client
    FROM queue JOIN messages AS m ON m.id = queue.message_id
) AS q
WHERE {where}
ORDER BY q.ts DESC, q.id DESC
LIMIT %(limit)s

-- name: gone
-- What has left the queue and matches, by its last entry in the log, the newest first.
SELECT * FROM (
    SELECT DISTINCT ON (a.message_id, a.row_id) a.message_id, a.row_id, a.event AS state,
        a.ended_at AS at, a.sender, a.recipient, a.message_id_header, a.metadata,
        a.attempt AS attempts, concat_ws(' ', nullif(a.code, 0), nullif(a.reply, '')) AS last_reply,
        NULL::text AS hold_reason, host(a.client) AS client, NULL::text AS waits_for
    FROM attempts AS a
    WHERE {where} AND a.ended_at > now() - make_interval(secs => %(since)s)
        AND (SELECT true FROM queue AS q WHERE q.id = a.row_id LIMIT 1) IS NULL
    ORDER BY a.message_id, a.row_id, a.ended_at DESC
) AS last
ORDER BY at DESC, row_id DESC
LIMIT %(limit)s

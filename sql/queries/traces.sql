-- name: active
-- The traces that last.
SELECT id, wanted::text FROM traces WHERE expires_at > now() ORDER BY id

-- name: remove
-- Traces that ended over a day ago.
DELETE FROM traces WHERE expires_at < now() - interval '1 day'

-- name: start
-- A new trace.
INSERT INTO traces (created_by, expires_at, wanted)
VALUES (%(who)s, now() + make_interval(secs => %(seconds)s), %(wanted)s::jsonb)
RETURNING id, created_at

-- name: stop
-- End a trace that lasts.
UPDATE traces SET expires_at = now() WHERE id = %(id)s AND expires_at > now() RETURNING wanted::text

-- name: list
-- The traces that last, and those that ended within a day, with the transcripts of each.
SELECT id, created_at, created_by, expires_at, wanted, expires_at > now() AS active,
    (SELECT count(*) FROM transcripts AS s
     WHERE s.traces @> ARRAY[t.id] AND s.ended_at >= t.created_at - interval '1 minute') AS transcripts
FROM traces AS t ORDER BY id

-- name: unaware
-- The number of living workers that deliver, and of those that have not read the traces since a time.
SELECT count(*) AS workers, count(*) FILTER (WHERE seen_at <= %(since)s) AS unaware
FROM workers WHERE action = 'deliver' AND seen_at > now() - interval '30 seconds'

-- name: fresh
-- Transcripts for a trace from a time on, with one attempt of each.
SELECT s.ended_at, s.message_id, s.lease_token, s.row_ids, s.dialogue, a.sender, a.recipient, a.event,
    a.code, a.reply, a.host, a.address, a.worker
FROM transcripts AS s LEFT JOIN LATERAL (
    SELECT * FROM attempts AS a
    WHERE a.message_id = s.message_id AND a.row_id = s.row_ids[1] AND a.lease_token = s.lease_token
        AND a.ended_at = s.ended_at
    LIMIT 1
) AS a ON true
WHERE s.traces @> ARRAY[%(id)s::bigint] AND s.ended_at > %(since)s
ORDER BY s.ended_at, s.message_id

-- name: lasts
-- Whether a trace lasts.
SELECT expires_at > now() AS lasts FROM traces WHERE id = %(id)s

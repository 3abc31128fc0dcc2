-- name: active
-- The traces that last.
SELECT id, wanted::text FROM traces WHERE expires_at > now() ORDER BY id

-- name: remove
-- Traces that ended over a day ago.
DELETE FROM traces WHERE expires_at < now() - interval '1 day'

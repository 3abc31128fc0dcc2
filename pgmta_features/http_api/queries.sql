-- name: submit
-- The requests of a group commit, each for its key. Repeat the same group after a lost answer.
SELECT "set", request, outcome, ids, problems, suppressed, beside FROM pgmta.api_submit(%(sets)s::jsonb)

-- name: upload
-- The next piece of an upload. Returns the octets that a message may have.
SELECT pgmta.api_upload(%(upload)s, %(position)s, %(data)s)

-- name: upload_removed
-- Uploads of a request that was not completed.
SELECT pgmta.api_upload_removed(%(uploads)s)

-- name: expire_requests
-- One batch of requests whose Idempotency-Key is over.
WITH gone AS (
    DELETE FROM api_requests WHERE (acting, key) IN (
        SELECT acting, key FROM api_requests
        WHERE requested_at < now() - make_interval(secs => %(age)s)
        ORDER BY requested_at LIMIT %(batch)s
        FOR UPDATE SKIP LOCKED)
    RETURNING key)
SELECT count(*) FROM gone

-- name: expire_uploads
-- One batch of pieces of uploads whose process has died.
WITH gone AS (
    DELETE FROM api_uploads WHERE (upload, position) IN (
        SELECT upload, position FROM api_uploads
        WHERE stored_at < now() - make_interval(secs => %(age)s) LIMIT %(batch)s)
    RETURNING upload)
SELECT count(*) FROM gone

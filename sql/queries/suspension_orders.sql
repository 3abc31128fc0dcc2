-- name: suspend
-- Suspend the mail of a key.
SELECT queue_suspend(%(kind)s, %(value)s, %(reason)s, %(until)s::timestamptz, %(tag)s, %(who)s) AS id

-- name: resume
-- End a suspension.
SELECT queue_resume(%(id)s, %(who)s) AS done

-- name: list
-- The suspensions, with the rows that were put off for each, and the domains that lead to its MX host.
SELECT s.id, s.kind, s.value, s.reason, s.tag, s.created_by, s.created_at, s.until, s.slow_at,
    s.applied_at IS NOT NULL AND NOT EXISTS (
        SELECT FROM suspension_domains AS d WHERE d.suspension_id = s.id AND d.applied_at IS NULL) AS applied,
    ARRAY(SELECT d.domain FROM suspension_domains AS d WHERE d.suspension_id = s.id ORDER BY d.domain) AS domains,
    (SELECT count(*) FROM queue AS q WHERE q.suspension = s.id) AS rows,
    CASE WHEN s.slow_at IS NULL THEN suspension_condition(s.kind, s.value) END AS condition
FROM suspensions AS s ORDER BY s.id

-- name: leaving
-- Rows that still wait for a suspension that has ended.
SELECT count(*) AS rows FROM queue AS q
WHERE q.suspension IS NOT NULL AND NOT EXISTS (SELECT FROM suspensions AS s WHERE s.id = q.suspension)

-- name: marks
-- The rows of a message that were put off, each with its suspension.
SELECT id, suspension FROM queue WHERE message_id = %(id)s AND suspension IS NOT NULL

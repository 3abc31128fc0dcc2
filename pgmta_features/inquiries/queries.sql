-- name: open
-- The inquiries that this process has to answer.
SELECT id, action, value, who, audit_id FROM inquiries AS i
WHERE i.asked_at > now() - interval '10 seconds' AND (i.process IS NULL OR i.process = %(process)s)
    AND NOT EXISTS (SELECT FROM inquiry_answers AS a WHERE a.inquiry_id = i.id AND a.process = %(process)s)
ORDER BY id

-- name: answer
-- What this process answers.
SELECT inquiry_answer(%(id)s, %(process)s, %(answer)s::json, %(audit)s)

-- name: begin
-- A new inquiry.
SELECT inquiry_begin(%(action)s, %(value)s, %(process)s, %(who)s) AS id

-- name: end
-- Its answers are read.
SELECT inquiry_end(%(id)s)

-- name: answers
-- The answers so far.
SELECT process, answer FROM inquiry_answers WHERE inquiry_id = %(id)s ORDER BY process

-- name: answering
-- The processes that deliver, or do so no more and end their connections.
SELECT d.process, extract(epoch FROM now() - d.seen_at)::float8 AS silence,
    (SELECT count(*) FROM workers AS w WHERE w.owner = d.process AND w.action = 'deliver') AS workers
FROM daemons AS d
WHERE d.program = 'queued' AND d.seen_at > now() - interval '30 seconds'
    AND (EXISTS (SELECT FROM workers AS w WHERE w.owner = d.process AND w.action = 'deliver')
        OR NOT EXISTS (SELECT FROM workers AS w WHERE w.owner = d.process))
ORDER BY d.process

-- name: expire
-- Inquiries whose command did not end them.
DELETE FROM inquiries WHERE asked_at < now() - interval '1 minute'

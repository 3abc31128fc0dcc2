-- name: submit_mails
-- Put mails into the queue. A repetition of the call gets the answer of the first one.
SELECT ids, problems, suppressed FROM pgmta.submit_mails(%(mails)s::jsonb, %(contents)s, %(call)s)

-- name: submit_text
-- Put mails into the queue in the transaction of a program. The answer is one text, which every driver can read.
SELECT pg_catalog.to_json(ids)::text, problems::text, suppressed::text
FROM pgmta.submit_mails(CAST(CAST(%(mails)s AS text) AS jsonb), wake => {wake})

-- name: cancel
-- Stop the recipients of a message that are not delivered yet. Returns their number.
SELECT pgmta.cancel(%(id)s::bigint, %(reason)s::text) AS stopped

-- name: status
-- The state of each recipient of some messages.
SELECT * FROM pgmta.status(%(ids)s::bigint[])

-- name: states
-- The state of each recipient for Python, which has no time beyond the year 9999: such a row does not wait for an attempt.
SELECT message_id, recipient, state, attempts,
    CASE WHEN next_attempt < '9999-01-01 00:00+00' THEN next_attempt END, at, code, reply, returned
FROM pgmta.status(%(ids)s::bigint[])

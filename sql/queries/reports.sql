-- name: waiting
-- The next messages with rows in REPORT, in the order of their oldest one: whether all other rows are settled,
-- and for how many seconds that row has waited. Rows of others wait for `others` seconds first: their own
-- process reports them. `recent` leaves out rows that are older than these seconds. The last row of the answer is
-- where the next page begins.
WITH page AS MATERIALIZED (
    SELECT id, message_id,
        -- Python's calendar is shorter than PostgreSQL's, and has no infinity
        least(greatest(held_at, '0002-01-01 00:00:00+00'), '9998-01-01 00:00:00+00') AS held_at
    FROM queue
    WHERE status = 'REPORT'
        AND (held_at, id) > (
            coalesce(greatest(%(since)s::timestamptz, now() - make_interval(secs => %(recent)s)), '-infinity'), %(after)s)
        AND (lease_until IS NULL OR (lease_until < now() AND NOT once))
        AND (split_part(held_by, '@', -1) = %(process)s OR held_at <= now() - make_interval(secs => %(others)s)
            OR held_at > now() + interval '1 hour')
    ORDER BY queue.held_at, id
    LIMIT %(limit)s
), found AS MATERIALIZED (
    SELECT message_id, min(held_at) AS oldest FROM page GROUP BY message_id
)
SELECT message_id, (
        SELECT true FROM queue AS q
        WHERE q.message_id = found.message_id AND q.status IN ('QUEUED', 'DEFERRED', 'SENDING') LIMIT 1
    ) IS NULL AS settled,
    least(extract(epoch FROM now() - oldest), 1e9)::float8 AS waited, NULL::timestamptz AS since, NULL::bigint AS after
FROM found
UNION ALL
(SELECT NULL, NULL, count(*) OVER (), held_at, id FROM page ORDER BY held_at DESC, id DESC LIMIT 1)

-- name: rows
-- The rows in REPORT of some messages. Texts by SQL may be of any length, and a DSN needs no more of them.
SELECT id, message_id, left(sender, 1000), left(recipient, 1000), domain,
    least(greatest(ts, '0002-01-01 00:00:00+00'), '9998-01-01 00:00:00+00'),
    least(greatest(held_at, '0002-01-01 00:00:00+00'), '9998-01-01 00:00:00+00'),
    priority, tenant, left(metadata ->> '_partid', 100), metadata ? '_report',
    report_kind, left(hold_reason, 1000), left(last_reply, 1100), left(notify, 100), left(orcpt, 600), nullif(metadata, '{}')::text
FROM queue
WHERE status = 'REPORT' AND message_id = ANY (%(ids)b::bigint[])
    AND (lease_until IS NULL OR (lease_until < now() AND NOT once))
ORDER BY message_id, id LIMIT %(limit)s

-- name: facts
-- The last attempts of the rows of these messages.
SELECT row_id, attempt, ended_at, host, CASE event WHEN 'suppressed' THEN event ELSE class END FROM attempts
WHERE message_id = ANY (%(ids)b::bigint[]) AND event = ANY (%(events)b::text[])
    AND ended_at > %(since)s - interval '1 day' AND ended_at < %(until)s + interval '1 day'

-- name: messages
-- What a DSN says of these messages, without their content.
SELECT id, size, utf8, chunks, trace, left(message_id_header, 1000), left(envid, 400), ret,
    least(greatest(received_at, '0002-01-01 00:00:00+00'), '9998-01-01 00:00:00+00'), requiretls,
    composition_shown(template_id, params)::text, origin
FROM messages WHERE id = ANY (%(ids)b::bigint[])

-- name: contents
-- Content: whole, or its first octets and chunks.
SELECT id, -1 AS position, CASE WHEN id = ANY (%(whole)b::bigint[]) THEN body ELSE substring(body FOR %(octets)s) END
FROM messages WHERE id = ANY (%(whole)b::bigint[] || %(heads)b::bigint[]) AND chunks = 0
UNION ALL
SELECT message_id, position, data FROM message_chunks WHERE message_id = ANY (%(whole)b::bigint[])
UNION ALL
SELECT message_id, position, data FROM message_chunks
WHERE message_id = ANY (%(heads)b::bigint[]) AND position < %(chunks)s

-- name: used
-- How many DSNs went to these addresses within the last hour; '' are all of them.
SELECT sender, sum(number)::bigint FROM report_counts
WHERE sender = ANY (%(addresses)b::text[]) AND minute >= date_trunc('minute', now()) - interval '1 hour'
GROUP BY sender

-- name: close
-- Remove rows, or put them on hold, and note that in the log.
SELECT FROM reports_close(
    %(ids)b::bigint[], %(bounced)b::bigint[], %(held)s::jsonb, %(who)s, %(delayed)b::bigint[],
    %(counted)b::text[], %(numbers)b::integer[], %(limit_of_one)s, %(limit_of_all)s,
    %(report_ids)b::bigint[], %(message_ids)b::bigint[], %(row_ids)b::bigint[], %(recipients)b::text[],
    %(senders)b::text[], %(sent_tos)b::text[], %(kinds)b::text[], %(classes)b::text[], %(reasons)b::text[])

-- name: free
-- Of these rows those that are still in REPORT, and that no other transaction has locked.
SELECT id FROM queue WHERE id = ANY (%(ids)b::bigint[]) AND status = 'REPORT' FOR UPDATE SKIP LOCKED

-- name: delayed
-- Rows whose delay is to be reported, with their time in `bounces.delay`. A message is due `gather` after its
-- first delay, and then with all of its delays. A row that has ended meanwhile has no message id.
WITH page AS MATERIALIZED (
    SELECT message_id FROM delays
    WHERE noticed_at IS NULL AND at <= now() - make_interval(secs => %(gather)s)
    ORDER BY at LIMIT %(limit)s
), rows AS MATERIALIZED (
    SELECT row_id FROM delays WHERE noticed_at IS NULL AND message_id = ANY (ARRAY(SELECT message_id FROM page))
    GROUP BY message_id, row_id ORDER BY message_id, row_id LIMIT %(rows)s
)
SELECT q.id, q.message_id, left(q.sender, 1000), left(q.recipient, 1000), q.domain,
    least(greatest(q.ts, '0002-01-01 00:00:00+00'), '9998-01-01 00:00:00+00'),
    now() AS held_at, q.priority, q.tenant, left(q.metadata ->> '_partid', 100), q.metadata ? '_report',
    'delayed', NULL, left(q.last_reply, 1100), left(q.notify, 100), left(q.orcpt, 600),
    nullif(q.metadata, '{}')::text
FROM queue AS q
WHERE q.id = ANY (ARRAY(SELECT row_id FROM rows)) AND q.status IN ('QUEUED', 'DEFERRED', 'SENDING')
UNION ALL
SELECT row_id, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL
FROM rows
WHERE (SELECT true FROM queue AS q
    WHERE q.id = rows.row_id AND q.status IN ('QUEUED', 'DEFERRED', 'SENDING') LIMIT 1) IS NULL

-- name: ended
-- Delays that need no report: their rows have ended.
DELETE FROM delays WHERE row_id = ANY (%(ids)b::bigint[]) AND noticed_at IS NULL

-- name: tidy_delays
-- Remove delays whose rows are gone, from the next rows by id: the last id, and how many rows were looked at.
WITH page AS MATERIALIZED (
    SELECT DISTINCT row_id FROM delays WHERE row_id > %(after)s ORDER BY row_id LIMIT %(batch)s
), gone AS (
    DELETE FROM delays WHERE row_id = ANY (ARRAY(
        SELECT row_id FROM page WHERE (SELECT true FROM queue AS q WHERE q.id = page.row_id LIMIT 1) IS NULL))
)
SELECT max(row_id), count(*) FROM page

-- name: tidy_counts
-- Remove counts that are older than an hour.
DELETE FROM report_counts WHERE minute < now() - interval '2 hours' AND minute > '-infinity'

-- name: version
-- Counts changes of the suspensions.
SELECT version FROM suspensions_version

-- name: active
-- The suspensions that count, with the domains that lead to their MX hosts.
SELECT s.id, s.kind, s.value, s.reason, ARRAY(
    SELECT d.domain FROM suspension_domains AS d WHERE d.suspension_id = s.id ORDER BY d.domain)
FROM suspensions AS s WHERE (s.until IS NULL OR s.until > now()) AND s.slow_at IS NULL ORDER BY s.id

-- name: under
-- Of these rows those that meet the SQL condition of a suspension.
SELECT row_id, suspension FROM suspended_under(%(ids)b::bigint[])

-- name: conditions
-- The SQL conditions of suspensions that count.
SELECT id, value FROM suspensions
WHERE kind = 'condition' AND (until IS NULL OR until > now()) AND slow_at IS NULL ORDER BY id

-- name: learn
-- Domains whose mail leads to suspended MX hosts, in one statement: after each one all processes read the suspensions again.
INSERT INTO suspension_domains (suspension_id, domain)
SELECT s.id, l.domain
FROM unnest(%(suspensions)b::bigint[], %(domains)s::text[]) AS l (suspension, domain)
    JOIN suspensions AS s ON s.id = l.suspension
ON CONFLICT DO NOTHING

-- name: logged
-- The domains whose last attempt within a day went to a suspended MX host. A name such as *.a.example is every host of
-- that domain.
SELECT a.domain
FROM suspensions AS s CROSS JOIN LATERAL (
    SELECT domain FROM (
        SELECT domain, ended_at, regexp_replace(lower(host COLLATE "C"), ':[0-9]+$', '') AS name FROM attempts
        WHERE ended_at > now() - interval '1 day' AND host <> ''
    ) AS gone
    GROUP BY domain
    HAVING max(ended_at) FILTER (WHERE CASE WHEN s.value LIKE '*.%%'
        THEN right(name, length(s.value) - 1) = substr(s.value, 2) ELSE name = s.value END) = max(ended_at)
) AS a
WHERE s.id = %(suspension)s

-- name: expire
-- End the suspensions whose time is over.
SELECT suspensions_expire(%(who)s)

-- name: task
-- The next suspension whose mail is not put off yet, or all such domains of one.
SELECT id, kind, value, NULL::text[] AS domains, suspension_condition(kind, value) AS condition
FROM suspensions WHERE applied_at IS NULL AND slow_at IS NULL
UNION ALL
SELECT suspension_id, 'domains', count(*)::text, array_agg(domain), NULL
FROM suspension_domains WHERE applied_at IS NULL GROUP BY suspension_id
ORDER BY 1 LIMIT 1

-- name: counts
-- Whether a suspension has not ended, nor been set aside.
SELECT EXISTS (SELECT FROM suspensions WHERE id = %(suspension)s AND slow_at IS NULL)

-- name: applied
-- The mail of a suspension that was due is put off.
UPDATE suspensions SET applied_at = now() WHERE id = %(suspension)s

-- name: applied_domains
-- The mail of some domains of a suspension is put off.
UPDATE suspension_domains SET applied_at = now()
WHERE suspension_id = %(suspension)s AND domain = ANY (%(domains)s::text[])

-- name: any_suspension
-- Whether there are suspensions, or mail that waits for one.
EXISTS (SELECT FROM suspensions)
    OR (SELECT suspension FROM queue WHERE suspension IS NOT NULL ORDER BY suspension LIMIT 1) IS NOT NULL

-- name: look
-- Whether the time of a suspension is over, whether mail is to be put off, and the suspensions that have ended or were set aside while
-- rows are still put off for them: one step in the index for each.
WITH RECURSIVE mark AS (
    (SELECT suspension FROM queue WHERE suspension IS NOT NULL ORDER BY suspension LIMIT 1)
    UNION ALL
    SELECT (SELECT q.suspension FROM queue AS q WHERE q.suspension > mark.suspension ORDER BY q.suspension LIMIT 1)
    FROM mark WHERE mark.suspension IS NOT NULL
)
SELECT EXISTS (SELECT FROM suspensions WHERE until <= now()),
    EXISTS (SELECT FROM suspensions WHERE applied_at IS NULL AND slow_at IS NULL)
        OR EXISTS (SELECT FROM suspension_domains WHERE applied_at IS NULL),
    ARRAY(SELECT suspension FROM mark WHERE suspension IS NOT NULL
        AND NOT EXISTS (SELECT FROM suspensions AS s WHERE s.id = mark.suspension AND s.slow_at IS NULL))

-- name: due
-- The ids of the next rows that a suspension puts off, for many batches. Rows that are not due come to a worker at their time.
SELECT id FROM queue
WHERE id > %(after)s AND status IN ('QUEUED', 'DEFERRED') AND next_attempt <= now() AND suspension IS NULL
    AND lease_until IS NULL AND {where} IS TRUE
ORDER BY id LIMIT %(page)s

-- name: due_of_domains
-- The same for all domains of a suspension that are left, each by the index. The sum keeps the plan off the index on id.
SELECT d.domain, q.id
FROM suspension_domains AS d CROSS JOIN LATERAL (
    SELECT id FROM queue
    WHERE domain = d.domain AND status IN ('QUEUED', 'DEFERRED') AND next_attempt <= now() AND suspension IS NULL
        AND lease_until IS NULL AND (d.domain > %(domain)s::text OR id + 0 > %(after)s)
    ORDER BY id + 0 LIMIT %(page)s
) AS q
WHERE d.suspension_id = %(suspension)s AND d.applied_at IS NULL AND d.domain >= %(domain)s::text
ORDER BY d.domain, q.id LIMIT %(page)s

-- name: rows
-- These rows, as routes and times need them.
SELECT id, message_id, sender, recipient, domain, attempts, ts, on_failed, tenant, priority,
    CASE WHEN metadata <> '{}' THEN metadata::text END
FROM queue WHERE id = ANY (ARRAY(SELECT unnest(%(ids)b::bigint[])))

-- name: put_off
-- Put off a batch of rows that still wait, each for its seconds. The sum keeps the plan off queue_domain_due. Those that have passed a time of `bounces.delay`
-- get their notice. Nothing happens once the suspension has ended.
WITH found AS MATERIALIZED (
    SELECT id, message_id FROM queue
    WHERE id = ANY (ARRAY(SELECT unnest(%(ids)b::bigint[]))) AND status IN ('QUEUED', 'DEFERRED')
        AND next_attempt + '0s' <= now() AND suspension IS NULL AND lease_until IS NULL
        AND (SELECT true FROM suspensions AS s WHERE s.id = %(suspension)s AND s.slow_at IS NULL)
    ORDER BY id FOR UPDATE SKIP LOCKED
), delayed AS (
    INSERT INTO delays (row_id, after, message_id)
    SELECT id, make_interval(secs => (%(overdue)s::jsonb ->> id::text)::float8), message_id FROM found
    WHERE %(overdue)s::jsonb ? id::text
    ON CONFLICT DO NOTHING
), moved AS (
    UPDATE queue SET suspension = %(suspension)s,
        next_attempt = now() + make_interval(secs => (%(delays)s::jsonb ->> id::text)::float8)
    WHERE id = ANY (ARRAY(SELECT id FROM found)) RETURNING id
)
SELECT count(*) FROM moved

-- name: free
-- Give a batch of rows back for which the suspension has ended: due now, if they wait.
WITH found AS MATERIALIZED (
    SELECT id FROM queue WHERE suspension = %(suspension)s AND id > %(after)s
    ORDER BY id LIMIT %(batch)s FOR UPDATE SKIP LOCKED
), freed AS (
    UPDATE queue SET suspension = NULL,
        next_attempt = CASE WHEN status IN ('QUEUED', 'DEFERRED') THEN least(next_attempt, clock_timestamp()) ELSE next_attempt END
    WHERE id = ANY (ARRAY(SELECT id FROM found))
)
SELECT count(*), coalesce(max(id), 0) FROM found

-- name: costly
-- Set a suspension aside.
UPDATE suspensions SET slow_at = now() WHERE id = %(suspension)s AND slow_at IS NULL RETURNING id

-- name: waits_for
-- For what a row `q` of queue waits; null: it is not put off.
CASE WHEN q.suspension IS NOT NULL AND q.status IN ('QUEUED', 'DEFERRED')
    THEN 'the end of suspension ' || q.suspension END

-- name: settled
-- Part of settle: the suspension for which a row is put off.
CASE WHEN queue.status = 'SENDING' AND o.suspension <> 0 THEN o.suspension ELSE queue.suspension END

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

-- name: suspended_for
-- Of these rows those that wait for a suspension, for who may not see suspensions.
SELECT row_id, kind, value, until FROM pgmta.suspended_for(%(rows)s::bigint[])

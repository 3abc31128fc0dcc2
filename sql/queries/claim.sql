-- name: claim_by_time
-- Lease due rows in the order of priority and time, from a window at the front of the queue. While
-- little is due, the window shows all of it. If `flag` of the first row is true, the window did not
-- reach the end, and only claim_by_domain is fair. With `wide` that is not asked of a claim that got all it
-- wanted, which reads no more of the window than it needs. The braces take the worker's condition
-- and what excludes the rows that standing rules hold; others the labels of rows (labels.py). If the rules changed since the caller read them, nothing is
-- claimed; the first row has their version.
-- The CTE keeps LIMIT exact, the array keeps the UPDATE on the index (docs/decisions/0005).
WITH seen AS MATERIALIZED (
    SELECT pick.*
    FROM generate_series(0, %(priority)s) AS level (priority)
    CROSS JOIN LATERAL (
        SELECT id, domain{label_of_row}
        FROM queue
        WHERE status IN ('QUEUED', 'DEFERRED', 'SENDING')
            AND queue.priority = level.priority
            AND next_attempt AT TIME ZONE 'UTC'
                <= (now() - make_interval(secs => %(overdue)s)) AT TIME ZONE 'UTC'
            AND (lease_until IS NULL OR (lease_until < now() AND NOT once))
            AND ({where})
        ORDER BY next_attempt AT TIME ZONE 'UTC'
        LIMIT %(window)s
    ) AS pick
    LIMIT %(window)s
), due AS MATERIALIZED (
    SELECT id, message_id, status, sender, recipient, domain, attempts, lease_owner, lease_token,
        lease_since, tenant, metadata
    FROM queue
    WHERE id = ANY (ARRAY(
            SELECT id FROM {seen} WHERE domain <> ALL (%(busy)b::text[]){open} LIMIT %(limit)s))
        AND status IN ('QUEUED', 'DEFERRED', 'SENDING')
        AND next_attempt <= now()
        AND (lease_until IS NULL OR (lease_until < now() AND NOT once))
        AND (SELECT version FROM rules_version) = %(version)s
        {rules}
    FOR UPDATE SKIP LOCKED
), {lease}
SELECT 'claim' AS kind, (SELECT version FROM rules_version) AS id,
    NULL::bigint AS message_id, NULL::text AS sender, NULL::text AS recipient, NULL::text AS domain,
    NULL::integer AS number, NULL::timestamptz AS ts, NULL::bigint AS size,
    CASE WHEN %(wide)s::boolean AND (SELECT count(*) FROM due) >= %(limit)s THEN true
        ELSE (SELECT count(*) FROM seen) >= %(window)s END AS flag, NULL::boolean AS once,
    NULL::text AS on_failed, NULL::text AS tenant, NULL::text AS text, NULL::smallint AS priority, NULL::bytea AS data
{result}

-- name: claim_by_domain
-- Lease due rows destination by destination, from the one after `cursor` on: a backlog of one
-- destination, however long, costs the others nothing. The walk goes from one pair of domain and priority to the
-- next by the index. The first row of a pair has its earliest next attempt, so that a pair without due rows costs
-- one step. If `flag` of the first row is true, the search ended before the last destination, at `text` and
-- the priority `number`.
WITH RECURSIVE walk AS (
    (SELECT domain, priority, next_attempt, 1 AS step FROM queue
     WHERE status IN ('QUEUED', 'DEFERRED', 'SENDING')
        AND (domain, priority) > (%(cursor)s, %(level)s::smallint) AND ({partition})
     ORDER BY domain, priority, next_attempt LIMIT 1)
    UNION ALL
    SELECT following.domain, following.priority, following.next_attempt, walk.step + 1
    FROM walk CROSS JOIN LATERAL (
        SELECT domain, priority, next_attempt FROM queue
        WHERE status IN ('QUEUED', 'DEFERRED', 'SENDING')
            AND (domain, priority) > (walk.domain, walk.priority) AND ({partition})
        ORDER BY domain, priority, next_attempt LIMIT 1
    ) AS following
    WHERE walk.step < %(steps)s
), due AS MATERIALIZED (
    SELECT pick.*
    FROM walk
    CROSS JOIN LATERAL (
        SELECT id, message_id, status, sender, recipient, domain, attempts, lease_owner,
            lease_token, lease_since, tenant, metadata
        FROM queue
        WHERE status IN ('QUEUED', 'DEFERRED', 'SENDING')
            AND queue.domain = walk.domain
            AND queue.priority = walk.priority
            AND next_attempt <= now() - make_interval(secs => %(overdue)s)
            AND (lease_until IS NULL OR (lease_until < now() AND NOT once))
            AND ({where}){open_row}
            {rules}
        ORDER BY next_attempt
        LIMIT %(limit)s
        FOR UPDATE SKIP LOCKED
    ) AS pick
    WHERE walk.next_attempt <= now() - make_interval(secs => %(overdue)s)
        AND walk.priority <= %(priority)s
        AND walk.domain <> ALL (%(busy)b::text[])
        AND (SELECT version FROM rules_version) = %(version)s
    LIMIT %(limit)s
), {lease}
SELECT 'claim' AS kind,
    (SELECT version FROM rules_version) AS id, NULL::bigint AS message_id, NULL::text AS sender,
    NULL::text AS recipient, NULL::text AS domain,
    CASE WHEN (SELECT count(*) FROM due) < %(limit)s
        THEN (SELECT priority FROM walk ORDER BY step DESC LIMIT 1) END::integer AS number,
    NULL::timestamptz AS ts, NULL::bigint AS size,
    CASE WHEN (SELECT count(*) FROM due) < %(limit)s
        THEN (SELECT count(*) FROM walk) >= %(steps)s ELSE true END AS flag,
    NULL::boolean AS once, NULL::text AS on_failed, NULL::text AS tenant,
    CASE WHEN (SELECT count(*) FROM due) < %(limit)s
        THEN (SELECT max(domain) FROM walk) ELSE (SELECT max(domain) FROM due) END AS text,
    NULL::smallint AS priority, NULL::bytea AS data
{result}

-- name: few
-- In place of `seen` for urgent rows: at most `each` of one domain.
(SELECT id, domain{label} FROM (
    SELECT id, domain{label}, row_number() OVER (PARTITION BY domain) AS place
    FROM seen{where_open}) AS numbered
 WHERE place <= %(each)s) AS few

-- name: urgent_by_domain
-- As claim_by_domain, for urgent rows: by their own index (docs/decisions/0023), which has only these,
-- and at most `each` rows of one destination and priority.
WITH RECURSIVE walk AS (
    (SELECT lower(domain) AS domain, priority, next_attempt, 1 AS step FROM queue
     WHERE status IN ('QUEUED', 'DEFERRED', 'SENDING') AND priority <= 3
        AND (lower(domain), priority) > (%(cursor)s, %(level)s::smallint) AND ({partition})
     ORDER BY lower(domain), priority, next_attempt LIMIT 1)
    UNION ALL
    SELECT following.domain, following.priority, following.next_attempt, walk.step + 1
    FROM walk CROSS JOIN LATERAL (
        SELECT lower(domain) AS domain, priority, next_attempt FROM queue
        WHERE status IN ('QUEUED', 'DEFERRED', 'SENDING') AND priority <= 3
            AND (lower(queue.domain), priority) > (walk.domain, walk.priority) AND ({partition})
        ORDER BY lower(queue.domain), priority, next_attempt LIMIT 1
    ) AS following
    WHERE walk.step < %(steps)s
), due AS MATERIALIZED (
    SELECT pick.*
    FROM walk
    CROSS JOIN LATERAL (
        SELECT id, message_id, status, sender, recipient, domain, attempts, lease_owner,
            lease_token, lease_since, tenant, metadata
        FROM queue
        WHERE status IN ('QUEUED', 'DEFERRED', 'SENDING')
            AND queue.priority <= 3
            AND lower(queue.domain) = walk.domain
            AND queue.priority = walk.priority
            AND next_attempt <= now() - make_interval(secs => %(overdue)s)
            AND (lease_until IS NULL OR (lease_until < now() AND NOT once))
            AND ({where}){open_row}
            {rules}
        ORDER BY next_attempt
        LIMIT %(each)s
        FOR UPDATE SKIP LOCKED
    ) AS pick
    WHERE walk.next_attempt <= now() - make_interval(secs => %(overdue)s)
        AND walk.priority <= %(priority)s
        AND walk.domain <> ALL (%(busy)b::text[])
        AND (SELECT version FROM rules_version) = %(version)s
    LIMIT %(limit)s
), {lease}
SELECT 'claim' AS kind,
    (SELECT version FROM rules_version) AS id, NULL::bigint AS message_id, NULL::text AS sender,
    NULL::text AS recipient, NULL::text AS domain,
    CASE WHEN (SELECT count(*) FROM due) < %(limit)s
        THEN (SELECT priority FROM walk ORDER BY step DESC LIMIT 1) END::integer AS number,
    NULL::timestamptz AS ts, NULL::bigint AS size,
    CASE WHEN (SELECT count(*) FROM due) < %(limit)s
        THEN (SELECT count(*) FROM walk) >= %(steps)s ELSE true END AS flag,
    NULL::boolean AS once, NULL::text AS on_failed, NULL::text AS tenant,
    CASE WHEN (SELECT count(*) FROM due) < %(limit)s
        THEN (SELECT max(domain) FROM walk) ELSE (SELECT max(lower(domain)) FROM due) END AS text,
    NULL::smallint AS priority, NULL::bytea AS data
{result}

-- name: next_due
-- Seconds until the earliest next attempt from `since` seconds ago until `window` seconds from now: one
-- step in the index queue_due per priority.
SELECT extract(epoch FROM min(pick.next_attempt) - now())::float8
FROM generate_series(0, %(priority)s) AS level (priority)
CROSS JOIN LATERAL (
    SELECT next_attempt
    FROM queue
    WHERE status IN ('QUEUED', 'DEFERRED', 'SENDING')
        AND queue.priority = level.priority
        AND next_attempt AT TIME ZONE 'UTC'
            > (now() - make_interval(secs => %(since)s)) AT TIME ZONE 'UTC'
        AND next_attempt AT TIME ZONE 'UTC'
            <= (now() + make_interval(secs => %(window)s)) AT TIME ZONE 'UTC'
        AND ({where})
    ORDER BY next_attempt AT TIME ZONE 'UTC'
    LIMIT 1
) AS pick

-- name: result
-- Part of all claims. Their first row, of kind 'claim', is about the claim itself. Rows of kind 'row'
-- are the leased rows: `flag` says whether each is urgent, and `text` is its metadata, null if empty;
-- `data` is NOTIFY, a space, and ORCPT, null if it has neither.
-- Rows of kind 'message' are their messages, each once: `number` of chunks, `flag` for SMTPUTF8,
-- `once` for REQUIRETLS (null for TLS-Required: No), Message-ID in `sender`, the login that submitted it in `recipient`, ENVID in
-- `domain`, `origin` in `on_failed`, and RET in `tenant`. Rows of kind 'chunk' are
-- chunks of their content. Content comes if it is small, up to `budget` octets in message rows, and up to as much
-- in chunks.
UNION ALL
SELECT 'row', id, message_id, sender, recipient, domain, attempts,
    -- a program's calendar is shorter than PostgreSQL's, and has no infinity
    least(greatest(ts, '0002-01-01 00:00:00+00'), '9998-01-01 00:00:00+00'), lease_token,
    priority <= %(urgent)s, once, on_failed, tenant,
    CASE WHEN metadata <> '{}' THEN metadata::text END, priority,
    CASE WHEN notify IS NOT NULL OR orcpt IS NOT NULL
        THEN convert_to(concat(notify, ' ', orcpt), 'UTF8') END
FROM claimed
UNION ALL
SELECT 'message', NULL, id, message_id_header, submitted_by, envid, chunks, NULL, size, utf8,
    CASE WHEN requiretls OR NOT tls_optional THEN requiretls END, origin, ret, trace, NULL, CASE WHEN chunks = 0 AND size <= %(inline)s
        AND sum(size) FILTER (WHERE chunks = 0 AND size <= %(inline)s)
            OVER (ROWS UNBOUNDED PRECEDING) <= %(budget)s THEN body END
FROM messages WHERE id = ANY (ARRAY(SELECT message_id FROM claimed))
UNION ALL
SELECT 'chunk', NULL, message_id, NULL, NULL, NULL, position, NULL, NULL, NULL, NULL, NULL, NULL,
    NULL, NULL, data
FROM message_chunks WHERE message_id = ANY (ARRAY(
    SELECT id FROM (
        SELECT id, sum(size) OVER (ROWS UNBOUNDED PRECEDING) AS octets
        FROM messages
        WHERE id = ANY (ARRAY(SELECT message_id FROM claimed)) AND chunks > 0 AND size <= %(inline)s
    ) AS message WHERE octets <= %(budget)s))

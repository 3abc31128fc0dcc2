-- name: claim_by_time
-- Lease due rows in the order of priority and time, from a window at the front of the queue. While
-- little is due, the window shows all of it. If `more` is true, the window did not
-- reach the end, and only claim_by_domain is fair. With `wide` that is not asked of a claim that got all it
-- wanted, which reads no more of the window than it needs. The braces take the worker's condition,
-- what excludes the rows that standing rules hold, and the labels of rows (pgmta/store/queue/labels.py).
-- If the rules changed since the caller read them, nothing is claimed; `version` is theirs.
-- The CTE keeps LIMIT exact, the array keeps the UPDATE on the index, and the sum keeps the plan off queue_domain_due
-- (docs/decisions/claim.md).
WITH {named}seen AS MATERIALIZED (
    SELECT pick.*
    FROM generate_series(0, %(priority)s) AS level (priority)
    CROSS JOIN LATERAL (
        {older}SELECT id, domain{label_of_row}
        FROM queue
        WHERE status IN ('QUEUED', 'DEFERRED', 'SENDING')
            AND queue.priority = level.priority
            AND next_attempt AT TIME ZONE 'UTC'
                <= (now() - make_interval(secs => %(overdue)s)) AT TIME ZONE 'UTC'{from_mark}
            AND (lease_until IS NULL OR (lease_until < now() AND NOT once))
            AND ({where})
        ORDER BY next_attempt AT TIME ZONE 'UTC'
        LIMIT %(window)s{end}
    ) AS pick
    LIMIT %(window)s
), due AS MATERIALIZED (
    SELECT id, message_id, lease_token
    FROM queue
    WHERE id = ANY (ARRAY(
            SELECT id FROM {seen} WHERE domain <> ALL (%(busy)b::text[]){open} LIMIT %(limit)s))
        AND status IN ('QUEUED', 'DEFERRED', 'SENDING')
        AND next_attempt + '0s' <= now()
        AND (lease_until IS NULL OR (lease_until < now() AND NOT once))
        AND (SELECT version FROM rules_version) = %(version)s
        {rules}
    FOR UPDATE SKIP LOCKED
), {lease}, claim AS (
    SELECT (SELECT version FROM rules_version) AS version,
        CASE WHEN %(wide)s::boolean AND (SELECT count(*) FROM due) >= %(limit)s THEN true
            ELSE (SELECT count(*) FROM seen) >= %(window)s END AS more,
        NULL::text AS last_domain, NULL::integer AS last_priority, extract(epoch FROM now())::float8 AS present
)
{result}

-- name: claim_by_domain
-- Lease due rows destination by destination, from the one after `cursor` on: a backlog of one
-- destination, however long, costs the others nothing. The walk goes from one pair of domain and priority to the
-- next by the index. The first row of a pair has its earliest next attempt, so that a pair without due rows costs
-- one step. If `more` is true, the search ended before the last destination, at `last_domain` and `last_priority`.
-- Claims of urgent rows name another key, that of an index that has only these, and take at
-- most `each` rows of one destination and priority.
WITH RECURSIVE {walk}, due AS MATERIALIZED (
    SELECT pick.id, pick.message_id, pick.lease_token, walk.domain
    FROM walk
    CROSS JOIN LATERAL (
        SELECT id, message_id, lease_token
        FROM queue
        WHERE status IN ('QUEUED', 'DEFERRED', 'SENDING'){urgent}
            AND {key} = walk.domain
            AND queue.priority = walk.priority
            AND next_attempt <= now() - make_interval(secs => %(overdue)s){from_floor}
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
), {lease}, claim AS (
    SELECT (SELECT version FROM rules_version) AS version,
        CASE WHEN (SELECT count(*) FROM due) < %(limit)s
            THEN (SELECT count(*) FROM walk) >= %(steps)s ELSE true END AS more,
        CASE WHEN (SELECT count(*) FROM due) < %(limit)s
            THEN (SELECT max(domain) FROM walk) ELSE (SELECT max(domain) FROM due) END AS last_domain,
        CASE WHEN (SELECT count(*) FROM due) < %(limit)s
            THEN (SELECT priority FROM walk ORDER BY step DESC LIMIT 1) END::integer AS last_priority,
        extract(epoch FROM now())::float8 AS present
)
{result}

-- name: walk
walk AS (
    (SELECT {key} AS domain, priority, next_attempt, 1 AS step FROM queue
     WHERE status IN ('QUEUED', 'DEFERRED', 'SENDING'){urgent}
        AND ({key}, priority) > (%(cursor)s, %(level)s::smallint) AND ({partition}){free}
     ORDER BY {key}, priority, next_attempt LIMIT 1)
    UNION ALL
    SELECT following.domain, following.priority, following.next_attempt, walk.step + 1
    FROM walk CROSS JOIN LATERAL (
        SELECT {key} AS domain, priority, next_attempt FROM queue
        WHERE status IN ('QUEUED', 'DEFERRED', 'SENDING'){urgent}
            AND ({key}, priority) > (walk.domain, walk.priority) AND ({partition}){free}
        ORDER BY {key}, priority, next_attempt LIMIT 1
    ) AS following
    WHERE walk.step < %(steps)s
)

-- name: pairs
-- In place of `walk` where the pairs are known, each with a floor (pgmta/store/mark/mark.py).
walk AS MATERIALIZED (
    SELECT domain COLLATE "C" AS domain, priority, to_timestamp(floor) AS next_attempt, step
    FROM unnest(%(domains)b::text[], %(levels)b::smallint[], %(floors)b::float8[])
        WITH ORDINALITY AS pair (domain, priority, floor, step)
)

-- name: from_floor
 AND next_attempt >= walk.next_attempt

-- name: named
-- Where older rows than the mark are known by their ids (pgmta/store/mark/mark.py).
named AS MATERIALIZED (
    SELECT queue.priority AS level, id, domain{label_of_row}
    FROM queue
    WHERE id = ANY (%(ids)b::bigint[]) AND status IN ('QUEUED', 'DEFERRED', 'SENDING')
        AND queue.priority + 0 <= %(priority)s
        AND next_attempt + '0s' <= now() - make_interval(secs => %(overdue)s)
        AND next_attempt + '0s' < to_timestamp(%(mark)s)
        AND (lease_until IS NULL OR (lease_until < now() AND NOT once))
        AND ({where}) IS TRUE
), 

-- name: older
SELECT id, domain{label} FROM named WHERE named.level = level.priority UNION ALL (

-- name: from_mark

                AND next_attempt AT TIME ZONE 'UTC' >= to_timestamp(%(mark)s) AT TIME ZONE 'UTC'

-- name: few
-- Stands in place of `seen` in claims of urgent rows: at most `each` rows of one domain.
(SELECT id, domain{label} FROM (
    SELECT id, domain{label}, row_number() OVER (PARTITION BY domain) AS place
    FROM seen{where_open}) AS numbered
 WHERE place <= %(each)s) AS few

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
-- Part of all claims: a line for each leased row, or a single one if there are none. Each begins with what the claim
-- itself found. The first of several rows of a message has the message too. Small content comes with it, up to `budget`
-- octets in all. Neither the sum nor the look at the line before needs an order. No join: see lease.sql.
SELECT claim.version, claim.more, claim.last_domain, claim.last_priority, claim.present, leased.*
FROM claim LEFT JOIN (
    SELECT r.id, r.message_id, r.sender, r.recipient, r.domain, r.attempts,
        -- Python's calendar is shorter than PostgreSQL's, and has no infinity
        least(greatest(r.ts, '0002-01-01 00:00:00+00'), '9998-01-01 00:00:00+00') AS ts, r.lease_token,
        r.priority <= %(urgent)s AS urgent, r.once, r.on_failed, r.tenant,
        CASE WHEN r.metadata <> '{}' THEN r.metadata::text END AS metadata, nullif(r.notify, '') AS notify,
        nullif(r.orcpt, '') AS orcpt, r.priority,
        m.size, m.utf8, m.trace, m.chunks,
        CASE WHEN {fits} THEN CASE m.chunks WHEN 0 THEN m.body ELSE (
                SELECT CASE count(*) WHEN m.chunks THEN string_agg(c.data, '') END FROM (
                    SELECT data FROM message_chunks WHERE message_id = r.message_id AND position < m.chunks
                    ORDER BY position) AS c) END
            END AS content,
        m.message_id_header, m.submitted_by, m.envid, m.ret, m.requiretls, m.origin, m.tls_optional,
        CASE WHEN m.params IS NOT NULL THEN CASE WHEN {fits} THEN jsonb_build_array(m.template_id, m.params)::text
            ELSE '' END END
    FROM (SELECT *, lag(message_id) OVER () IS DISTINCT FROM message_id AS first FROM claimed) AS r
    LEFT JOIN LATERAL (
        SELECT size, utf8, trace, chunks, body, message_id_header, submitted_by, envid, ret, requiretls, origin,
            tls_optional, template_id, params
        FROM messages WHERE id = r.message_id AND r.first LIMIT 1
    ) AS m ON true
) AS leased ON true

-- name: fits
-- Whether a message is small, and all such messages so far are within the budget.
m.size <= %(inline)s
    AND sum(m.size) FILTER (WHERE m.size <= %(inline)s) OVER (ROWS UNBOUNDED PRECEDING) <= %(budget)s

-- name: put
-- Suppress addresses, and say of each what that changed.
SELECT suppressions_put(%(addresses)s, %(tenants)s, %(scopes)s, %(reasons)s, %(sources)s,
    %(ats)s::timestamptz[], %(untils)s::timestamptz[]) AS outcomes

-- name: release
-- End the suppressions of an address.
SELECT suppression_release(%(address)s, %(tenant)s, %(scope)s, who => %(who)s) AS released

-- name: hash
-- How the audit names an address.
SELECT mailbox_hash(%(address)s) AS hash

-- name: list
-- Suppressions that hold, the latest first; null is every one.
SELECT s.address, s.tenant, s.scope, s.reason, s.source, s.at, s.until
FROM suppressions AS s
WHERE s.released_at IS NULL AND (s.until IS NULL OR s.until > now())
    AND (%(address)s::text IS NULL OR s.address IN (mailbox_key(%(address)s), mailbox_hash(%(address)s)))
    AND (%(tenant)s::text IS NULL OR s.tenant = %(tenant)s) AND (%(scope)s::text IS NULL OR s.scope = %(scope)s)
    AND (%(reason)s::text IS NULL OR s.reason = %(reason)s)
ORDER BY s.at DESC, s.address LIMIT %(limit)s

-- name: page
-- Suppressions of a tenant that hold, behind one of them, by address and scope; null is every one.
SELECT s.address, s.scope, s.reason, s.source, s.at, s.until
FROM suppressions AS s
WHERE s.tenant = %(tenant)s AND s.released_at IS NULL AND (s.until IS NULL OR s.until > now())
    AND (%(address)s::text IS NULL OR s.address = mailbox_key(%(address)s))
    AND (%(scope)s::text IS NULL OR s.scope = %(scope)s) AND (%(reason)s::text IS NULL OR s.reason = %(reason)s)
    AND (s.address, s.scope) > (%(after_address)s, %(after_scope)s)
ORDER BY s.address, s.scope LIMIT %(limit)s

-- name: export
-- All suppressions that hold, without those that had to be forgotten.
SELECT s.address, s.tenant, s.scope, s.reason, s.source, s.at, s.until
FROM suppressions AS s
WHERE s.released_at IS NULL AND (s.until IS NULL OR s.until > now()) AND s.address NOT LIKE 'hmac:%%'
    AND (%(tenant)s::text IS NULL OR s.tenant = %(tenant)s) AND (%(scope)s::text IS NULL OR s.scope = %(scope)s)
    AND (%(reason)s::text IS NULL OR s.reason = %(reason)s)
ORDER BY s.address, s.tenant, s.scope

-- name: scopes
-- The scopes that were declared, of one tenant or all; null is every tenant.
SELECT s.tenant, s.name FROM suppression_scopes AS s
WHERE %(tenant)s::text IS NULL OR s.tenant IN (%(tenant)s, '*') ORDER BY s.tenant, s.name

-- name: declare
-- Declare a scope.
SELECT suppression_scope(%(name)s, %(tenant)s) AS new

-- name: complain
-- Suppress the recipient whom a signed link names; false if there is none.
SELECT link_complaint(%(list)s, %(number)s, %(date)s)

-- name: unsubscribe
-- Suppress the address of a recipient whose token was verified; false if there is no such recipient.
SELECT pgmta.unsubscribe(%(list)s, %(number)s, %(date)s)

-- name: unsubscribable
-- Whether the role may unsubscribe recipients.
SELECT coalesce(has_function_privilege(to_regprocedure('pgmta.unsubscribe(bigint, bigint, date)'), 'EXECUTE'), false)

-- name: any
-- Whether there is any suppression, of whatever kind.
SELECT suppressions_there()

-- name: news
-- The parts of the sieve that are new to this process.
SELECT known::text, parts, bits FROM sieve_news(%(seen)s::text::pg_snapshot)

-- name: because
-- Why each of these addresses gets no mail of its tenant and scope; null: it gets mail.
SELECT suppressed_because(%(tenants)b::text[], %(scopes)b::text[], %(addresses)b::text[])

-- name: of_message
-- Why recipients of a message get no mail, by the rows of the queue.
SELECT w.id, w.words
FROM (
    SELECT array_agg(q.id ORDER BY q.id) AS ids, suppressed_because(array_agg(q.tenant ORDER BY q.id),
        array_agg(mail_scope(q.metadata) ORDER BY q.id),
        array_agg(row_address(q.recipient, q.domain) ORDER BY q.id)) AS words
    FROM queue AS q WHERE q.message_id = %(message)s AND NOT q.metadata ? '_exempt'
) AS found, LATERAL unnest(found.ids, found.words) AS w (id, words)
WHERE w.words IS NOT NULL

-- name: jumps
-- Reasons with far more suppressions within the last hour than in an hour of the week before, each with the tenant that has
-- most of them. Imports are no jump.
WITH added AS MATERIALIZED (
    SELECT s.reason, s.tenant, count(*) FILTER (WHERE s.at > now() - interval '1 hour') AS fresh, count(*) AS number
    FROM suppressions AS s
    WHERE s.at > now() - interval '7 days' AND s.source NOT LIKE 'import %%' AND s.reason <> 'forgotten'
    GROUP BY s.reason, s.tenant
)
SELECT reason, sum(fresh)::bigint AS added, (sum(number - fresh) / 167)::float8 AS usual,
    (array_agg(tenant ORDER BY fresh DESC, tenant))[1] AS tenant
FROM added GROUP BY reason
HAVING sum(fresh) >= %(least)s AND sum(fresh) >= %(ratio)s * sum(number - fresh) / 167
ORDER BY added DESC

-- name: settled
-- Part of settle: recipients who do not exist are suppressed, in the commit of their outcomes.
coalesce(suppress_bounced(%(bounced_rows)b::bigint[], %(bounced_recipients)b::text[], %(bounced_tenants)b::text[],
    %(bounced_messages)b::bigint[], ARRAY(SELECT id FROM changed)), 0)

-- name: soft_settled
-- Part of settle: full mailboxes are counted, in the commit of their outcomes.
suppress_soft_bounced(%(soft_rows)b::bigint[], %(soft_recipients)b::text[], %(soft_tenants)b::text[], %(soft_messages)b::bigint[],
    ARRAY(SELECT id FROM changed), %(soft_number)s::integer, %(soft_days)s::integer, make_interval(secs => %(soft_period)s),
    make_interval(secs => %(soft_lasts)s))

-- name: put
-- Suppress addresses, and say of each what that changed.
SELECT suppressions_put(%(addresses)s, %(tenants)s, %(scopes)s, %(reasons)s, %(sources)s,
    %(ats)s::timestamptz[], %(untils)s::timestamptz[]) AS outcomes

-- name: release
-- End the suppressions of an address.
SELECT suppression_release(%(address)s, %(tenant)s, %(scope)s) AS released

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

-- name: export
-- All suppressions that hold, without those that had to be forgotten.
SELECT s.address, s.tenant, s.scope, s.reason, s.source, s.at, s.until
FROM suppressions AS s
WHERE s.released_at IS NULL AND (s.until IS NULL OR s.until > now()) AND s.address NOT LIKE 'hmac:%%'
    AND (%(tenant)s::text IS NULL OR s.tenant = %(tenant)s) AND (%(scope)s::text IS NULL OR s.scope = %(scope)s)
    AND (%(reason)s::text IS NULL OR s.reason = %(reason)s)
ORDER BY s.address, s.tenant, s.scope

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

-- name: because
-- Why each of these addresses gets no mail of its tenant and scope; null: it gets mail.
SELECT suppressed_because(%(tenants)b::text[], %(scopes)b::text[], %(addresses)b::text[])

-- name: put
-- The version after the one that was the last. Of two at the same time one waits for the other, and then gets nothing.
INSERT INTO templates (tenant, name, version, sender, from_field, reply_to, subject, body, html, headers, words,
    counts, unsubscribe)
VALUES (%(tenant)s, %(name)s, %(last)s + 1, %(sender)s, %(from_field)s, %(reply_to)s, %(subject)s, %(body)s,
    %(html)s, %(headers)s::jsonb, %(words)s::jsonb, %(counts)s::jsonb, %(unsubscribe)s)
ON CONFLICT (tenant, name, version) DO NOTHING
RETURNING version

-- name: scope
-- Raise the error of a scope that a tenant doesn't know; * is any tenant.
SELECT submit_scope(%(scope)s, %(tenant)s)

-- name: list
-- The last version of each name behind one; null for every tenant, the first name, and no limit.
SELECT DISTINCT ON (tenant, name) id, tenant, name, version, sender, from_field, reply_to, subject,
    body IS NOT NULL AS has_text, html IS NOT NULL AS has_html, words, unsubscribe, created_at, created_by
FROM templates
WHERE (%(tenant)s::text IS NULL OR tenant = %(tenant)s) AND (%(after)s::text IS NULL OR name > %(after)s)
ORDER BY tenant, name, version DESC LIMIT %(most)s

-- name: find
-- A version of a name; null for the last one.
SELECT id, tenant, name, version, sender, from_field, reply_to, subject, body, html, headers, words, unsubscribe, created_at,
    created_by
FROM templates
WHERE tenant = %(tenant)s AND name = %(name)s AND (%(version)s::integer IS NULL OR version = %(version)s)
ORDER BY version DESC LIMIT 1

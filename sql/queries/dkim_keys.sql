-- name: version
-- A number that changes with every change of the table.
SELECT version FROM dkim_keys_version

-- name: keys
-- All keys that may sign, with their private parts.
SELECT domain, selector, type, extract(epoch FROM active_from)::double precision, private_key FROM dkim_keys
WHERE NOT unpublished
ORDER BY domain, selector

-- name: list
-- All keys, without their private parts.
SELECT domain, selector, type, public_key, active_from, created_at, unpublished FROM dkim_keys ORDER BY domain, selector

-- name: private
-- The private part of a key.
SELECT private_key FROM dkim_keys WHERE domain = %(domain)s AND selector = %(selector)s

-- name: add
-- A new key.
INSERT INTO dkim_keys (domain, selector, type, private_key, public_key, active_from, unpublished)
VALUES (%(domain)s, %(selector)s, %(type)s, %(private_key)s, %(public_key)s,
    coalesce(to_timestamp(%(active_from)s::double precision), now()), %(unpublished)s)
ON CONFLICT (domain, selector) DO NOTHING RETURNING domain

-- name: publish
-- Note that the record of a key is in DNS, so that it signs, if it is still the same key.
UPDATE dkim_keys SET unpublished = false
WHERE domain = %(domain)s AND selector = %(selector)s AND public_key = %(public_key)s AND unpublished
RETURNING domain

-- name: remove
-- Remove a key.
DELETE FROM dkim_keys WHERE domain = %(domain)s AND selector = %(selector)s RETURNING domain

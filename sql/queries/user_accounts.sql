-- name: add
-- A new user.
INSERT INTO users (name, password, scram, senders, networks, tenant, metadata, priority_first, priority_last)
VALUES (%(name)s, %(password)s, %(scram)s, %(senders)s, %(networks)s::cidr[], %(tenant)s, %(metadata)s::jsonb,
    %(first)s, %(last)s)
ON CONFLICT (name) DO NOTHING RETURNING name

-- name: password
-- Change a password.
UPDATE users SET password = %(password)s, scram = %(scram)s WHERE name = %(name)s RETURNING name

-- name: disable
-- Disable or enable a user.
UPDATE users SET disabled = %(disabled)s WHERE name = %(name)s RETURNING name

-- name: set
-- Change rights; null leaves one as it is.
UPDATE users SET
    senders = coalesce(%(senders)s::text[], senders),
    networks = CASE WHEN %(any_network)s::boolean THEN NULL ELSE coalesce(%(networks)s::cidr[], networks) END,
    tenant = coalesce(%(tenant)s::text, tenant),
    metadata = coalesce(%(metadata)s::jsonb, metadata),
    priority_first = coalesce(%(first)s::smallint, priority_first),
    priority_last = coalesce(%(last)s::smallint, priority_last)
WHERE name = %(name)s RETURNING name

-- name: delete
-- Remove a user.
DELETE FROM users WHERE name = %(name)s RETURNING name

-- name: list
-- All users, or one.
SELECT name, disabled, senders, networks::text[], tenant, metadata, priority_first, priority_last,
    created_at, changed_at,
    (SELECT max(last_login) FROM user_networks AS n WHERE n.name = u.name) AS last_login
FROM users AS u WHERE %(name)s::text IS NULL OR name = %(name)s ORDER BY name

-- name: networks
-- Networks from which a user logged in.
SELECT network::text, first_login, last_login FROM user_networks WHERE name = %(name)s
ORDER BY last_login DESC, network

-- name: secret
-- The secret from which units of names are derived.
SELECT secret FROM users_version

-- name: all_failures
-- Failures that are not forgotten yet, the most first.
SELECT unit, failures, last_failure, forgotten_at,
    CASE WHEN locked_until > now() THEN locked_until END AS locked_until
FROM login_failures WHERE forgotten_at > now() ORDER BY failures DESC, unit LIMIT %(limit)s

-- name: failures
-- Failures of a user that are not forgotten yet.
SELECT unit, failures, last_failure, forgotten_at,
    CASE WHEN locked_until > now() THEN locked_until END AS locked_until
FROM login_failures
WHERE (unit = 'user ' || %(key)s OR unit LIKE 'own ' || %(key)s || ' %%') AND forgotten_at > now() ORDER BY unit

-- name: unlock
-- Forget the failures of a user.
DELETE FROM login_failures WHERE unit = 'user ' || %(key)s OR unit LIKE 'own ' || %(key)s || ' %%' RETURNING unit

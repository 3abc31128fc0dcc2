-- name: all
-- The hosts whose TLS failed a while ago under this lowest version, the latest first, and the seconds for which that counts.
SELECT host, extract(epoch FROM until - now())::float8
FROM broken_tls WHERE until > now() AND minimum = %(minimum)s ORDER BY until DESC LIMIT 10000

-- name: remember
-- A host whose TLS failed now.
INSERT INTO broken_tls AS known (host, until, reason, minimum)
VALUES (%(host)s, now() + make_interval(secs => %(time)s), %(reason)s, %(minimum)s)
ON CONFLICT (host) DO UPDATE
SET until = excluded.until, reason = excluded.reason, minimum = excluded.minimum

-- name: expire
-- Remove hosts whose time is over.
DELETE FROM broken_tls WHERE until < now() RETURNING host

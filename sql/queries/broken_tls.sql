-- name: all
-- The hosts whose TLS failed a while ago, the latest first, and the seconds for which that counts.
SELECT host, extract(epoch FROM until - now())::float8
FROM broken_tls WHERE until > now() ORDER BY until DESC LIMIT 10000

-- name: remember
-- A host whose TLS failed now.
INSERT INTO broken_tls AS known (host, until, reason)
VALUES (%(host)s, now() + make_interval(secs => %(time)s), %(reason)s)
ON CONFLICT (host) DO UPDATE SET until = excluded.until, reason = excluded.reason

-- name: expire
-- Remove hosts whose time is over.
DELETE FROM broken_tls WHERE until < now() RETURNING host

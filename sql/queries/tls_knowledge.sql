-- name: policy
-- The policy of a domain for an operator; that mail goes there is not noted.
SELECT domain, id, mode, mx, max_age, extract(epoch FROM expires_at - now())::float8 AS left
FROM sts_policies WHERE domain = %(domain)s AND expires_at > now()

-- name: broken
-- The hosts whose TLS failed twice under a lowest version, with the reasons.
SELECT host, until, reason FROM broken_tls WHERE until > now() AND minimum = %(minimum)s

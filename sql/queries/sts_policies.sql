-- name: find
-- The policy of a domain that counts now, and the seconds for which it still does.
SELECT domain, id, mode, mx, max_age, extract(epoch FROM expires_at - now())::float8,
    used_on < current_date
FROM sts_policies WHERE domain = %(domain)s AND expires_at > now()

-- name: used
-- Note that mail goes to the domain. A locked row is left out: mail does not wait for another worker.
UPDATE sts_policies SET used_on = current_date
WHERE domain = ANY (ARRAY(
    SELECT domain FROM sts_policies WHERE domain = %(domain)s AND used_on < current_date
    FOR UPDATE SKIP LOCKED))

-- name: keep
-- A policy that was fetched. It is fetched again after a day, or after half of its time if that is shorter.
INSERT INTO sts_policies AS kept (domain, id, mode, mx, max_age, expires_at, next_fetch)
VALUES (%(domain)s, %(id)s, %(mode)s, %(mx)s, %(max_age)s,
    now() + make_interval(secs => %(max_age)s),
    now() + make_interval(secs => least(86400, %(max_age)s / 2)))
ON CONFLICT (domain) DO UPDATE
SET id = excluded.id, mode = excluded.mode, mx = excluded.mx, max_age = excluded.max_age,
    fetched_at = now(), expires_at = excluded.expires_at, next_fetch = excluded.next_fetch

-- name: due
-- Some policies that have to be fetched again, for this process: the others see them after ten minutes.
UPDATE sts_policies SET next_fetch = now() + interval '10 minutes'
WHERE domain = ANY (ARRAY(
    SELECT domain FROM sts_policies
    WHERE next_fetch <= now() AND expires_at > now() AND used_on > current_date - 30
    ORDER BY next_fetch LIMIT %(batch)s
    FOR UPDATE SKIP LOCKED))
RETURNING domain, id, mode, mx, max_age, extract(epoch FROM expires_at - now())::float8

-- name: expire
-- Remove policies whose time is over.
DELETE FROM sts_policies WHERE expires_at < now() - interval '1 day' RETURNING domain

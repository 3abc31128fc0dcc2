-- name: find
-- One user, and the failures of some units.
SELECT v.changes, v.version, v.password, v.scram, v.disabled, v.senders, v.networks::text[], v.tenant,
    v.metadata, v.priority_first, v.priority_last, v.own_networks::text[], l.units, l.seconds
FROM login_verifier(%(name)s::text) AS v CROSS JOIN (
    SELECT array_agg(unit) AS units, array_agg(seconds) AS seconds FROM login_levels(%(units)s::text[])
) AS l

-- name: changes
-- The version of all users.
SELECT changes, secret FROM login_changes()

-- name: unbound
-- Users who may send from any address.
SELECT * FROM login_unbound(%(most)s)

-- name: failed
-- Add failures, and read those of all processes.
SELECT unit, seconds FROM login_failed(%(units)s::text[], %(counts)s::bigint[],
    %(added)s::double precision[], %(most)s::double precision)

-- name: forget
-- Remove failures of long ago.
SELECT login_forget()

-- name: seen
-- Networks from which users have logged in.
SELECT login_seen(%(names)s::text[], %(networks)s::cidr[])::text

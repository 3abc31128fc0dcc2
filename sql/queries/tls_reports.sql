-- name: add
-- Results of many sessions at once. The order is the same in every worker, so that none waits for
-- another in a circle.
INSERT INTO tls_reports AS known (day, domain, policy_type, policy, result, host, address, reason, sessions)
SELECT (now() AT TIME ZONE 'UTC')::date, domain, policy_type, policy, result, host, address, reason, sessions
FROM unnest(%(domains)s::text[], %(policy_types)s::text[], %(policies)s::text[], %(results)s::text[],
    %(hosts)s::text[], %(addresses)s::text[], %(reasons)s::text[], %(sessions)s::bigint[])
    AS new (domain, policy_type, policy, result, host, address, reason, sessions)
ORDER BY domain, policy_type, policy, result, host, address, reason
ON CONFLICT (day, domain, policy_type, policy, result, host, address, reason)
DO UPDATE SET sessions = known.sessions + excluded.sessions

-- name: expire
-- Remove the results of days that ended before the retention.
DELETE FROM tls_reports
WHERE day < (now() AT TIME ZONE 'UTC' - make_interval(secs => %(age)s))::date RETURNING day

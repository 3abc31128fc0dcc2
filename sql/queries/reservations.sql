-- name: reserve
-- The next times of a budget: seconds until the first, their number and distance. No row: there is no such budget.
-- The time is read after the reservation, so that no transaction is early.
SELECT extract(epoch FROM r.first - clock_timestamp())::float8, r.number, extract(epoch FROM r.step)::float8
FROM budgets AS b, LATERAL budget_reserve(b.key, %(wanted)s::integer, make_interval(secs => %(ahead)s), pace => %(pace)s) AS r
WHERE b.key = %(key)s

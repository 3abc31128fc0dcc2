-- name: reserve
-- The next times of a budget: the first, their number, distance and lateness, and the time now. No row: there is no such
-- budget.
SELECT extract(epoch FROM r.first)::float8, r.number, extract(epoch FROM r.step)::float8, r.late,
    extract(epoch FROM clock_timestamp())::float8
FROM {of} AS b (key), LATERAL budget_reserve(b.key, %(wanted)s::integer, make_interval(secs => %(ahead)s),
    soonest => make_interval(secs => %(soonest)s), late => %(late)s, used => %(used)s::integer, lost => %(lost)s::integer,
    why => %(why)s::text) AS r

-- name: any
-- Budgets that operators and campaigns make.
(SELECT key FROM budgets WHERE key = %(key)s)

-- name: route
-- Those of routes are as shaping.yaml says.
budget_of_route(%(key)s, %(rate)s, %(burst)s)

-- name: tidy
-- Delete budgets of routes that no mail uses.
SELECT budget_tidy()

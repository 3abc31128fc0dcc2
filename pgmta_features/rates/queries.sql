-- name: reserve
-- The next times of a budget: the first, their number, distance and lateness, the one behind them, and the time now. No row:
-- there is no such budget.
SELECT extract(epoch FROM r.first)::float8, r.number, extract(epoch FROM r.step)::float8, r.late,
    extract(epoch FROM r.first + r.number * r.step)::float8, extract(epoch FROM clock_timestamp())::float8
FROM {of} AS b (key), LATERAL budget_reserve(b.key, %(wanted)s::integer, make_interval(secs => %(ahead)s),
    soonest => make_interval(secs => %(soonest)s), late => %(late)s, used => %(used)s::integer, lost => %(lost)s::integer,
    why => %(why)s::text) AS r

-- name: any
-- Budgets that operators and campaigns make.
(SELECT key FROM budgets WHERE key = %(key)s ORDER BY generation DESC LIMIT 1)

-- name: route
-- Those of routes are as shaping.yaml says.
budget_of_route(%(key)s, %(rate)s, %(burst)s)

-- name: reserve_common
-- The next times that several budgets have in common.
SELECT extract(epoch FROM r.first)::float8, r.number, extract(epoch FROM r.step)::float8, r.late,
    extract(epoch FROM r.next)::float8, extract(epoch FROM clock_timestamp())::float8
FROM budget_reserve_common(%(keys)s::text[], %(rates)s::float8[], %(bursts)s::float8[], %(wanted)s::integer,
    make_interval(secs => %(soonest)s), make_interval(secs => %(near)s), make_interval(secs => %(ahead)s), %(late)s::float8,
    %(used)s::integer, %(lost)s::integer, %(why)s::text) AS r

-- name: tidy
-- Delete budgets of routes that no mail uses.
SELECT budget_tidy()

-- name: list
-- Budgets with these keys or beginnings of keys, all of them without any.
SELECT key, rate, burst, greatest(next_at, clock_timestamp()) AS next_at, next_at <= clock_timestamp() AS free, month_most,
    CASE WHEN month = date_trunc('month', clock_timestamp() AT TIME ZONE 'UTC') THEN month_used ELSE 0 END AS month_used,
    note, changed_at, changed_by,
    -- a worker says so while it loses times
    CASE WHEN lost_at > now() - interval '10 minutes' AND lost_share >= 0.01 THEN lost_share::float8 ELSE 0 END AS lost_share,
    lost_why
FROM budgets
WHERE cardinality(%(keys)s::text[]) = 0 OR key ^@ ANY (%(keys)s::text[])
ORDER BY key

-- name: set
-- Make a budget or change it; the sum and the note stay unless others are given.
SELECT budget_set(%(key)s, %(rate)s, CASE WHEN %(most_given)s THEN %(most)s::bigint
    ELSE (SELECT month_most FROM budgets WHERE key = %(key)s) END, %(note)s) AS changed

-- name: lost_times
-- Budgets many of whose times no mail can use.
SELECT key, lost_share::float8 AS share, lost_why AS why FROM budgets
WHERE lost_share > %(least)s AND lost_at > now() - interval '10 minutes' ORDER BY lost_share DESC, key LIMIT 5

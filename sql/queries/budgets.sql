-- name: list
-- All budgets.
SELECT key, rate, next_at, month_most, CASE WHEN month = date_trunc('month', now() AT TIME ZONE 'UTC') THEN month_used ELSE 0 END
    AS month_used, note, changed_at, changed_by
FROM budgets ORDER BY key

-- name: find
-- Some budgets.
SELECT key, rate, next_at FROM budgets WHERE key = ANY (%(keys)s)

-- name: set
-- Make a budget or change it.
SELECT budget_set(%(key)s, %(rate)s, %(month_most)s, %(note)s) AS changed

-- name: make
-- Make the day partitions of a log from today to `days` ahead; return how many were missing.
SELECT days_make(%(table)s, %(days)s::integer)

-- name: expire
-- Drop old day partitions of a log; return how many.
SELECT days_expire(%(table)s, make_interval(secs => %(age)s))

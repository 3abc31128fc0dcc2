-- name: ensure
-- Make the day partitions from today to `days` ahead; return how many were missing.
SELECT days_make('attempts', %(days)s::integer)

-- name: ensure
-- Make the day partitions from today to `days` ahead; return how many were missing.
SELECT attempts_partitions(%(days)s::integer)

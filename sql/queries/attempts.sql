-- name: ensure
-- Day partitions from today to `days` ahead; returns how many were missing.
SELECT attempts_partitions(%(days)s::integer)

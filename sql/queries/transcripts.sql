-- name: ensure
-- Make the day partitions from today to `days` ahead; return how many were missing.
SELECT transcripts_partitions(%(days)s::integer)

-- name: expire
-- Drop old day partitions.
SELECT transcripts_expire(make_interval(secs => %(age)s))

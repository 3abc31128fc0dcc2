-- name: ensure
-- Make the day partitions from today to `days` ahead; return how many were missing.
SELECT days_make('transcripts', %(days)s::integer)

-- name: expire
-- Drop old day partitions.
SELECT days_expire('transcripts', make_interval(secs => %(age)s))

-- name: look
-- Note the database's time, and shorten the waits after a step back. The time in seconds; the step back and the
-- rows whose waits were shortened, null without one.
SELECT extract(epoch FROM seen)::float8, extract(epoch FROM back)::float8, rows
FROM database_clock_look(make_interval(secs => %(least)s), make_interval(secs => %(lease)s))

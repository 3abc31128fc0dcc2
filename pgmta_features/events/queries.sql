-- name: subscribed
-- Whether somebody subscribes to events.
EXISTS (SELECT FROM event_subscriptions)

-- name: unnumbered
-- Whether events wait for their number.
(SELECT commit FROM event_commits ORDER BY commit LIMIT 1) IS NOT NULL

-- name: number
-- Number statements that wrote events: how many, their events, and the age of the oldest in seconds.
SELECT commits, events, seconds FROM events_number(%(most)s, %(late)s)

-- name: quiet
-- Have the next event send a notification.
SELECT events_quiet()

-- name: keep
-- Note the last number, before old days are dropped.
SELECT events_keep()

-- name: read
-- Events behind a cursor. A last row without an id has the place that was reached.
SELECT cursor, id, kind, at, message_id, row_id, document
FROM events_read(%(after)s, %(most)s, %(kinds)s, %(viewer)s, %(tenant)s)

-- name: of_message
-- The events of a message that have a number, each with its cursor.
SELECT r.cursor, r.id, r.kind, r.at, r.message_id, r.row_id, r.document
FROM mail_events AS e JOIN event_log AS l ON l.commit = e.commit AND l.at = e.at,
    LATERAL events_read(format('%%s.%%s.%%s', (SELECT max(history) FROM event_history), l.number, e.place - 1), 1, upto => l.number) AS r
WHERE e.message_id = %(message)s AND r.id IS NOT NULL
ORDER BY l.number, e.place

-- name: end
-- The cursor behind all events.
SELECT events_end() AS cursor

-- name: since
-- A cursor before the events since a time.
SELECT events_since(%(time)s) AS cursor

-- name: begin
-- A cursor before the first event that is kept.
SELECT events_since('-infinity') AS cursor

-- name: reader
-- Subscribe a key of the API at its first call, and note that it reads.
SELECT events_reader()

-- name: subscribe
-- Subscribe; whether the subscription is new.
SELECT events_subscribe(%(name)s, %(kind)s) AS new

-- name: unsubscribe
-- End a subscription; whether there was one.
SELECT events_unsubscribe(%(name)s) AS ended

-- name: subscriptions
-- Who subscribes, and what applications failed with.
SELECT s.name, s.kind, s.created_at, s.created_by, s.read_at, t.later, f.failures, coalesce(f.failed_at, t.failed_at) AS failed_at,
    coalesce(f.error, t.error) AS error, (SELECT sum(l.last - l.place) FROM event_rows_late AS l WHERE l.name = t.name) AS waiting,
    (SELECT count(*) FROM event_asides AS a WHERE a.name = f.name AND NOT a.again) AS aside, f.cursor
FROM event_subscriptions AS s LEFT JOIN event_tables AS t ON t.name = s.name LEFT JOIN application_functions AS f ON f.name = s.name
ORDER BY s.kind, s.name

-- name: table_statements
-- The statements that make a table for events, and who runs them.
SELECT role, statements FROM event_table_statements(%(table)s)

-- name: into
-- Have events inserted into a table.
SELECT events_into(%(table)s, %(viewer)s, %(tenant)s) AS name

-- name: call
-- Have a function called with events.
SELECT events_call(%(function)s, %(login)s, %(viewer)s, %(tenant)s) AS name

-- name: replay
-- Call a function again with events that were set aside, or with all behind a cursor.
SELECT events_replay(%(name)s, %(ids)s, %(after)s) AS events

-- name: asides
-- Events that a function failed with.
SELECT id, at, error, again FROM event_asides WHERE name = %(name)s ORDER BY at, id

-- name: late_rows
-- Whether events wait for a table.
EXISTS (SELECT FROM event_rows_late)

-- name: later
-- Insert events that wait for a table.
SELECT name, events, reason FROM event_tables_later()

-- name: functions
-- Whether a function is called with events.
EXISTS (SELECT FROM application_functions)

-- name: due_functions
-- The functions for which there are events.
SELECT name, login FROM application_functions_due()

-- name: function_failed
-- Note why a function failed; whether it still subscribes.
SELECT event_function_failed(%(name)s, %(state)s, %(reason)s)

-- name: failing
-- Tables and functions of applications that events wait for since a failure.
SELECT t.name, 'table' AS kind, t.error, sum(l.last - l.place) AS events, extract(epoch FROM now() - min(l.noted_at))::float8 AS seconds
FROM event_tables AS t JOIN event_rows_late AS l ON l.name = t.name
GROUP BY t.name HAVING min(l.noted_at) < now() - make_interval(secs => %(age)s)
UNION ALL
SELECT f.name, 'function', f.error, NULL, extract(epoch FROM now() - f.failed_at)::float8
FROM application_functions AS f WHERE f.error IS NOT NULL AND f.failures > 0
UNION ALL
SELECT a.name, 'function', min(a.error), count(*), extract(epoch FROM now() - min(a.at))::float8
FROM event_asides AS a WHERE NOT a.again GROUP BY a.name

-- name: late
-- Events that wait for their number for so many seconds, and for how long the first does.
SELECT sum(events) AS events, extract(epoch FROM now() - min(at))::float8 AS seconds FROM event_commits
HAVING min(at) < now() - make_interval(secs => %(age)s)

-- name: unread
-- Subscriptions of keys that nobody has read for so many seconds.
SELECT name, extract(epoch FROM now() - read_at)::float8 AS seconds FROM event_subscriptions
WHERE read_at < now() - make_interval(secs => %(age)s) ORDER BY name

-- name: missing_days
-- Logs of events without a partition for tomorrow.
SELECT log FROM unnest(ARRAY['mail_events', 'event_log']) AS log
WHERE to_regclass('pgmta.' || log || to_char((now() AT TIME ZONE 'UTC')::date + 1, '_YYYYMMDD')) IS NULL

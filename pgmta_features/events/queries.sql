-- name: subscribed
-- Whether somebody subscribes to events.
EXISTS (SELECT FROM event_subscriptions)

-- name: unnumbered
-- Whether events wait for their number.
(SELECT commit FROM event_commits ORDER BY commit LIMIT 1) IS NOT NULL

-- name: number
-- Number statements that wrote events: how many, their events, and the age of the oldest in seconds.
SELECT commits, events, seconds FROM events_number(%(most)s, %(late)s)

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
FROM mail_events AS e, LATERAL events_read(event_cursor(e.commit, e.at, e.place), 1) AS r
WHERE e.message_id = %(message)s AND r.id = e.commit || '-' || e.place
ORDER BY split_part(r.cursor, '.', 2)::bigint, e.place

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
SELECT events_subscribe(%(name)s, %(kind)s, %(who)s) AS new

-- name: unsubscribe
-- End a subscription; whether there was one.
SELECT events_unsubscribe(%(name)s) AS ended

-- name: changing
-- The oldest open transaction that has changed mail: a new trigger waits for its locks.
SELECT a.pid, a.usename AS login, coalesce(nullif(a.application_name, ''), 'no name') AS application, coalesce(a.state, '') AS state,
    extract(epoch FROM clock_timestamp() - a.xact_start)::float8 AS seconds
FROM pg_locks AS l JOIN pg_stat_activity AS a USING (pid)
WHERE l.granted AND l.mode = 'RowExclusiveLock' AND a.datname = current_database() AND a.pid <> pg_backend_pid()
    AND l.relation IN ('messages'::regclass, 'queue_hold'::regclass, 'attempts'::regclass)
ORDER BY a.xact_start LIMIT 1

-- name: subscriptions
-- Who subscribes, and what applications failed with.
SELECT s.name, s.kind, s.created_at, s.created_by, s.read_at, t.later, f.failures, coalesce(f.failed_at, r.noted_at, t.failed_at) AS failed_at,
    coalesce(f.error, r.reason, t.error) AS error, r.events AS waiting, r.first, f.cursor
FROM event_subscriptions AS s LEFT JOIN event_tables AS t ON t.name = s.name LEFT JOIN application_functions AS f ON f.name = s.name
LEFT JOIN LATERAL (
    SELECT sum(w.last - w.place) AS events, max(w.noted_at) AS noted_at, (array_agg(w.reason ORDER BY w.commit, w.place))[1] AS reason,
        (array_agg(w.commit || '-' || w.place + 1 ORDER BY w.commit, w.place))[1] AS first
    FROM event_retries AS w WHERE w.name = s.name
) AS r ON true
ORDER BY s.kind, s.name

-- name: table_statements
-- The statements that make a table for events, and who runs them.
SELECT role, statements FROM event_table_statements(%(table)s)

-- name: into
-- Have events inserted into a table.
SELECT events_into(%(table)s, %(viewer)s, %(tenant)s, %(who)s) AS name

-- name: call
-- Have a function called with events.
SELECT events_call(%(function)s, %(login)s, %(viewer)s, %(tenant)s, %(who)s) AS name

-- name: retries
-- Whether events wait for a table.
EXISTS (SELECT FROM event_tables AS t
    WHERE (SELECT r.next_try FROM event_retries AS r WHERE r.name = t.name ORDER BY r.next_try LIMIT 1) <= now())

-- name: late_tables
-- The tables for which events wait.
SELECT t.name FROM event_tables AS t
WHERE (SELECT r.next_try FROM event_retries AS r WHERE r.name = t.name ORDER BY r.next_try LIMIT 1) <= now()
ORDER BY t.name

-- name: later
-- Insert events that wait for a table.
SELECT events, reason, fast FROM event_table_later(%(name)s)

-- name: functions
-- Whether a function is called with events.
EXISTS (SELECT FROM application_functions)

-- name: due_functions
-- The functions for which there are events.
SELECT name, login FROM application_functions_due()

-- name: function_failed
-- Note why a function failed; how often in a row, null: it subscribes no more.
SELECT event_function_failed(%(name)s, %(state)s, %(reason)s, %(alone)s, %(began)s)

-- name: failing
-- Tables and functions of applications that events wait for since a failure.
SELECT s.name, s.kind, r.events, r.first, coalesce(r.reason, f.error) AS error,
    extract(epoch FROM now() - coalesce(r.noted_at, f.failed_at))::float8 AS seconds
FROM event_subscriptions AS s LEFT JOIN application_functions AS f ON f.name = s.name
LEFT JOIN LATERAL (
    SELECT sum(w.last - w.place) AS events, min(w.noted_at) AS noted_at, (array_agg(w.reason ORDER BY w.noted_at))[1] AS reason,
        (array_agg(w.commit || '-' || w.place + 1 ORDER BY w.noted_at))[1] AS first
    FROM event_retries AS w WHERE w.name = s.name
) AS r ON true
WHERE r.noted_at < now() - make_interval(secs => %(age)s) OR f.failures > 0
ORDER BY s.name

-- name: standing
-- Functions of applications that have not taken an event in so many seconds, though none has failed.
SELECT f.name, extract(epoch FROM now() - first.numbered_at)::float8 AS seconds
FROM application_functions AS f, LATERAL (
    SELECT l.numbered_at FROM event_log AS l
    WHERE (l.number, l.events) > (split_part(f.cursor, '.', 2)::bigint, split_part(f.cursor, '.', 3)::bigint)
    ORDER BY l.number LIMIT 1
) AS first
WHERE first.numbered_at < now() - make_interval(secs => %(age)s) AND f.failures = 0
ORDER BY f.name

-- name: refusing
-- Tables of applications that did not take events in so many seconds.
SELECT name, error, extract(epoch FROM now() - failed_at)::float8 AS seconds FROM event_tables
WHERE failed_at > now() - make_interval(secs => %(age)s) ORDER BY name

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

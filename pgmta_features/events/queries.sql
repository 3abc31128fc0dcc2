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
-- Who subscribes.
SELECT name, kind, created_at, created_by, read_at FROM event_subscriptions ORDER BY kind, name

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

-- Events: what became of mail, in the order in which it was committed (docs/decisions/events.md).

INSERT INTO mutexes VALUES ('days of mail_events'), ('days of event_log'), ('subscriptions of events'), ('numbers of events');

CREATE SEQUENCE event_commit_ids;
COMMENT ON SEQUENCE event_commit_ids IS 'mail_events.commit.';

-- A reference: its document is made when it is read, because JSON would cost more than all the rest of an event.
CREATE TABLE mail_events (
    at timestamptz NOT NULL,
    commit bigint NOT NULL,
    place integer NOT NULL,
    kind text NOT NULL,  -- without a CHECK, which PostgreSQL would read anew for each statement
    message_id bigint,
    row_id bigint,
    lease_token bigint,
    ended_at timestamptz,
    detail jsonb,
    PRIMARY KEY (commit, place, at)
) PARTITION BY RANGE (at);
COMMENT ON TABLE mail_events IS
    'What became of mail while somebody subscribes to events, each in the transaction in which it happened; partitioned by day '
    '(UTC). events_read() has their documents.';
COMMENT ON COLUMN mail_events.at IS
    'When its transaction began: it chooses the partition, and all of a commit have the same time.';
COMMENT ON COLUMN mail_events.commit IS 'The statement that wrote it: event_commits.commit, or event_log.commit.';
COMMENT ON COLUMN mail_events.place IS 'The place in that statement, from 1. The id of an event is COMMIT-PLACE.';
COMMENT ON COLUMN mail_events.kind IS
    'accepted (one for each message), or of a recipient: deferred, delivered, bounced, unknown (the next hop may have it), '
    'expired (in the log: failed, of the class expired), cancelled, held, released, complained, unsubscribed, suppressed.';
COMMENT ON COLUMN mail_events.message_id IS 'messages.id; null: no message is known.';
COMMENT ON COLUMN mail_events.row_id IS 'queue.id; null: the event is not of one row.';
COMMENT ON COLUMN mail_events.lease_token IS 'As in the entry of the log that the event is about.';
COMMENT ON COLUMN mail_events.ended_at IS 'As in the entry of the log that the event is about; null: it is about none.';
COMMENT ON COLUMN mail_events.detail IS 'What no other table has, such as the reason of a hold; null: nothing.';

CREATE TABLE mail_events_default PARTITION OF mail_events DEFAULT;
ALTER TABLE mail_events_default REPLICA IDENTITY FULL;
COMMENT ON TABLE mail_events_default IS 'Catches rows of days without a partition; normally empty.';
CREATE INDEX mail_events_message_id ON mail_events USING brin (message_id) WITH (pages_per_range = 32, autosummarize = on);
COMMENT ON INDEX mail_events_message_id IS
    'The events of a message: they are near each other, and a B-tree would cost a fifth more.';

-- few rows: the sequencer moves them to event_log several times a second
CREATE TABLE event_commits (
    commit bigint PRIMARY KEY,
    at timestamptz NOT NULL,
    events integer NOT NULL
) WITH (
    autovacuum_vacuum_scale_factor = 0.1,
    autovacuum_vacuum_threshold = 2000,
    autovacuum_vacuum_insert_threshold = -1,
    autovacuum_vacuum_cost_delay = 0
);
COMMENT ON TABLE event_commits IS 'Statements that wrote events, and that have no number yet.';
COMMENT ON COLUMN event_commits.commit IS 'mail_events.commit.';
COMMENT ON COLUMN event_commits.at IS 'mail_events.at of its events.';
COMMENT ON COLUMN event_commits.events IS 'How many events it wrote: their places are 1 to this number.';

CREATE TABLE event_log (
    number bigint NOT NULL,
    commit bigint NOT NULL,
    at timestamptz NOT NULL,
    events integer NOT NULL,
    numbered_at timestamptz NOT NULL,
    PRIMARY KEY (number, at)
) PARTITION BY RANGE (at);
COMMENT ON TABLE event_log IS
    'The order of events: each statement that wrote some has the next number, without a gap. What is behind a number never '
    'changes, so a reader who has seen one has seen all before it. Partitioned by day (UTC).';
COMMENT ON COLUMN event_log.number IS 'The place in the order.';
COMMENT ON COLUMN event_log.commit IS 'mail_events.commit.';
COMMENT ON COLUMN event_log.at IS 'mail_events.at of its events.';
COMMENT ON COLUMN event_log.events IS 'How many events it wrote.';
COMMENT ON COLUMN event_log.numbered_at IS 'When it got its number, which grows with the numbers.';

CREATE TABLE event_log_default PARTITION OF event_log DEFAULT;
ALTER TABLE event_log_default REPLICA IDENTITY FULL;
COMMENT ON TABLE event_log_default IS 'Catches rows of days without a partition; normally empty.';

CREATE TABLE event_history (
    history bigint PRIMARY KEY,
    began_at timestamptz NOT NULL DEFAULT now(),
    reason text NOT NULL,
    timeline bigint NOT NULL,
    last bigint NOT NULL
);
COMMENT ON TABLE event_history IS
    'The last row is the present history of event_log. A promotion, or a restore to an earlier time, begins one, because '
    'readers may have seen numbers that are lost and will be given again. So does the first subscription after a time without '
    'any, in which no events were written.';
COMMENT ON COLUMN event_history.history IS 'Its number, which cursors have: a time, so that no other database has the same.';
COMMENT ON COLUMN event_history.began_at IS 'When it began.';
COMMENT ON COLUMN event_history.reason IS 'Why, in words for people.';
COMMENT ON COLUMN event_history.timeline IS 'The server_timeline() of its numbers.';
COMMENT ON COLUMN event_history.last IS
    'Ended history: the last number that survived, or -1 if events after it were never written. Present history: a number '
    'already given; event_log still has every later one.';
INSERT INTO event_history (history, reason, timeline, last)
VALUES (extract(epoch FROM now())::bigint, 'the database was made', server_timeline(), 0);

SELECT days_make('mail_events', 7);
SELECT days_make('event_log', 7);

CREATE FUNCTION event_put(
    kind text, message_id bigint, row_id bigint, lease_token bigint, ended_at timestamptz, detail jsonb
) RETURNS void LANGUAGE plpgsql SET search_path = pgmta, pg_catalog, pg_temp AS $$
DECLARE
    commit CONSTANT bigint := nextval('event_commit_ids');
BEGIN
    INSERT INTO mail_events (at, commit, place, kind, message_id, row_id, lease_token, ended_at, detail)
    VALUES (now(), commit, 1, kind, message_id, row_id, lease_token, ended_at, detail);
    INSERT INTO event_commits (commit, at, events) VALUES (commit, now(), 1);
END $$;
COMMENT ON FUNCTION event_put IS 'Writes one event.';

INSERT INTO forget_columns (relation, names, way, condition) VALUES ('mail_events', '{detail}', 'words', 'true');
INSERT INTO forget_functions (name, place, function, names) VALUES ('mail_events', 4, NULL, 'forget_days');

INSERT INTO rights (object, role, privileges) VALUES
    ('mail_events', 'pgmta_operator', 'SELECT'),
    ('mail_events', 'pgmta_reader', 'SELECT'),
    ('event_commits', 'pgmta_operator', 'SELECT'),
    ('event_commits', 'pgmta_reader', 'SELECT'),
    ('event_commits', 'pgmta_queued', 'SELECT'),
    ('event_log', 'pgmta_operator', 'SELECT'),
    ('event_log', 'pgmta_reader', 'SELECT'),
    ('event_log', 'pgmta_queued', 'SELECT'),
    ('event_history', 'pgmta_operator', 'SELECT'),
    ('event_history', 'pgmta_reader', 'SELECT'),
    ('event_history', 'pgmta_queued', 'SELECT');

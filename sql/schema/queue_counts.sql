-- How many rows the queue has, by next hop, status and tenant: a duty of queued counts them once per minute.

CREATE TABLE queue_counts (
    next_hop text COLLATE "C",
    status text NOT NULL,
    tenant text COLLATE "C",
    rows bigint NOT NULL,
    due bigint NOT NULL,
    oldest timestamptz NOT NULL,
    oldest_due timestamptz
);
ALTER TABLE queue_counts REPLICA IDENTITY FULL;
COMMENT ON TABLE queue_counts IS
    'The rows of queue, counted once per minute: the 1,000 largest groups, and for each status the rest. Above some 100,000 '
    'rows these are estimates from a sample (queue_counted.share).';
COMMENT ON COLUMN queue_counts.next_hop IS
    'The hosts of the route, else the recipient''s domain; null: all that have no line of their own.';
COMMENT ON COLUMN queue_counts.status IS 'As in queue.';
COMMENT ON COLUMN queue_counts.tenant IS 'As in queue; null beside a next_hop of null.';
COMMENT ON COLUMN queue_counts.rows IS 'How many rows.';
COMMENT ON COLUMN queue_counts.due IS 'How many of them are QUEUED or DEFERRED, and past their next_attempt.';
COMMENT ON COLUMN queue_counts.oldest IS 'The least ts of them.';
COMMENT ON COLUMN queue_counts.oldest_due IS 'The least next_attempt of those that are due; null: none is.';

CREATE TABLE queue_counted (
    one boolean DEFAULT true PRIMARY KEY CONSTRAINT queue_counted_one CHECK (one),
    at timestamptz NOT NULL DEFAULT '-infinity',
    seconds real NOT NULL DEFAULT 0,
    share real NOT NULL DEFAULT 1,
    oldest_due timestamptz,
    dead_rows bigint NOT NULL DEFAULT 0,
    horizon_holder text,
    horizon_transactions bigint
);
COMMENT ON TABLE queue_counted IS 'When queue_counts was counted, in one row; its lock is the turn to count.';
COMMENT ON COLUMN queue_counted.one IS 'Always true: there is one row.';
COMMENT ON COLUMN queue_counted.at IS 'When the count began; -infinity: never.';
COMMENT ON COLUMN queue_counted.seconds IS 'How long it took.';
COMMENT ON COLUMN queue_counted.share IS 'The least part of a partition that was read; 1: the counts are exact.';
COMMENT ON COLUMN queue_counted.oldest_due IS
    'The least next_attempt of all rows that are due, exact also beside estimates; null: none is due.';
COMMENT ON COLUMN queue_counted.dead_rows IS 'Dead rows in all partitions, by the statistics of PostgreSQL.';
COMMENT ON COLUMN queue_counted.horizon_holder IS
    'Who keeps vacuum from dead rows for the longest time, as horizon_holders.holder; null: nobody, or not seen.';
COMMENT ON COLUMN queue_counted.horizon_transactions IS 'horizon_holders.transactions of that one.';
COMMENT ON CONSTRAINT queue_counted_one ON queue_counted IS 'One row.';
INSERT INTO queue_counted DEFAULT VALUES;

INSERT INTO rights (object, role, privileges) VALUES
    ('queue_counts', 'pgmta_queued', 'SELECT, INSERT, DELETE'),
    ('queue_counts', 'pgmta_operator', 'SELECT'),
    ('queue_counts', 'pgmta_reader', 'SELECT'),
    ('queue_counted', 'pgmta_queued', 'SELECT, UPDATE (at, seconds, share, oldest_due, dead_rows, horizon_holder, horizon_transactions)'),
    ('queue_counted', 'pgmta_operator', 'SELECT'),
    ('queue_counted', 'pgmta_reader', 'SELECT');

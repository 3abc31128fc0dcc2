-- Who keeps vacuum from rows that are gone: PostgreSQL's xmin horizon of this database.

CREATE VIEW horizon_holders AS
SELECT 'session' AS holder, NULL::text AS name, a.pid, a.usename::text AS login,
    coalesce(nullif(a.application_name, ''), a.backend_type) AS application,
    a.state, extract(epoch FROM clock_timestamp() - a.xact_start)::float8 AS seconds,
    greatest(age(a.backend_xmin), age(a.backend_xid)) AS transactions
FROM pg_stat_activity AS a
-- sessions of other databases don't count, and neither does a vacuum
WHERE a.datname = current_database() AND a.pid <> pg_backend_pid() AND a.backend_type <> 'parallel worker'
    AND (a.backend_xmin IS NOT NULL OR a.backend_xid IS NOT NULL)
    AND NOT EXISTS (SELECT FROM pg_stat_progress_vacuum AS v WHERE v.pid = a.pid)
UNION ALL
SELECT 'prepared', gid, NULL, owner::text, NULL, NULL, extract(epoch FROM clock_timestamp() - prepared)::float8,
    age(transaction)
FROM pg_prepared_xacts WHERE database = current_database()
UNION ALL
-- a logical slot has only catalog_xmin, which doesn't concern our tables
SELECT 'slot', s.slot_name::text, s.active_pid, r.usename::text, r.application_name,
    CASE WHEN s.active THEN 'active' ELSE 'inactive' END,
    -- PostgreSQL 17 has that column
    extract(epoch FROM clock_timestamp() - (to_jsonb(s) ->> 'inactive_since')::timestamptz)::float8, age(s.xmin)
FROM pg_replication_slots AS s LEFT JOIN pg_stat_replication AS r ON r.pid = s.active_pid
WHERE s.xmin IS NOT NULL
UNION ALL
-- feedback of a standby with a slot is in the slot; logical replication has a database
SELECT 'standby', NULL, r.pid, r.usename::text, r.application_name, r.state, NULL, age(r.backend_xmin)
FROM pg_stat_replication AS r JOIN pg_stat_activity AS a USING (pid)
WHERE r.backend_xmin IS NOT NULL AND a.datid IS NULL;
COMMENT ON VIEW horizon_holders IS
    'Who keeps vacuum from removing dead rows of this database, the present session apart. The one with most '
    'transactions holds the horizon. Sessions and standbys of other logins are there for members of pg_read_all_stats only.';
COMMENT ON COLUMN horizon_holders.holder IS
    'session; prepared: a prepared transaction; slot: a standby with hot_standby_feedback and a slot; standby: one without.';
COMMENT ON COLUMN horizon_holders.name IS 'Of the slot or the prepared transaction.';
COMMENT ON COLUMN horizon_holders.pid IS 'The process of the server; null: none.';
COMMENT ON COLUMN horizon_holders.login IS 'Whose it is.';
COMMENT ON COLUMN horizon_holders.application IS 'Its application_name, or what kind of process it is; of a standby its name.';
COMMENT ON COLUMN horizon_holders.state IS 'As in pg_stat_activity and pg_stat_replication; of a slot active or inactive.';
COMMENT ON COLUMN horizon_holders.seconds IS
    'Age of the transaction; of an inactive slot since when (PostgreSQL 17); else null.';
COMMENT ON COLUMN horizon_holders.transactions IS 'How many transactions of the server began since.';

INSERT INTO rights (object, role, privileges) VALUES
    ('horizon_holders', 'pgmta_queued', 'SELECT'),
    ('horizon_holders', 'pgmta_operator', 'SELECT'),
    ('horizon_holders', 'pgmta_reader', 'SELECT');

-- name: settings
-- Settings of the server that decide whether mail is safe; a session of ours has its own synchronous_commit.
SELECT name, CASE name WHEN 'synchronous_commit' THEN reset_val ELSE setting END AS setting, source FROM pg_settings
WHERE name IN ('autovacuum', 'fsync', 'full_page_writes', 'in_hot_standby', 'max_slot_wal_keep_size', 'synchronous_commit',
    'synchronous_standby_names', 'track_counts', 'transaction_read_only')

-- name: roles_async
-- Roles of pgmta, and logins with their rights, whose own setting gives up the durability of a commit.
SELECT DISTINCT r.rolname AS role
FROM pg_db_role_setting AS s JOIN pg_roles AS r ON r.oid = s.setrole
CROSS JOIN LATERAL unnest(s.setconfig) AS one (text)
WHERE one.text IN ('synchronous_commit=off', 'synchronous_commit=local') AND s.setdatabase IN (0,
    (SELECT oid FROM pg_database WHERE datname = current_database()))
    AND EXISTS (SELECT FROM pg_roles AS ours WHERE ours.rolname IN ('pgmta_smtpd', 'pgmta_queued', 'pgmta_submit')
        AND pg_has_role(r.oid, ours.oid, 'MEMBER'))
ORDER BY 1

-- name: missing_rights
-- Rights to a schema that the roles of pgmta lack; null for a role that the server lacks.
SELECT role, privilege, object FROM missing_rights(%(schema)s)

-- name: unidentified
-- Tables of ours whose rows PostgreSQL neither changes nor removes while a publication has them.
SELECT n.nspname AS schema, c.relname AS name, (
    SELECT string_agg(quote_ident(p.pubname), ', ' ORDER BY p.pubname)
    FROM pg_publication AS p CROSS JOIN LATERAL pg_get_publication_tables(p.pubname) AS published
    WHERE (p.pubupdate OR p.pubdelete)
        AND (published.relid = c.oid OR published.relid IN (SELECT pg_partition_ancestors(c.oid)))
) AS publications
FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
WHERE n.nspname = ANY (%(schemas)s) AND c.relkind IN ('r', 'p') AND c.relpersistence = 'p' AND CASE c.relreplident
    WHEN 'f' THEN false
    WHEN 'i' THEN NOT EXISTS (SELECT FROM pg_index AS i WHERE i.indrelid = c.oid AND i.indisreplident AND i.indisvalid)
    WHEN 'd' THEN NOT EXISTS (SELECT FROM pg_index AS i WHERE i.indrelid = c.oid AND i.indisprimary)
    ELSE true END
ORDER BY 1, 2

-- name: connections
-- Connections in use, and how many the server allows to logins without special rights.
SELECT (SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend') AS used,
    current_setting('max_connections')::integer - current_setting('superuser_reserved_connections')::integer AS most

-- name: holders
-- Who keeps vacuum from dead rows of the queue, the oldest first, and how many there are.
SELECT *, (SELECT coalesce(sum(pg_stat_get_dead_tuples(relid)), 0)::bigint FROM pg_partition_tree('queue') WHERE isleaf)
    AS dead
FROM horizon_holders WHERE seconds >= %(seconds)s OR transactions >= %(transactions)s
ORDER BY transactions DESC LIMIT 5

-- name: standbys
-- Who receives WAL, and how much of it is not on its disk yet. Names and states need the role pg_read_all_stats. One
-- that catches up confirms nothing yet.
SELECT coalesce(r.application_name, '') AS name,
    CASE WHEN r.state <> 'streaming' THEN 'async' ELSE coalesce(r.sync_state, '') END AS confirms,
    pg_wal_lsn_diff(pg_current_wal_lsn(), r.flush_lsn)::bigint AS octets, a.datid IS NOT NULL AS logical
FROM pg_stat_replication AS r JOIN pg_stat_activity AS a USING (pid)
WHERE NOT pg_is_in_recovery() AND r.state IS DISTINCT FROM 'backup' ORDER BY 1

-- name: sees_all
-- Whether this role sees what others do.
SELECT pg_has_role('pg_read_all_stats', 'USAGE') AS sees, quote_ident(current_user) AS login

-- name: delivers
-- Whether this role has the rights of pgmta_queued, so that a queued may use it.
SELECT coalesce(pg_has_role(to_regrole('pgmta_queued'), 'USAGE'), false) AS delivers

-- name: places
-- Where the server has its files, as far as this role may know: the data directory, and tablespaces of pgmta.
SELECT setting AS place FROM pg_settings WHERE name = 'data_directory'
UNION SELECT pg_tablespace_location(reltablespace) FROM pg_class
WHERE relnamespace = to_regnamespace('pgmta') AND reltablespace <> 0 ORDER BY 1

-- name: fill
-- Writes 1 MB into a temporary table, so that the server looks for room.
INSERT INTO pg_temp.room SELECT sha256(n::text::bytea) FROM generate_series(1, 16384) AS n

-- name: held
-- Rows on hold by their reason, the most first: who holds them, how many they are, and the age of the oldest in
-- seconds. Rows whose hold has an end, whose time is still to come, or of a quarantine wait as they should.
SELECT coalesce(hold_reason, '') AS reason, coalesce(held_by, '') AS by, count(*) AS number,
    extract(epoch FROM now() - min(ts))::float8 AS seconds
FROM queue WHERE status = 'HOLD' AND hold_until IS NULL AND (send_at IS NULL OR send_at <= now())
    AND ts < now() - make_interval(secs => %(least)s) AND (metadata->>'_quarantineid') IS NULL
GROUP BY 1, 2 ORDER BY 3 DESC, 1, 2 LIMIT 5

-- name: notifications
-- How full the queue of notifications is.
SELECT pg_notification_queue_usage() AS share

-- name: slots
-- Replication slots without a reader, which keep WAL or old rows; lost: PostgreSQL has removed WAL that they need.
SELECT slot_name AS name, slot_type = 'physical' AS physical, coalesce(wal_status = 'lost', false) AS lost,
    CASE WHEN pg_is_in_recovery() THEN 0 ELSE
        coalesce(pg_wal_lsn_diff(pg_current_wal_lsn(), restart_lsn), 0) END::bigint AS octets
FROM pg_replication_slots WHERE NOT active AND NOT temporary ORDER BY 4 DESC LIMIT 5

-- name: bloat
-- Tables of pgmta with many dead rows, far more than an autovacuum leaves.
SELECT relname AS name, n_dead_tup AS dead, n_live_tup AS live, pg_total_relation_size(relid) AS octets
FROM pg_stat_user_tables
WHERE schemaname = 'pgmta' AND n_dead_tup > %(least)s AND n_dead_tup > 3 * n_live_tup ORDER BY n_dead_tup DESC LIMIT 5

-- name: age
-- Transactions until PostgreSQL takes no more writes, at 2 * 10^9.
SELECT age(datfrozenxid)::bigint AS age FROM pg_database WHERE datname = current_database()

-- name: invalid_indexes
-- Indexes that no statement uses, because their making was broken off.
SELECT c.relname AS name FROM pg_index AS i JOIN pg_class AS c ON c.oid = i.indexrelid
WHERE c.relnamespace = 'pgmta'::regnamespace AND NOT i.indisvalid ORDER BY 1

-- name: disabled_triggers
-- Triggers that are switched off. Without them bodies go too early or never.
SELECT t.tgname AS name, c.relname AS of FROM pg_trigger AS t JOIN pg_class AS c ON c.oid = t.tgrelid
WHERE c.relnamespace = 'pgmta'::regnamespace AND NOT t.tgisinternal AND t.tgenabled = 'D' ORDER BY 2, 1

-- name: unvacuumed
-- Tables of pgmta for which autovacuum is switched off.
SELECT relname AS name FROM pg_class
WHERE relnamespace = 'pgmta'::regnamespace AND reloptions && '{autovacuum_enabled=false,autovacuum_enabled=off}' ORDER BY 1

-- name: clock
-- The clock of the server, in seconds since 1970.
SELECT extract(epoch FROM clock_timestamp())::float8 AS now

-- name: missing_days
-- Logs without a partition for tomorrow.
SELECT log FROM unnest(ARRAY['attempts', 'transcripts', 'reports']) AS log
WHERE to_regclass('pgmta.' || log || to_char((now() AT TIME ZONE 'UTC')::date + 1, '_YYYYMMDD')) IS NULL

-- name: event_triggers
-- Event triggers of others, which run with each partition of a day.
SELECT evtname AS name, evtfoid::regprocedure::text AS function FROM pg_event_trigger
WHERE evtenabled IN ('O', 'A') AND evtevent <> 'login' ORDER BY 1

-- name: collation
-- The version of the database's collation as it was made, and as the system has it now.
SELECT datname AS name, datcollversion AS made, pg_database_collation_actual_version(oid) AS now
FROM pg_database WHERE datname = current_database()
    AND datcollversion IS DISTINCT FROM pg_database_collation_actual_version(oid)

-- name: daemons
-- The processes of the last day. One is missed if it is silent and nothing follows it: its host does not run the
-- program again, and no living process of the program started later. A container has another host name each time.
SELECT program, host, pid, version, schema, seen_at > now() - interval '1 minute' AS alive,
    NOT EXISTS (SELECT FROM daemons AS other
        WHERE other.program = daemons.program AND other.seen_at > now() - interval '1 minute'
            AND (other.host = daemons.host OR other.started_at > daemons.seen_at)) AS missed
FROM daemons ORDER BY program, host, pid

-- name: oldest_due
-- Seconds for which the row that is due the longest has been due, by priority: one step in the index queue_due.
SELECT max(extract(epoch FROM now() - pick.next_attempt))::float8 AS seconds
FROM generate_series(0, 9) AS level (priority) CROSS JOIN LATERAL (
    SELECT next_attempt FROM queue
    WHERE status IN ('QUEUED', 'DEFERRED', 'SENDING') AND queue.priority = level.priority
        AND next_attempt AT TIME ZONE 'UTC' <= now() AT TIME ZONE 'UTC'
    ORDER BY next_attempt AT TIME ZONE 'UTC' LIMIT 1
) AS pick

-- name: outcomes
-- Attempts of the last half hour, from the log.
SELECT count(*) AS attempts, count(*) FILTER (WHERE event = 'delivered') AS delivered,
    count(*) FILTER (WHERE event = 'unknown') AS unknown FROM attempts
WHERE ended_at > now() - interval '30 minutes' AND event IN ('delivered', 'deferred', 'failed', 'unknown')

-- name: orphans
-- Bodies without a row, older than the retention by an hour; at most 1000 are counted.
SELECT count(*) AS number FROM (
    SELECT FROM messages AS m WHERE received_at < now() - make_interval(secs => %(age)s + 3600)
        AND NOT EXISTS (SELECT FROM queue AS q WHERE q.message_id = m.id) LIMIT 1000) AS found

-- name: reached
-- Whether an attempt of the last day had a connection to port 25.
SELECT EXISTS (SELECT FROM attempts WHERE ended_at > now() - interval '1 day' AND host LIKE '%%:25'
    AND connect_seconds IS NOT NULL) AS reached

-- name: schema
-- The migrations that the database has.
SELECT name FROM schema_migrations

-- name: last
-- The last entries of the log that match, the newest first, with the time and the oldest transaction that runs. Each
-- statement has a row at least, so that these two are known.
SELECT looked.*, found.* FROM ({looked}) AS looked LEFT JOIN LATERAL (
    SELECT {columns} FROM attempts AS a
    WHERE {where} AND a.ended_at > now() - make_interval(secs => %(seconds)s)
    ORDER BY a.ended_at DESC, a.row_id DESC LIMIT %(most)s
) AS found ON true

-- name: fresh
-- Entries from a time on, of transactions that were not over in a former look: those from its oldest running one on.
-- Numbers of transactions are compared as 32 bits that begin anew.
SELECT looked.*, found.* FROM ({looked}) AS looked LEFT JOIN LATERAL (
    SELECT {columns} FROM attempts AS a
    WHERE a.ended_at > %(since)s AND ((a.xmin::text::bigint - %(horizon)s) & 4294967295) < 2147483648 AND {where}
    ORDER BY a.ended_at DESC, a.row_id DESC
) AS found ON true

-- name: looked
-- The time, and the oldest transaction that runs: all before it are over, and what they wrote is seen.
SELECT now() AS looked_at, (pg_snapshot_xmin(pg_current_snapshot())::text::numeric %% 4294967296)::bigint AS horizon

-- name: columns
-- What an entry shows.
a.ended_at, a.started_at, a.event, a.class, a.message_id, a.row_id, a.lease_token, a.attempt, a.sender, a.recipient,
a.domain, a.tenant, a.host, a.address, a.code, a.enhanced, a.command, a.reply, a.worker, a.late, a.message_id_header,
a.metadata, host(a.client) AS client, a.submitted_by, a.tls_version, a.dns_seconds, a.connect_seconds, a.tls_seconds,
a.transaction_seconds

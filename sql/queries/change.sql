-- name: command
-- One batch of an operator's change: rows by their ids, locked and changed, and counted in the audit
-- table. Rows in flight are taken too, and a locked row is waited for. `takes` is the part of the condition
-- that belongs to the action. IS TRUE keeps the planner on the index by id: by another index it would read
-- all rows of a condition for each batch.
WITH found AS MATERIALIZED (
    SELECT id FROM queue WHERE id = ANY (ARRAY(SELECT unnest(%(ids)b::bigint[]))) AND {takes} AND ({where}) IS TRUE
    ORDER BY id FOR UPDATE
), changed AS MATERIALIZED (
    SELECT queue_change_rows(%(action)s, ARRAY(SELECT id FROM found), %(who)s, %(details)s::jsonb) AS rows
), noted AS (
    UPDATE audit SET rows = audit.rows + changed.rows FROM changed WHERE id = %(audit)s
)
SELECT rows FROM changed

-- name: matching
-- The ids of the next rows that a change takes, for many batches: the planner may read the whole queue for it.
SELECT id FROM queue WHERE id > %(after)s AND {takes} AND ({where}) ORDER BY id LIMIT %(page)s

-- name: page
-- The ids of the next rows that an action takes, whatever the condition says.
SELECT id FROM queue WHERE id > %(after)s AND {takes} ORDER BY id LIMIT %(batch)s

-- name: tried
-- Of these rows those that match, and those on which the condition fails, with the error.
SELECT id, error FROM queue_test(%(condition)s, %(ids)b::bigint[])

-- name: begin
-- Note in the audit table who begins which change.
INSERT INTO audit (who, action, condition, details)
VALUES (%(who)s, %(action)s, %(condition)s, %(details)s::jsonb) RETURNING id

-- name: finish
-- The command came to its end.
UPDATE audit SET finished_at = now() WHERE id = %(audit)s

-- name: found
-- Part of both below: the rows of a worker's batch. A worker repeats its change, so `takes` leaves out
-- rows that have it already. Rows under a lease are in flight: their outcome decides. A locked row comes
-- with a later batch. `in_doubt` are rows whose lease ran out: their worker died, and the next hop may have the mail.
-- A row with `once` is in doubt only if its transaction had begun.
WITH found AS MATERIALIZED (
    SELECT id, CASE WHEN status = 'DELETE' AND held_by IS NOT NULL
            THEN CASE report_kind WHEN 'suppressed' THEN report_kind ELSE 'cancelled' END END AS event,
        lease_token IS NOT NULL AND (NOT once OR begun = lease_token) AS in_doubt FROM queue
    WHERE {takes} AND (lease_until IS NULL OR lease_until < now())
        AND ts <= now() - make_interval(secs => %(older)s) AND ({where})
    LIMIT %(batch)s
    FOR UPDATE SKIP LOCKED
)

-- name: repeat
-- One batch of a worker's change: how many rows were found, and how many were changed.
{found}
SELECT (SELECT count(*) FROM found),
    queue_change_rows(%(action)s, ARRAY(SELECT id FROM found), %(who)s, %(details)s::jsonb)

-- name: remove
-- One batch of a worker's deletion: the rows go at once, each with a last entry in the log. withdraw() has
-- left role, reason and event in rows that were in flight. The log has `unknown` too for an attempt whose worker died.
{found}, logged AS MATERIALIZED (
    SELECT rows_log(ARRAY(SELECT id FROM found WHERE event IS NULL), 'deleted', %(who)s,
            coalesce(%(details)s::jsonb ->> 'reason', ''))
        + rows_log(ARRAY(SELECT id FROM found WHERE event = 'cancelled'), 'cancelled')
        + rows_log(ARRAY(SELECT id FROM found WHERE event = 'suppressed'), 'suppressed')
        + 0 * rows_log(ARRAY(SELECT id FROM found WHERE in_doubt), 'unknown') AS rows
), gone AS (
    DELETE FROM queue WHERE id = ANY (ARRAY(SELECT id FROM found)) AND (SELECT rows FROM logged) > 0
)
SELECT (SELECT count(*) FROM found), rows FROM logged

-- name: may_change
-- The role, and whether it may change many rows as an operator.
SELECT current_user::text,
    has_function_privilege('pgmta.queue_change_rows(text, bigint[], text, jsonb)', 'EXECUTE')
    AND has_column_privilege('pgmta.audit', 'who', 'INSERT') AND has_column_privilege('pgmta.queue', 'status', 'UPDATE')

-- name: standing
-- The number of a standing rule, if it is there and counts.
SELECT id FROM rules WHERE name = %(rule)s AND (expires_at IS NULL OR expires_at > now())

-- name: settle
-- The outcomes of many attempts in one commit. A delivery is a fact: its row is deleted, whatever its
-- status is by now, or waits in REPORT. Any other outcome counts only under its own lease. If an operator has given the row
-- another status since, that status stays; but if the row has `once`, an unknown outcome is final, and mail for a suppressed
-- recipient ends also if it was held or released. A
-- status of null removes the row. A success that its sender wants to know of counts whatever the lease. `delayed` are
-- rows that have passed a time of `bounces.delay`, each time once for a row: whether the row still waits is seen when its
-- sender is notified.
WITH outcome AS MATERIALIZED (
    SELECT * FROM unnest(
        %(ids)b::bigint[], %(tokens)b::bigint[], %(events)b::text[], %(statuses)b::text[],
        %(delays)b::float8[], %(codes)b::smallint[], %(replies)b::text[], %(reports)b::text[], %(overdue)b::real[],
        %(message_ids)b::bigint[]{arrays})
        AS o (id, token, event, status, delay, code, reply, report, overdue, message_id{columns})
){transcripts}, gone AS (
    DELETE FROM queue
    WHERE id = ANY (ARRAY(SELECT id FROM outcome WHERE status IS NULL))
        -- a hold or a request of an operator stays
        AND (id = ANY (ARRAY(SELECT id FROM outcome WHERE event = 'delivered')) OR EXISTS (
            SELECT FROM outcome AS o
            WHERE o.id = queue.id AND o.token = queue.lease_token AND o.status IS NULL
                AND (queue.status = 'SENDING' OR (o.event = 'suppressed' AND queue.status <> 'REPORT')
                    OR (o.event = 'unknown' AND queue.status NOT IN ('HOLD', 'DELETE', 'REPORT')))))
    RETURNING id
), delayed AS (
    INSERT INTO delays (row_id, after, message_id)
    SELECT id, make_interval(secs => overdue), message_id FROM outcome WHERE overdue > 0
    ON CONFLICT DO NOTHING
), moved AS (
    -- No join: if a partition was empty when the plan was made, a join later reads all its rows for
    -- each outcome.
    UPDATE queue
    SET (status, last_reply, next_attempt, attempts, hold_reason, report_kind, held_by,
            hold_until, lease_owner, lease_since, lease_token, lease_until{columns}) = (
        SELECT CASE WHEN o.ends OR queue.status = 'SENDING' OR o.success THEN coalesce(o.status, 'HOLD')
                WHEN o.final AND queue.status <> 'DELETE' THEN 'HOLD' ELSE queue.status END,
            coalesce(nullif(concat_ws(' ', nullif(o.code, 0), nullif(o.reply, '')), ''),
                queue.last_reply),
            CASE WHEN queue.status = 'SENDING' AND (o.status = 'DEFERRED' OR o.event = 'postponed')
                THEN now() + make_interval(secs => o.delay) ELSE queue.next_attempt END,
            greatest(queue.attempts - CASE WHEN o.event IN ('handed back', 'postponed', 'suppressed') THEN 1 ELSE 0 END, 0),
            CASE WHEN o.success THEN NULL
                WHEN o.ends THEN 'undeliverable'
                WHEN o.final AND queue.status <> 'DELETE'
                THEN concat_ws('; ', 'outcome unknown: a release may send a second copy',
                    queue.hold_reason)
                ELSE queue.hold_reason END,
            CASE WHEN o.success THEN o.report
                WHEN o.ends THEN 'failed'
                WHEN o.final AND queue.status <> 'DELETE' THEN 'unknown' ELSE queue.report_kind END,
            CASE WHEN o.success OR o.ends OR o.final AND queue.status = 'SENDING'
                THEN %(worker)s ELSE queue.held_by END,
            CASE WHEN NOT o.final AND NOT o.success THEN queue.hold_until END,
            NULL::text, NULL::timestamptz, NULL::bigint, NULL::timestamptz{values}
        FROM (
            SELECT *, event = 'delivered' AS success,
                event IN ('failed', 'suppressed') AND queue.status = 'SENDING'
                    OR event = 'suppressed' AND queue.status NOT IN ('DELETE', 'REPORT') AS ends,
                event = 'unknown' AND status IS DISTINCT FROM 'DEFERRED' AS final FROM outcome
        ) AS o
        WHERE o.id = queue.id AND CASE WHEN o.success THEN o.report <> '' ELSE o.token = queue.lease_token END
        ORDER BY o.success DESC LIMIT 1)
    WHERE id = ANY (ARRAY(SELECT id FROM outcome WHERE event <> 'delivered' OR report <> ''))
        -- What `gone` removes is not moved too, in a version with the status that an operator gave it meanwhile.
        AND id <> ALL (ARRAY(SELECT id FROM gone))
        AND (SELECT true FROM outcome AS o WHERE o.id = queue.id
            AND (o.event <> 'delivered' AND o.token = queue.lease_token OR o.report <> '') LIMIT 1)
    RETURNING id
), changed AS (
    SELECT id FROM gone UNION ALL SELECT id FROM moved
), logged AS MATERIALIZED (
    {log}
)
SELECT changed.id FROM logged LEFT JOIN changed ON true{after}

-- name: delivered
-- The outcomes of attempts that all delivered, without anything else to write, which is mostly so: half of the cost of a
-- statement is its set-up, and this one is smaller.
WITH changed AS (
    DELETE FROM queue WHERE id = ANY (%(ids)b::bigint[]) RETURNING id
), logged AS MATERIALIZED (
    {log}
)
SELECT changed.id FROM logged LEFT JOIN changed ON true{after}

-- name: log
-- Part of settle and of delivered: the attempts in the log, after their rows have changed. It notes which outcomes changed no row.
SELECT attempts_log(%(worker)s,
        %(ids)b::bigint[], %(message_ids)b::bigint[], %(tokens)b::bigint[], %(attempts)b::integer[],
        %(events)b::text[], %(senders)b::text[], %(recipients)b::text[], %(domains)b::text[],
        %(codes)b::smallint[], %(enhanced)b::text[], %(replies)b::text[], %(commands)b::text[],
        %(classes)b::text[], %(started)b::timestamptz[], %(ended)b::timestamptz[], %(seconds)b::real[],
        %(tenant)b::text[], %(message_id_header)b::text[], %(submitted_by)b::text[], %(metadata)b::text[],
        %(places)b::smallint[], %(facts)b::text[], %(times)b::real[], again => %(again)s,
        clients => %(client)b::text[],
        changed => ARRAY(SELECT id FROM changed)) AS rows

-- name: transcripts
-- Part of settle if there are transcripts: one for all rows of a transaction.
, said AS (
    INSERT INTO transcripts (ended_at, message_id, lease_token, row_ids, traces, dialogue)
    SELECT ended_at, message_id, token, rows::bigint[], nullif(traces, '')::bigint[], dialogue
    FROM unnest(%(said_at)b::timestamptz[], %(said_of)b::bigint[], %(said_under)b::bigint[],
        %(said_for)b::text[], %(traces)b::text[], %(dialogues)b::text[])
        AS s (ended_at, message_id, token, rows, traces, dialogue)
    WHERE NOT (%(again)s AND EXISTS (
        SELECT FROM transcripts AS t
        WHERE t.message_id = s.message_id AND t.lease_token = s.token AND t.ended_at = s.ended_at
            AND t.row_ids = s.rows::bigint[]))
)

-- name: set_aside
-- Put the row of a refused outcome on hold, with the reason, for example of an operator's trigger. A
-- delivery is a fact under any lease: the row must not be sent again.
UPDATE queue
SET status = CASE WHEN status = 'DELETE' THEN status ELSE 'HOLD' END,
    hold_reason = %(reason)s, report_kind = %(kind)s, held_by = %(worker)s, hold_until = NULL,
    last_reply = coalesce(nullif(%(reply)s, ''), last_reply),
    lease_owner = NULL, lease_since = NULL, lease_token = NULL, lease_until = NULL
WHERE id = %(id)s AND (lease_token = %(token)s OR %(delivered)s)

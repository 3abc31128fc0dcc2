-- name: mark
-- Try a condition on the next rows by id, and mark those on which it fails; {rows} says which rows count.
-- The first row has the last id and how many were tried; the others are those marked now.
WITH batch AS MATERIALIZED (
    SELECT id FROM queue
    WHERE id > %(after)s AND ({rows}) AND NOT coalesce(faults ? %(key)s::text, false)
    ORDER BY id LIMIT %(batch)s
), failing AS MATERIALIZED (
    SELECT id, error FROM queue_test(%(condition)s, ARRAY(SELECT id FROM batch)) WHERE error IS NOT NULL
), marked AS (
    -- the errors as one object: a look through them for each row would be a square of their number
    UPDATE queue
    SET faults = coalesce(faults, '{}') || jsonb_build_object(%(key)s::text,
        %(owner)s::text || ' fails on this row: '
            || ((SELECT jsonb_object_agg(id, error) FROM failing) ->> queue.id::text))
    WHERE id = ANY (ARRAY(SELECT id FROM failing)) AND ({rows})
        AND NOT coalesce(faults ? %(key)s::text, false)
    RETURNING id, message_id, faults ->> %(key)s::text AS error
)
SELECT max(id), count(*), NULL::text FROM batch
UNION ALL SELECT id, message_id, error FROM marked

-- name: unmark
-- Take the mark from the next marked rows by id on which the condition does not fail any more. Returns
-- the last id and how many were marked.
WITH marked AS MATERIALIZED (
    SELECT id FROM queue WHERE id > %(after)s AND ({rows}) AND faults ? %(key)s::text
    ORDER BY id LIMIT %(batch)s
), failing AS MATERIALIZED (
    SELECT id FROM queue_test(%(condition)s, ARRAY(SELECT id FROM marked)) WHERE error IS NOT NULL
), mended AS (
    UPDATE queue SET faults = nullif(faults - %(key)s::text, '{}')
    WHERE id = ANY (ARRAY(SELECT id FROM marked EXCEPT SELECT id FROM failing)) AND ({rows})
)
SELECT max(id), count(*) FROM marked

-- name: failing
-- Rows of the next batch by id on which a condition fails. The first row has the last id and how many
-- were tried. Changes nothing.
WITH batch AS MATERIALIZED (
    SELECT id FROM queue WHERE id > %(after)s AND ({rows}) ORDER BY id LIMIT %(batch)s
)
SELECT max(id) AS id, count(*) AS message_id, NULL::text AS error FROM batch
UNION ALL
SELECT id, (SELECT message_id FROM queue WHERE queue.id = tested.id LIMIT 1), error
FROM queue_test(%(condition)s, ARRAY(SELECT id FROM batch)) AS tested WHERE error IS NOT NULL

-- name: kept
-- Marks on held rows: whose condition failed on how many, and one of them.
SELECT mark.key, mark.value AS error, count(*) AS rows, min(q.id) AS id, min(q.message_id) AS message_id
FROM queue AS q CROSS JOIN LATERAL jsonb_each_text(q.faults) AS mark
WHERE q.status = 'HOLD' AND q.faults IS NOT NULL
GROUP BY 1, 2 ORDER BY 3 DESC, 4 LIMIT 100

-- name: probe
-- Evaluate a condition on some rows that wait, and at least analyse it: there is no row 0.
SELECT count(*) FROM queue_test(%(condition)s,
    0::bigint || ARRAY(SELECT id FROM queue WHERE status IN ('QUEUED', 'DEFERRED', 'SENDING') LIMIT 100))

-- name: failing
-- The rows of the next batch by id on which a condition fails. The first row of the answer has the last
-- id and the number of rows tried. Changes nothing.
WITH batch AS MATERIALIZED (
    SELECT id FROM queue WHERE id > %(after)s AND ({rows}) ORDER BY id LIMIT %(batch)s
)
SELECT max(id) AS id, count(*) AS message_id, NULL::text AS error FROM batch
UNION ALL
SELECT id, (SELECT message_id FROM queue WHERE queue.id = tested.id LIMIT 1), error
FROM queue_test(%(condition)s, ARRAY(SELECT id FROM batch)) AS tested WHERE error IS NOT NULL

-- name: kept
-- Marks on held rows: the condition that failed, on how many rows, and one of them.
SELECT mark.key, mark.value AS error, count(*) AS rows, min(q.id) AS id, min(q.message_id) AS message_id
FROM queue AS q CROSS JOIN LATERAL jsonb_each_text(q.faults) AS mark
WHERE q.status = 'HOLD' AND q.faults IS NOT NULL
GROUP BY 1, 2 ORDER BY 3 DESC, 4 LIMIT 100

-- name: mark
-- Try a condition on the next rows by id, and mark those on which it fails; {rows} says which rows count.
-- The first row has the last id and how many were tried; the others are those marked now, and without a
-- message those that another session has locked: claims do not wait for them.
WITH batch AS MATERIALIZED (
    SELECT id FROM queue
    WHERE id > %(after)s AND ({rows}) AND NOT coalesce(faults ? %(key)s::text, false)
    ORDER BY id LIMIT %(batch)s
), failing AS MATERIALIZED (
    SELECT id, error FROM queue_test(%(condition)s, ARRAY(SELECT id FROM batch)) WHERE error IS NOT NULL
), free AS MATERIALIZED (
    SELECT id FROM queue WHERE id = ANY (ARRAY(SELECT id FROM failing)) FOR UPDATE SKIP LOCKED
), marked AS (
    -- the errors as one object, because a search through them for each row would take quadratic time
    UPDATE queue
    SET faults = coalesce(faults, '{}') || jsonb_build_object(%(key)s::text,
        %(owner)s::text || ' fails on this row: '
            || ((SELECT jsonb_object_agg(id, error) FROM failing) ->> queue.id::text))
    WHERE id = ANY (ARRAY(SELECT id FROM free)) AND ({rows})
        AND NOT coalesce(faults ? %(key)s::text, false)
    RETURNING id, message_id, faults ->> %(key)s::text AS error
)
SELECT max(id), count(*), NULL::text FROM batch
UNION ALL SELECT id, message_id, error FROM marked
UNION ALL SELECT id, NULL, error FROM failing
WHERE id = ANY (ARRAY(SELECT id FROM failing EXCEPT SELECT id FROM free))

-- name: unmark
-- Remove the mark from the next marked rows by id if the condition no longer fails on them. Returns the
-- last id and the number of marked rows.
WITH marked AS MATERIALIZED (
    SELECT id FROM queue WHERE id > %(after)s AND ({rows}) AND faults ? %(key)s::text
    ORDER BY id LIMIT %(batch)s
), failing AS MATERIALIZED (
    SELECT id FROM queue_test(%(condition)s, ARRAY(SELECT id FROM marked)) WHERE error IS NOT NULL
), free AS MATERIALIZED (
    SELECT id FROM queue
    WHERE id = ANY (ARRAY(SELECT id FROM marked EXCEPT SELECT id FROM failing)) FOR UPDATE SKIP LOCKED
), mended AS (
    UPDATE queue SET faults = nullif(faults - %(key)s::text, '{}')
    WHERE id = ANY (ARRAY(SELECT id FROM free)) AND ({rows})
)
SELECT max(id), count(*) FROM marked

-- name: probe
-- Evaluate a condition on some rows that wait, and at least analyse it: there is no row 0.
SELECT count(*) FROM queue_test(%(condition)s,
    0::bigint || ARRAY(SELECT id FROM queue WHERE status IN ('QUEUED', 'DEFERRED', 'SENDING') LIMIT 100))

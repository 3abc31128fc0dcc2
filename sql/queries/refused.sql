-- name: probe
-- Analyse a condition, and evaluate it for a row without values.
SELECT count(*) FROM queue_test(%(condition)s, '{0}')

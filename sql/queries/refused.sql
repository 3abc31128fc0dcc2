-- name: judge
-- Why a condition may not be evaluated, or null.
SELECT condition_fault(%(condition)s) AS fault

-- name: probe
-- Analyse a condition, and evaluate it for a row without values.
SELECT count(*) FROM queue_test(%(condition)s, '{0}')

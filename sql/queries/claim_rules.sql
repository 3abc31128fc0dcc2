-- name: rules
-- The standing rules that count now, each with the version of the set and the migrations that the
-- database has: each migration makes a new version. The last column says why a rule may not be evaluated.
-- One row without a name if no rule counts.
SELECT version, name, condition, ARRAY(SELECT name FROM schema_migrations), condition_fault(condition), id
FROM rules_version LEFT JOIN rules ON (expires_at IS NULL OR expires_at > now()) AND slow_at IS NULL
ORDER BY name

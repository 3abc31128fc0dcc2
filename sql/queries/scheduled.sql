-- name: due
-- Bring the next scheduled rows whose time is near among those that claims look at. Returns their number.
SELECT schedule_due(%(batch)s)

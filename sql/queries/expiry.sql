-- name: templates
-- One batch of versions of templates that nothing has.
SELECT templates_expire(make_interval(secs => %(age)s), %(batch)s)

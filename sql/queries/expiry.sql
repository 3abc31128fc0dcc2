-- name: templates
-- One batch of versions of templates that nothing has.
SELECT templates_expire(make_interval(secs => %(age)s), %(batch)s)

-- name: tokens
-- One batch of tokens and collections of the schema lifecycle, if it is there.
SELECT lifecycle_expire(make_interval(secs => %(age)s), make_interval(secs => %(collections)s), %(batch)s)

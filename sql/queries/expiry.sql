-- name: recipients
-- One batch of recipients of campaigns that are over.
SELECT recipients_expire(make_interval(secs => %(age)s), %(batch)s)

-- name: campaigns
-- One batch of campaigns without recipients.
SELECT campaigns_expire(make_interval(secs => %(age)s), %(batch)s)

-- name: templates
-- One batch of versions of templates that nothing has.
SELECT templates_expire(make_interval(secs => %(age)s), %(batch)s)

-- name: tokens
-- One batch of tokens and collections of the schema lifecycle, if it is there.
SELECT lifecycle_expire(make_interval(secs => %(age)s), make_interval(secs => %(collections)s), %(batch)s)

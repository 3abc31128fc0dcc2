-- name: set_budget
-- Make the budget of a collector, or change it. Returns whether that changed anything.
SELECT budget_set(%(key)s, %(rate)s, %(month_most)s)

-- name: waiting
-- Tokens that wait, at most as many as a batch.
SELECT lifecycle.tokens_waiting(%(actions)s, %(limit)s::integer)

-- name: collect
-- Make the mail of a batch.
SELECT taken, refused, wait, expired, spent
FROM lifecycle.collect(%(collector)s, %(worker)s, %(limit)s::integer, %(reason)s, %(options)s::text::jsonb)

-- name: lease
-- Lease a batch of tokens that are printed.
SELECT token, action::text, email, login, secret, code, expires_at, expired
FROM lifecycle.tokens_lease(%(limit)s::integer, %(actions)s, make_interval(secs => %(lease)s))

-- name: printed
-- Mark tokens that were printed, or can't be.
SELECT lifecycle.tokens_printed(%(tokens)s::bigint[], %(collector)s, %(worker)s, %(reason)s, %(limit)s::integer,
    %(refused)s::integer, %(expired)s::integer, %(began)s)

-- name: check
-- Raise the error of a template that does not fit, of a schema that is not there, or of accounts that can't be read.
SELECT count(*), lifecycle.accounts_check() FROM lifecycle.collect_actions(%(options)s::text::jsonb)

-- name: set_aside
-- Let a token rest, so that the others go on.
SELECT lifecycle.tokens_put_off(%(token)s, make_interval(secs => %(seconds)s))

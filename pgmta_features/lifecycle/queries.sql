-- name: consume
-- Consume a token whose signature was verified, or say why not.
SELECT account, login, proof, why, missing FROM lifecycle.token_consume(%(secret)s, %(action)s)

-- name: pages
-- What the pages of all actions need.
SELECT name, code, proof, returns_to, titles FROM lifecycle.action_pages()

-- name: failed
-- Count a wrong code.
SELECT lifecycle.token_failed(%(secret)s)

-- name: locked
-- Whether too many codes were wrong.
SELECT lifecycle.token_locked(%(secret)s)

-- name: there
-- Whether the schema lifecycle is there, and the role may consume tokens.
SELECT coalesce(has_function_privilege(to_regprocedure('lifecycle.token_consume(bytea, text)'), 'EXECUTE'), false)

-- name: accounts
-- Raise the error that each question about an account would meet.
SELECT lifecycle.accounts_check()

-- name: set_budget
-- Make the budget of a collector, or change it. Returns whether that changed anything.
SELECT budget_set(%(key)s, %(rate)s, %(month_most)s)

-- name: waiting
-- Tokens that wait, at most as many as a batch.
SELECT lifecycle.tokens_waiting(%(actions)s::text[], %(limit)s::integer)

-- name: collect
-- Make the mail of a batch.
SELECT taken, refused, wait, expired, spent, most, aside
FROM lifecycle.collect(%(collector)s, %(worker)s, %(limit)s::integer, %(reason)s, %(options)s::text::jsonb)

-- name: lease
-- Lease a batch of tokens that are printed.
SELECT token, action::text, email, login, secret, code, code_signed, expires_at, expired
FROM lifecycle.tokens_lease(%(limit)s::integer, %(actions)s::text[], make_interval(secs => %(lease)s))

-- name: printed
-- Mark tokens that were printed, or can't be.
SELECT lifecycle.tokens_printed(%(tokens)s::bigint[], %(collector)s, %(worker)s, %(reason)s, %(limit)s::integer,
    %(refused)s::integer, %(expired)s::integer, %(began)s)

-- name: check
-- What templates lack. Raises the error of a schema or an action that is not there, or of accounts that can't be read.
SELECT lifecycle.collect_check(%(options)s::text::jsonb), lifecycle.accounts_check()

-- name: other_actions
-- Actions that have none of these names.
SELECT name FROM lifecycle.actions WHERE name <> ALL (%(names)s::text[]) ORDER BY name

-- name: set_aside
-- Let a token rest, so that the others go on.
SELECT lifecycle.tokens_put_off(%(token)s, make_interval(secs => %(seconds)s))

-- name: return_to
-- Send browsers to a URL after an action.
UPDATE lifecycle.actions SET returns_to = %(url)s WHERE name = %(action)s

-- name: insert_account
-- Insert an account, whose trigger makes a token.
INSERT INTO lifecycle.accounts (email, login) VALUES (%(email)s, %(login)s)

-- name: mail_again
-- Make new tokens for those that expired before their mail left.
SELECT lifecycle.mail_again(%(action)s::text, make_interval(secs => %(seconds)s)) AS number

-- name: expire
-- One batch of tokens and collections of the schema lifecycle, if it is there.
SELECT lifecycle_expire(make_interval(secs => %(age)s), make_interval(secs => %(collections)s), %(batch)s)

-- name: installed
-- Whether the schema lifecycle is installed.
SELECT EXISTS (SELECT FROM pg_class WHERE relnamespace = to_regnamespace('lifecycle') AND relname = 'installation') AS there

-- name: waiting_actions
-- Tokens whose mail is not made and that can still have one, by action, the age of the oldest in seconds, and whether a
-- collector takes them.
SELECT a.action, a.number, a.seconds,
    EXISTS (SELECT FROM lifecycle.live_collectors AS c WHERE c.actions IS NULL OR a.action = ANY (c.actions)) AS taken
FROM (
    SELECT t.action, count(*) AS number, (extract(epoch FROM now()) - min(t.created_at))::float8 AS seconds
    FROM lifecycle.waiting_tokens AS w JOIN lifecycle.tokens AS t ON t.id = w.token
    WHERE t.expires_at > extract(epoch FROM now()) GROUP BY t.action) AS a
ORDER BY a.action

-- name: resting
-- Tokens that rest for what the template of their action lacks. A pick after the rest says whether it still does.
SELECT t.action, w.fault, count(*) AS number FROM lifecycle.waiting_tokens AS w JOIN lifecycle.tokens AS t ON t.id = w.token
WHERE w.fault IS NOT NULL AND w.lease_until > now() - interval '1 minute' AND t.expires_at > extract(epoch FROM now())
GROUP BY t.action, w.fault ORDER BY 1, 2

-- name: unsent
-- Tokens of the last day that expired before their mail left, by action.
SELECT t.action, count(*) AS number FROM lifecycle.tokens_unsent('1 day') AS t GROUP BY t.action ORDER BY 1

-- name: refused
-- Tokens of the last day that can have no mail, if there is no later one. Printed ones have no message either.
SELECT CASE WHEN c.refused > 0 THEN least(c.refused, (
    SELECT count(*) FROM lifecycle.tokens AS t
    WHERE t.collected_at > now() - interval '1 day' AND t.message_id IS NULL AND t.consumed_at IS NULL
        AND t.expires_at > t.created_at AND NOT EXISTS (
            SELECT FROM lifecycle.tokens AS n
            WHERE n.account = t.account AND n.action = t.action AND n.id > t.id))) END AS refused
FROM (SELECT sum(refused) AS refused FROM lifecycle.collections WHERE began_at > now() - interval '1 day') AS c

-- name: lost_columns
-- The bound table, if it or some of its columns have other names now, and these columns.
SELECT i.bound ->> 'table' AS table, i.bound, string_agg(w.name, ', ') AS columns
FROM lifecycle.installation AS i, LATERAL (
    SELECT value FROM jsonb_each_text(i.bound)
    WHERE key IN ('id', 'email', 'login', 'status', 'active', 'confirmed', 'blocked', 'language')
    UNION SELECT jsonb_array_elements_text(i.bound -> 'words')) AS w (name)
WHERE NOT EXISTS (
    SELECT FROM pg_trigger AS t JOIN pg_class AS c ON c.oid = t.tgrelid JOIN pg_namespace AS n ON n.oid = c.relnamespace
        JOIN pg_attribute AS a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
    WHERE t.tgname = 'pgmta_account_inserted' AND a.attname = w.name
        AND concat(quote_ident(n.nspname), '.', quote_ident(c.relname)) = i.bound ->> 'table')
GROUP BY i.bound

-- name: backlog
-- Tokens whose mail is not made, and the age of the oldest in seconds: the first of an action is.
SELECT (SELECT count(*) FROM lifecycle.waiting_tokens AS w JOIN lifecycle.actions AS a ON a.name = w.action) AS number,
    coalesce(extract(epoch FROM now()) - min(t.created_at), 0)::float8 AS seconds
FROM lifecycle.actions AS a, LATERAL (
    SELECT w.token FROM lifecycle.waiting_tokens AS w WHERE w.action = a.name ORDER BY w.token LIMIT 1) AS first
JOIN lifecycle.tokens AS t ON t.id = first.token

-- name: collector_takes
-- Say which tokens a collector takes.
SELECT lifecycle.collector_takes(%(collector)s, %(worker)s, %(actions)s::text[], %(budget)s::text)

-- name: spent_budgets
-- Budgets of collectors whose sum of the month is used up.
SELECT key, month_most AS most FROM budgets
WHERE month_used >= month_most AND month = date_trunc('month', now() AT TIME ZONE 'UTC')
    AND key IN (SELECT c.budget FROM lifecycle.live_collectors AS c)
ORDER BY 1

-- name: consume
-- Consume a token whose signature was verified, or say why not.
SELECT account, login, proof, why FROM lifecycle.token_consume(%(secret)s, %(action)s)

-- name: failed
-- Count a wrong code of a recovery.
SELECT lifecycle.token_failed(%(secret)s)

-- name: locked
-- Whether too many codes were wrong.
SELECT lifecycle.token_locked(%(secret)s)

-- name: there
-- Whether the schema lifecycle is there, and the login may consume.
SELECT coalesce(has_function_privilege(to_regprocedure('lifecycle.token_consume(bytea, text)'), 'EXECUTE'), false)

-- name: accounts
-- Raise the error that each question about an account would meet.
SELECT lifecycle.accounts_check()

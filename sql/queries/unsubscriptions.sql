-- name: unsubscribe
-- Suppress the address of a recipient whose token was verified; false if there is no such recipient.
SELECT pgmta.unsubscribe(%(campaign)s, %(number)s)

-- name: unsubscribable
-- Whether the login may do that.
SELECT coalesce(has_function_privilege(to_regprocedure('pgmta.unsubscribe(bigint, integer)'), 'EXECUTE'), false)

-- name: settled
-- Part of settle: the suspension for which a row is put off.
CASE WHEN queue.status = 'SENDING' AND o.suspension <> 0 THEN o.suspension ELSE queue.suspension END

-- name: look
-- The next id of queue, and the transactions that are open now. The snapshot is taken before the
-- sequence is read: a transaction that moved it is in the snapshot, or began after it.
SELECT last_value + is_called::integer, pg_current_snapshot() FROM queue_ids

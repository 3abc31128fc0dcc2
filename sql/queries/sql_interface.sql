-- name: submit
-- Put one message into the queue, and wake the workers after the commit. Returns its id.
SELECT pgmta.submit(%(sender)s::text, %(recipients)s::text[], %(content)s::bytea,
    priority => %(priority)s::integer, metadata => %(metadata)s::jsonb, key => %(key)s::text,
    tenant => %(tenant)s::text, on_failed => %(on_failed)s::text, once => %(once)s::boolean,
    send_at => %(send_at)s::timestamptz, deadline => %(deadline)s::timestamptz, wake => true) AS id

-- name: cancel
-- Stop the recipients of a message that are not delivered yet. Returns their number.
SELECT pgmta.cancel(%(id)s::bigint, %(reason)s::text) AS stopped

-- name: status
-- The state of each recipient of some messages.
SELECT * FROM pgmta.status(%(ids)s::bigint[])

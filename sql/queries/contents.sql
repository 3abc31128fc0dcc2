-- name: body
-- The content of one message that has no chunks.
SELECT body FROM messages WHERE id = %(id)s

-- name: chunks
-- Some chunks of the content of one message, in order.
SELECT data FROM message_chunks
WHERE message_id = %(id)s AND position >= %(first)s AND position < %(first)s + %(number)s
ORDER BY position

-- name: composition
-- The template and the parameters of which a message is composed.
SELECT jsonb_build_array(template_id, params)::text FROM messages WHERE id = %(id)s AND params IS NOT NULL

-- name: templates
-- The sources of templates.
SELECT id, sender, from_field, reply_to, subject, body, html, headers::text FROM templates WHERE id = ANY (%(ids)s)

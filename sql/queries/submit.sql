-- name: submit_mail
-- Put mail into the queue that is given as parts. Returns its id.
SELECT pgmta.submit_mail(%(sender)s::text, %(to)s::text[], %(subject)s::text, body => %(body)s::text,
    html => %(html)s::text, cc => %(cc)s::text[], bcc => %(bcc)s::text[], reply_to => %(reply_to)s::text,
    "from" => %(from)s::text, headers => %(headers)s::jsonb, {options}) AS id

-- name: submit_template
-- Put mail into the queue that a template and its words make. Returns its id.
SELECT pgmta.submit_template(%(template)s::text, %(recipient)s::text, %(params)s::jsonb, version => %(version)s::integer,
    {options}) AS id

-- name: options
-- Part of both.
attachments => ARRAY(SELECT ROW(name, type, content, content_id)::pgmta.submit_attachment
        FROM unnest(%(names)s::text[], %(types)s::text[], %(contents)s::bytea[], %(content_ids)s::text[])
            WITH ORDINALITY AS each (name, type, content, content_id, place) ORDER BY place),
    send_at => %(send_at)s::timestamptz, deadline => %(deadline)s::timestamptz, priority => %(priority)s::integer,
    metadata => %(metadata)s::jsonb, key => %(key)s::text, tenant => %(tenant)s::text, on_failed => %(on_failed)s::text,
    once => %(once)s::boolean, wake => %(wake)s::boolean

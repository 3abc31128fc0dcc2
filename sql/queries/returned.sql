-- name: record
-- The attempts whose mail came back, as the log has them now. Without a class nothing is noted.
SELECT r.place, a.sender, a.recipient
FROM unnest(%(messages)b::bigint[], %(rows)b::bigint[], %(days)b::text[], %(classes)b::text[],
        %(replies)b::text[], %(complaints)s::boolean[])
        WITH ORDINALITY AS r (message, row_id, day, class, reply, complaint, place),
    LATERAL attempt_returned(r.message, r.row_id, r.day::date, r.class, r.reply, r.complaint) AS a

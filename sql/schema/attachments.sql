-- Files that go with composed mail: their checks, and the rest of the content that they make.

CREATE TYPE submit_attachment AS (name text, type text, content bytea, content_id text);
COMMENT ON TYPE submit_attachment IS
    'A file that goes with mail. With a content_id it is a picture of the html, which names it as cid:…';
COMMENT ON COLUMN submit_attachment.name IS 'The file name that the reader sees.';
COMMENT ON COLUMN submit_attachment.type IS 'Its media type, such as application/pdf; null: application/octet-stream.';
COMMENT ON COLUMN submit_attachment.content IS 'Its octets.';
COMMENT ON COLUMN submit_attachment.content_id IS
    'A name without brackets, by which the html shows it; null: it is an attachment.';

CREATE FUNCTION submit_tail(
    attachments submit_attachment[], boundary text, has_body boolean, has_html boolean, most bigint,
    OUT tail bytea, OUT kind text
) LANGUAGE plpgsql AS $$
DECLARE
    bad integer;
    reason text;
    names text[];
    pictures integer;
    files integer;
BEGIN
    -- unnest() would write large contents to a temporary file each time, and so would a sort of them
    SELECT min(place) FILTER (WHERE fault IS NOT NULL),
        (array_agg(fault ORDER BY place) FILTER (WHERE fault IS NOT NULL))[1],
        array_agg(name ORDER BY place), count(content_id), count(*) - count(content_id)
    INTO bad, reason, names, pictures, files
    FROM (
        SELECT place, name, content_id, submit_attachment_fault(name, coalesce(type, 'application/octet-stream'), content,
                content_id, has_html, count(*) OVER (PARTITION BY btrim(content_id, '<>'))) AS fault
        FROM generate_subscripts(attachments, 1) WITH ORDINALITY AS each (n, place),
            LATERAL (SELECT (attachments[n]).*) AS file
    ) AS judged;
    IF bad IS NOT NULL THEN
        PERFORM submit_refuse('attachments', reason, format('Attachment %s of %s: %s', bad, cardinality(attachments),
            coalesce(to_json(left(names[bad], 100))::text, 'null')), 'docs/programs/composed.md has the arguments.');
    ELSIF (SELECT sum(octet_length((attachments[n]).content)) FROM generate_subscripts(attachments, 1) AS n) > most THEN
        PERFORM submit_refuse('attachments', format('they are over %s octets', most), NULL, 'Send fewer, or a link.');
    END IF;
    IF getdatabaseencoding() <> 'UTF8' THEN
        PERFORM submit_text('attachments', (attachments[n]).name) FROM generate_subscripts(attachments, 1) AS n;
    END IF;
    SELECT coalesce(string_agg(part, '') FILTER (WHERE content_id IS NOT NULL)
            || convert_to(concat(E'\r\n--', boundary, E'r--\r\n'), 'UTF8'), '')
        || CASE WHEN has_body AND has_html THEN convert_to(concat(E'\r\n--', boundary, E'a--\r\n'), 'UTF8') ELSE '' END
        || coalesce(string_agg(part, '') FILTER (WHERE content_id IS NULL)
            || convert_to(concat(E'\r\n--', boundary, E'm--\r\n'), 'UTF8'), '')
    INTO tail
    FROM generate_subscripts(attachments, 1) AS n, LATERAL (SELECT (attachments[n]).*) AS file,
        LATERAL (SELECT submit_part(boundary, name, coalesce(type, 'application/octet-stream'), content,
            btrim(content_id, '<>')) AS part OFFSET 0) AS encoded;
    kind := concat(CASE WHEN files = 0 THEN 'related' WHEN pictures = 0 THEN 'mixed' ELSE 'both' END,
        CASE WHEN (SELECT bool_or(submit_eight_bit((attachments[n]).type, (attachments[n]).content))
        FROM generate_subscripts(attachments, 1) AS n) THEN ' 8bit' END);
END $$;
COMMENT ON FUNCTION submit_tail IS
    'The rest of the content behind the last text: pictures in multipart/related, the end of multipart/alternative, '
    'and attachments in multipart/mixed. `kind` says which of them it ends. Raises the error of a bad attachment.';

CREATE FUNCTION submit_attachment_fault(
    name text, type text, content bytea, content_id text, has_html boolean, uses bigint
) RETURNS text LANGUAGE sql AS $$
    SELECT CASE WHEN name IS NULL OR name !~ '\S' THEN 'the name is missing'
        WHEN submit_field(name, 255) IS NOT NULL THEN 'a name: ' || submit_field(name, 255)
        WHEN content IS NULL THEN 'the content is null'
        WHEN length(type) > 200 OR type !~ ('^[A-Za-z0-9!#$&^_.+-]+/[A-Za-z0-9!#$&^_.+-]+'
            '(; ?[A-Za-z0-9-]+=("[] !#-:<-[^-~]*"|[A-Za-z0-9!#$&^_.+-]+))*$' COLLATE "C")
            THEN 'the type is no media type such as application/pdf'
        WHEN lower(type COLLATE "C") ~ '^(multipart|message)/' AND lower(type COLLATE "C") !~ '^message/rfc822(;|$)'
            THEN 'such a type can''t be attached'
        WHEN content_id IS NULL THEN CASE WHEN lower(type COLLATE "C") ~ '^message/' THEN CASE
            WHEN octet_length(content) = 0 OR position('\x00'::bytea IN content) > 0 OR submit_bare(content)
                THEN 'an attached message has a bare CR or LF, NUL, or nothing'
            WHEN submit_long_line(content) THEN 'an attached message has a line over 998 octets' END END
        WHEN NOT has_html THEN 'a picture with a content_id needs html that shows it'
        WHEN btrim(content_id, '<>') !~ '^[A-Za-z0-9._+-]{1,100}(@[A-Za-z0-9._-]{1,100})?$' COLLATE "C"
            THEN 'the content_id is no name of letters, digits and . _ + -'
        WHEN lower(type COLLATE "C") ~ '^message/' THEN 'a message is no picture'
        WHEN uses > 1 THEN 'another attachment has the same content_id' END
$$;
COMMENT ON FUNCTION submit_attachment_fault IS 'Why an attachment can''t go with mail; null if it can.';

CREATE FUNCTION submit_part(boundary text, name text, type text, content bytea, content_id text) RETURNS bytea
LANGUAGE plpgsql AS $$  -- PostgreSQL 15 writes the large result of a function in SQL to a temporary file
DECLARE
    whole CONSTANT boolean := lower(type COLLATE "C") ~ '^message/';
BEGIN
    RETURN convert_to(concat(E'\r\n--', boundary, CASE WHEN content_id IS NULL THEN 'm' ELSE 'r' END, E'\r\n',
            'Content-Type: ', regexp_replace(type, '; ?([A-Za-z0-9-]+=)', E';\r\n \\1', 'g'), E'\r\n',
            'Content-Transfer-Encoding: ', CASE WHEN NOT whole THEN 'base64' WHEN submit_eight_bit(type, content) THEN '8bit' ELSE '7bit' END,
            E'\r\n', 'Content-ID: <' || content_id || E'>\r\n',
            'Content-Disposition: ', CASE WHEN content_id IS NULL THEN 'attachment' ELSE 'inline' END,
            submit_file_name(name), E'\r\n\r\n'), 'UTF8')
        || CASE WHEN whole THEN content
            ELSE convert_to(replace(encode(content, 'base64'), E'\n', E'\r\n'), 'UTF8') END;
END $$;
COMMENT ON FUNCTION submit_part IS
    'An attachment with its header (RFC 2045, RFC 2183): in base64, and a message as it is (RFC 2046, section 5.2.1).';

CREATE FUNCTION submit_long_line(content bytea) RETURNS boolean LANGUAGE sql AS $$
    -- 1,000 octets without a line feed are in one slice
    SELECT EXISTS (
        SELECT FROM generate_series(1, octet_length(content), 65536) AS place,
            string_to_table(convert_from(substring(content FROM place FOR 66535), 'LATIN1'), E'\n') AS line
        WHERE length(line) > 999)
$$;
COMMENT ON FUNCTION submit_long_line IS 'Whether content with CRLF at its line ends has a line over 998 octets.';

CREATE FUNCTION submit_eight_bit(type text, content bytea) RETURNS boolean LANGUAGE sql IMMUTABLE AS $$
    -- after pairs of backslashes, a backslash with 2 or 3 begins an octet beyond ASCII
    SELECT lower(type COLLATE "C") ~ '^message/' AND EXISTS (
        SELECT FROM generate_series(1, octet_length(content), 65536) AS place
        WHERE replace(encode(substring(content FROM place FOR 65536), 'escape'), '\\', '') ~ '\\[23]' COLLATE "C")
$$;
COMMENT ON FUNCTION submit_eight_bit IS 'Whether an attachment is a message with octets over 127, which goes as it is.';

CREATE FUNCTION submit_file_name(name text) RETURNS text LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN length(name) <= 60 AND name ~ '^[!-~]+( [!-~]+)*$' COLLATE "C" AND name !~ '=[?]'
        THEN concat(E';\r\n filename="', regexp_replace(name, '(["\\])', '\\\1', 'g'), '"')
        WHEN length(submit_percent(name)) <= 60 THEN concat(E';\r\n filename*=utf-8''''', submit_percent(name))
        ELSE (
            SELECT string_agg(concat(E';\r\n filename*', number, '*=', CASE WHEN number = 0 THEN 'utf-8''''' END,
                submit_percent(substr(name, number * 5 + 1, 5))), '' ORDER BY number)
            -- one character takes at most 12 octets
            FROM generate_series(0, (length(name) - 1) / 5) AS number
        ) END
$$;
COMMENT ON FUNCTION submit_file_name IS
    'The parameter filename of Content-Disposition: quoted, or by RFC 2231, section 4, if long in pieces (section 3).';

CREATE FUNCTION submit_percent(value text) RETURNS text LANGUAGE sql IMMUTABLE AS $$
    SELECT string_agg(CASE WHEN octet BETWEEN 45 AND 122 AND chr(octet) ~ '[A-Za-z0-9._-]' COLLATE "C" THEN chr(octet)
        ELSE '%' || upper(lpad(to_hex(octet), 2, '0')) END, '' ORDER BY place)
    FROM convert_to(value, 'UTF8') AS octets, generate_series(0, octet_length(octets) - 1) AS place,
        LATERAL (SELECT get_byte(octets, place) AS octet) AS one
$$;
COMMENT ON FUNCTION submit_percent IS 'Text in UTF-8, percent-encoded but for letters, digits and . _ -';

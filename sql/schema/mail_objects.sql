-- A mail of submit_mails() as a JSON object: its keys, their types, and the call of submit_mail() or another one.

CREATE FUNCTION submit_object(mail jsonb, contents bytea[]) RETURNS bigint LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
    files submit_attachment[];
    send_at timestamptz;
    deadline timestamptz;
    priority integer;
    metadata jsonb := coalesce(nullif(mail -> 'metadata', 'null'), '{}');
    tenant text := coalesce(mail ->> 'tenant', '');
    on_failed text := coalesce(mail ->> 'on_failed', 'remove');
    once boolean;
BEGIN
    IF jsonb_typeof(mail) <> 'object' THEN
        PERFORM submit_refuse('mails', 'a mail is no JSON object', 'It is of type ' || jsonb_typeof(mail));
    END IF;
    PERFORM submit_types(mail, mail_keys(mail));
    send_at := mail ->> 'send_at';
    deadline := mail ->> 'deadline';
    priority := coalesce((mail ->> 'priority')::numeric, 5);
    once := coalesce(mail ->> 'once', 'false');
    files := submit_files(mail -> 'attachments', contents);
    IF mail ->> 'template' IS NOT NULL THEN
        RETURN submit_template(mail ->> 'template', mail ->> 'recipient', coalesce(nullif(mail -> 'params', 'null'), '{}'),
            (mail ->> 'version')::numeric::integer, files, send_at, priority, metadata, mail ->> 'key', tenant, on_failed,
            once, false, deadline, mail ->> 'unsubscribe');
    ELSIF mail ->> 'content' IS NOT NULL THEN
        RETURN submit(mail ->> 'sender', json_texts(mail -> 'recipients'),
            submit_octets('content', mail -> 'content', contents), send_at, priority, metadata, mail ->> 'key', tenant,
            on_failed, once, false, deadline, mail ->> 'unsubscribe');
    END IF;
    RETURN submit_mail(mail ->> 'sender', json_texts(mail -> 'to'), mail ->> 'subject', mail ->> 'body',
        mail ->> 'html', json_texts(mail -> 'cc'), json_texts(mail -> 'bcc'), mail ->> 'reply_to',
        coalesce(nullif(mail -> 'headers', 'null'), '{}'), files, mail ->> 'from', send_at, priority, metadata,
        mail ->> 'key', tenant, on_failed, once, false, deadline, mail ->> 'unsubscribe');
END $$;
COMMENT ON FUNCTION submit_object IS
    'Submits a mail that is a JSON object by submit_mail(), submit_template() or submit(), and returns its id. Raises '
    'their errors, and those of a key that is unknown or has a value of another type.';

CREATE FUNCTION mail_keys(mail jsonb) RETURNS jsonb LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN mail ->> 'template' IS NOT NULL THEN jsonb '{"template": "text", "recipient": "text",
            "params": "any", "version": "integer", "attachments": "list"}'
        WHEN mail ->> 'content' IS NOT NULL THEN jsonb '{"sender": "text", "recipients": "texts", "content": "octets"}'
        ELSE jsonb '{"sender": "text", "to": "texts", "cc": "texts", "bcc": "texts", "reply_to": "text", "from": "text",
            "subject": "text", "body": "text", "html": "text", "headers": "any", "attachments": "list"}' END
        || jsonb '{"send_at": "time", "deadline": "time", "priority": "integer", "metadata": "any", "key": "text",
            "tenant": "text", "on_failed": "text", "once": "boolean", "unsubscribe": "text"}'
$$;
COMMENT ON FUNCTION mail_keys IS 'The keys that a mail of its kind may have: by template, as octets, or as parts.';

CREATE FUNCTION submit_types(object jsonb, keys jsonb, argument text DEFAULT NULL, place text DEFAULT NULL) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    bad text;
    reason text;
    known text[];
BEGIN
    SELECT name, fault INTO bad, reason
    FROM jsonb_each(object) AS each (name, value), LATERAL (SELECT CASE
        WHEN value = 'null' THEN NULL  -- as if the key were missing
        WHEN NOT keys ? name THEN 'there is no such key'
        WHEN keys ->> name = 'text' THEN CASE WHEN jsonb_typeof(value) <> 'string' THEN 'it is no text' END
        WHEN keys ->> name = 'boolean' THEN CASE WHEN jsonb_typeof(value) <> 'boolean' THEN 'it is neither true nor false' END
        WHEN keys ->> name = 'list' THEN CASE WHEN jsonb_typeof(value) <> 'array' THEN 'it is no list' END
        WHEN keys ->> name = 'texts' THEN CASE WHEN jsonb_typeof(value) <> 'array' OR jsonb_path_exists(value,
                'strict $[*] ? (@.type() != "string" && @.type() != "null")') THEN 'it is no list of texts' END
        WHEN keys ->> name = 'integer' THEN CASE WHEN jsonb_typeof(value) <> 'number' OR value <> to_jsonb(trunc(value::numeric))
                OR value NOT BETWEEN '-2147483648' AND '2147483647' THEN 'it is no whole number of 32 bits' END
        WHEN keys ->> name = 'time' THEN CASE WHEN length(value #>> '{}') > 40 OR NOT deadline_valid(value)
                THEN 'it is no time of RFC 3339'
            WHEN value #>> '{}' ~ '[+-](1[6-9]|2.):..$' COLLATE "C" THEN 'its zone is 16 hours or more from UTC' END
        END AS fault) AS judged
    WHERE fault IS NOT NULL ORDER BY fault <> 'there is no such key', name COLLATE "C" LIMIT 1;
    IF bad IS NOT NULL THEN
        known := ARRAY(SELECT name FROM jsonb_object_keys(keys) AS name ORDER BY name COLLATE "C");
        PERFORM submit_refuse(coalesce(argument, left(bad, 100)), CASE WHEN argument IS NULL THEN reason
            ELSE concat(to_json(left(bad, 100)), ': ', reason) END, place,
            CASE WHEN reason = 'there is no such key' THEN coalesce('Did you mean ' || nearest_word(bad, known) || '?',
                'It may have ' || array_to_string(known, ', ') || '.')
            WHEN reason = 'it is no time of RFC 3339' THEN 'Write for example 2026-01-31T09:30:00Z.' END);
    END IF;
END $$;
COMMENT ON FUNCTION submit_types IS
    'Raises the error of a key that is unknown or whose value has another type. With `argument` the object is part of it.';

CREATE FUNCTION submit_files(files jsonb, contents bytea[]) RETURNS submit_attachment[] LANGUAGE plpgsql AS $$
DECLARE
    file jsonb;
    made submit_attachment[] := '{}';
    place text;
BEGIN
    IF jsonb_typeof(files) = 'array' THEN
        FOR file IN SELECT jsonb_array_elements(files) LOOP
            place := format('Attachment %s of %s.', cardinality(made) + 1, jsonb_array_length(files));
            IF jsonb_typeof(file) <> 'object' THEN
                PERFORM submit_refuse('attachments', 'one is no JSON object', place);
            END IF;
            PERFORM submit_types(file, '{"name": "text", "type": "text", "content": "octets", "content_id": "text"}',
                'attachments', place);
            made := made || (file ->> 'name', file ->> 'type', submit_octets(format('attachments.%s', cardinality(made)), file -> 'content', contents),
                file ->> 'content_id')::submit_attachment;
        END LOOP;
    END IF;
    RETURN made;
END $$;
COMMENT ON FUNCTION submit_files IS 'Attachments of a list of JSON objects. Raises the error of a bad one.';

CREATE FUNCTION submit_octets(argument text, value jsonb, contents bytea[]) RETURNS bytea LANGUAGE plpgsql AS $$
DECLARE
    octets bytea;
BEGIN
    IF jsonb_typeof(value) = 'number' THEN
        IF value >= '0' AND value < to_jsonb(cardinality(contents)) AND value = to_jsonb(trunc(value::numeric)) THEN
            octets := contents[array_lower(contents, 1) + value::integer];
        END IF;
        IF octets IS NULL THEN
            PERFORM submit_refuse(argument, 'contents has no such place', format('Place %s of %s, from 0.',
                left(value::text, 100), coalesce(cardinality(contents), 0)));
        END IF;
        RETURN octets;
    ELSIF value IS NULL OR jsonb_typeof(value) NOT IN ('string', 'null') THEN
        PERFORM submit_refuse(argument, 'a content is neither base64 nor a place in contents');
    END IF;
    BEGIN
        RETURN decode(value #>> '{}', 'base64');
    EXCEPTION WHEN data_exception THEN
        NULL;
    END;
    PERFORM submit_refuse(argument, 'a content is no base64', NULL, 'See RFC 4648, section 4: with = at its end.');
    RETURN NULL;
END $$;
COMMENT ON FUNCTION submit_octets IS
    'The octets that a JSON value has in base64 (RFC 4648, section 4), or whose place in `contents` it is, from 0.';

CREATE FUNCTION json_texts(list jsonb) RETURNS text[] LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN jsonb_typeof(list) = 'array' THEN ARRAY(SELECT jsonb_array_elements_text(list)) ELSE '{}' END
$$;
COMMENT ON FUNCTION json_texts IS 'The texts of a JSON array; none of another value.';

CREATE FUNCTION nearest_word(word text, words text[]) RETURNS text LANGUAGE sql IMMUTABLE AS $$
    SELECT each
    FROM unnest(words) AS each, LATERAL (SELECT count(*) AS number FROM (
            SELECT substr(concat(' ', lower(left(word, 100) COLLATE "C"), ' '), n, 2) FROM generate_series(1, length(left(word, 100)) + 1) AS n
            INTERSECT SELECT substr(concat(' ', each, ' '), n, 2) FROM generate_series(1, length(each) + 1) AS n
        ) AS common) AS pairs
    WHERE number * 4 >= length(left(word, 100)) + length(each) + 2
    ORDER BY number * 2.0 / (length(left(word, 100)) + length(each) + 2) DESC, each LIMIT 1
$$;
COMMENT ON FUNCTION nearest_word IS 'The word that has most pairs of neighbouring letters in common with another; null if none has half.';

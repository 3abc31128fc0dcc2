-- submit() adds Date and Message-ID where they are missing, as submission by SMTP does (RFC 6409, section 8).

-- SQL, so that PostgreSQL puts it into the expression of the caller
CREATE FUNCTION submit_missing(header text, hostname text) RETURNS text LANGUAGE sql AS $$
    SELECT concat(
        CASE WHEN header !~ '(?in)^date[ \t]*:' COLLATE "C" THEN
            to_char(clock_timestamp() AT TIME ZONE 'UTC', '"Date:" Dy, DD Mon YYYY HH24:MI:SS "+0000"') || E'\r\n' END,
        CASE WHEN header !~ '(?in)^message-id[ \t]*:' COLLATE "C" THEN
            concat('Message-ID: <', gen_random_uuid(), '@', coalesce(hostname, 'localhost'), E'>\r\n') END)
$$;
COMMENT ON FUNCTION submit_missing IS
    'The fields Date and Message-ID, if a header lacks them (RFC 5322, section 3.6). They go in front of it.';

CREATE OR REPLACE FUNCTION submit_content(content bytea, size_limit bigint) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    octets bigint := octet_length(content);
    slice CONSTANT integer := 65536;
    ending integer;
    bare boolean;
    header text COLLATE "C";
    value text COLLATE "C";
BEGIN
    IF octets = 0 THEN
        PERFORM submit_refuse('content', 'it is empty');
    ELSIF octets > size_limit THEN
        PERFORM submit_refuse('content', format('it is over %s octets', size_limit), format('It has %s.', octets));
    ELSIF position('\x00'::bytea IN content) > 0 THEN
        PERFORM submit_refuse('content', 'it has NUL', 'At octet ' || position('\x00'::bytea IN content));
    END IF;
    -- Escaped text is ASCII in every encoding. Each octet and the next one are in one slice.
    IF octets <= slice THEN
        bare := encode(content, 'escape') ~ '\r([^\n]|$)|(^|[^\r])\n' COLLATE "C";
    ELSE
        bare := get_byte(content, 0) = 10 OR get_byte(content, octets::integer - 1) = 13 OR EXISTS (
            SELECT FROM generate_series(1, octets::integer, slice) AS place
            WHERE encode(substring(content FROM place FOR slice + 1), 'escape')
                ~ '\r[^\n]|[^\r]\n' COLLATE "C");
    END IF;
    IF bare THEN
        PERFORM submit_refuse('content', 'it has a bare CR or LF', NULL,
            'Each line ends with CR LF: convert_to(regexp_replace(convert_from(content, ''LATIN1''), '
            'E''\r\n?|\n'', E''\r\n'', ''g''), ''LATIN1'').');
    END IF;
    ending := position('\x0d0a0d0a'::bytea IN substring(content FROM 1 FOR slice));
    IF ending = 0 AND octets > slice THEN
        PERFORM submit_refuse('content', 'its header does not end within 64 KB');
    END IF;
    header := encode(substring(content FROM 1 FOR CASE ending WHEN 0 THEN slice ELSE ending - 1 END), 'escape');
    -- whole fields with their continuations (RFC 5322, section 2.2)
    IF header !~ '^[!-9;-~]+[ \t]*:[^\r]*(\r\n([!-9;-~]+[ \t]*:|[ \t])[^\r]*)*(\r\n)?$' COLLATE "C" THEN
        PERFORM submit_refuse('content', 'it does not begin with header fields', NULL,
            'Fields such as From: and Subject: come first, each in one line or folded, then an empty line.');
    END IF;
    IF strpos(lower(header), 'received:') > 0 AND regexp_count(header, '^received:', 1, 'in') > 100 THEN
        PERFORM submit_refuse('content', 'it has over 100 Received fields', NULL, 'It may be in a loop.');
    END IF;
    IF strpos(lower(header), 'message-id') = 0 THEN RETURN NULL; END IF;
    value := substring(header FROM '(?in)^message-id[ \t]*:([^\r]*(?:\r\n[ \t][^\r]*)*)');
    value := btrim(regexp_replace(value, '\r\n[ \t]+', ' ', 'g'), E' \t\v\f');
    -- a backslash is doubled; any other stands for an octet beyond ASCII
    IF value !~ '^([ -[^-~\]]|\\\\)+$' COLLATE "C" THEN RETURN NULL; END IF;
    value := replace(value, '\\', '\');
    RETURN CASE WHEN length(value) <= 998 THEN value END;
END $$;

CREATE OR REPLACE FUNCTION submit_any(
    sender text, recipients text[], content bytea, send_at timestamptz, priority integer, metadata jsonb,
    key text, tenant text, on_failed text, once boolean, wake boolean
) RETURNS bigint LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    chunk CONSTANT integer := 8096;
    message_id bigint;
    known bigint;
    octets integer;
    header_end integer := position('\x0d0a0d0a'::bytea IN substring(content FROM 1 FOR 65536));
    message_id_header text;
    added text;
    settings submit_settings;
    sender_domain text;
    domains text[];
    missing text := CASE WHEN sender IS NULL THEN 'sender' WHEN content IS NULL THEN 'content'
        WHEN priority IS NULL THEN 'priority' WHEN metadata IS NULL THEN 'metadata'
        WHEN tenant IS NULL THEN 'tenant' WHEN on_failed IS NULL THEN 'on_failed'
        WHEN once IS NULL THEN 'once' WHEN wake IS NULL THEN 'wake' END;
BEGIN
    IF missing IS NOT NULL THEN PERFORM submit_refuse(missing, 'it is null'); END IF;
    SELECT * INTO settings FROM submit_settings;
    -- PL/pgSQL prepares each expression anew in each transaction. So usual arguments pass by few of them.
    IF send_at IS NOT NULL OR key IS NOT NULL OR priority NOT BETWEEN 0 AND 9 OR metadata <> '{}' OR tenant <> ''
            OR on_failed <> 'hold' THEN
        PERFORM submit_options(send_at, priority, metadata, key, tenant, on_failed);
    END IF;
    domains := ARRAY[mailbox_domain(recipients[1])];
    sender_domain := mailbox_domain(sender);
    IF cardinality(recipients) IS DISTINCT FROM 1 OR domains[1] IS NULL OR sender_domain IS NULL THEN
        SELECT * INTO recipients, sender_domain, domains FROM submit_envelope(sender, recipients);
    END IF;
    -- fields, an empty line, and no bare CR or LF; without Message-ID
    IF octet_length(content) NOT BETWEEN 1 AND least(settings.message_size, 65536)
        OR position('\x00'::bytea IN content) > 0
        OR encode(content, 'escape') !~ ('^[!-9;-~]+[ \t]*:[^\r\n]*(\r\n([!-9;-~]+[ \t]*:|[ \t])[^\r\n]*)*'
            '\r\n\r\n([^\r\n]|\r\n)*$' COLLATE "C")
        OR encode(substring(content FROM 1 FOR header_end), 'escape')
            ~ '(?in)^(received|message-id)' COLLATE "C"
    THEN
        message_id_header := submit_content(content, settings.message_size);
    END IF;
    -- each submission opens a block of ids, so that smtpd's blocks never have this one
    message_id := nextval('message_ids');
    IF key IS NOT NULL THEN
        known := submit_key(tenant, key, message_id, sha256(convert_to(jsonb_build_array(sender, recipients, priority,
            metadata, on_failed, once, send_at)::text, getdatabaseencoding()) || sha256(content)));
        IF known IS NOT NULL THEN RETURN known; END IF;
    END IF;
    added := submit_missing(encode(substring(content FROM 1 FOR CASE header_end WHEN 0 THEN 65536 ELSE header_end END),
        'escape'), settings.hostname);
    IF added <> '' THEN
        message_id_header := coalesce(message_id_header, substring(added FROM '<.*>'));
        content := convert_to(added, 'UTF8') || content;
    END IF;
    octets := octet_length(content);
    IF octets > chunk THEN
        content := content || ''::bytea;  -- read from its table once, not for each chunk
        INSERT INTO message_chunks (message_id, position, data)
        SELECT message_id, number, substring(submit_any.content FROM number * chunk + 1 FOR chunk)
        FROM generate_series(0, (octets - 1) / chunk) AS number;
    END IF;
    -- As queue_put does, which takes a group: its arrays would cost a single message as much again.
    -- tests/sql/test_one_door.py compares what both store.
    INSERT INTO messages (id, size, utf8, chunks, trace, body, message_id_header, tenant, submitted_by, origin)
    VALUES (message_id, octets,
        concat(sender, array_to_string(recipients, '')) ~ '[^\u0001-\u007f]' COLLATE "C",
        CASE WHEN octets > chunk THEN (octets - 1) / chunk + 1 ELSE 0 END,
        submit_trace(settings.hostname, message_id),
        CASE WHEN octets > chunk THEN '' ELSE content END, message_id_header, tenant,
        session_user, 'sql');
    INSERT INTO queue (message_id, sender, sender_domain, recipient, domain, priority, metadata, tenant, on_failed, once)
    SELECT message_id, sender, sender_domain, address, name, priority, metadata, tenant, on_failed, once
    FROM unnest(recipients, domains) AS recipient (address, name);
    IF wake THEN PERFORM pg_notify('pgmta_queue', ''); END IF;
    RETURN message_id;
END $$;

CREATE OR REPLACE FUNCTION submit(
    sender text, recipients text[], content bytea, send_at timestamptz DEFAULT NULL,
    priority integer DEFAULT 5, metadata jsonb DEFAULT '{}', key text DEFAULT NULL,
    tenant text DEFAULT '', on_failed text DEFAULT 'hold', once boolean DEFAULT false,
    wake boolean DEFAULT false
) RETURNS bigint LANGUAGE plpgsql SECURITY DEFINER SET search_path = pgmta, pg_catalog, pg_temp
    SET standard_conforming_strings = on AS $$  -- all that it calls is compiled with these settings too
#variable_conflict use_variable
DECLARE
    header text COLLATE "C" := encode(substring(content FROM 1 FOR position('\x0d0a0d0a'::bytea IN content)), 'escape');
    message_id_header text := substring(header FROM '(?in)^message-id[ \t]*:[ \t]*([^\r]*(?:\r\n[ \t])?)' COLLATE "C");
    message_id bigint;
    added text COLLATE "C";
BEGIN
    -- The usual mail, which has one recipient. PL/pgSQL prepares each expression anew in each transaction, so
    -- there are few of them. Whatever else is there goes to submit_any, with the same outcome.
    IF cardinality(recipients) = 1 AND octet_length(sender) <= 63 AND octet_length(recipients[1]) <= 63
        AND concat(sender, ' ', recipients[1]) ~ ('^[A-Za-z0-9_+=-]+(\.[A-Za-z0-9_+=-]+)*@[A-Za-z0-9]([A-Za-z0-9-]*'
            '[A-Za-z0-9])?(\.[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?)* [A-Za-z0-9_+=-]+(\.[A-Za-z0-9_+=-]+)*@'
            '[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?(\.[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?)*$' COLLATE "C")
        AND send_at IS NULL AND priority BETWEEN 0 AND 9 AND metadata = '{}' AND key IS NULL
        AND tenant = '' COLLATE "C" AND on_failed = 'hold' COLLATE "C" AND once IS NOT NULL AND NOT wake
        -- fields, an empty line, and no bare CR or LF; with added fields it needs no chunk
        AND octet_length(content) <= 7500 AND position('\x00'::bytea IN content) = 0
        AND encode(content, 'escape') ~ ('^[!-9;-~]+[ \t]*:[^\r\n]*(\r\n([!-9;-~]+[ \t]*:|[ \t])[^\r\n]*)*'
            '\r\n\r\n([^\r\n]|\r\n)*$' COLLATE "C")
        AND header !~ '(?in)^received' COLLATE "C"
        AND (message_id_header IS NULL OR message_id_header ~ '^[!-[\]-~]{1,250}$' COLLATE "C")
    THEN
        -- each submission opens a block of ids, so that smtpd's blocks never have this one
        message_id := nextval('message_ids');
        added := submit_missing(header, (SELECT hostname FROM submit_settings));
        IF added <> '' THEN
            message_id_header := coalesce(message_id_header, substring(added FROM '<.*>'));
            content := convert_to(added, 'UTF8') || content;
        END IF;
        -- As queue_put does, which takes a group: its arrays would cost a single message as much again.
        -- tests/sql/test_one_door.py compares what all three store.
        INSERT INTO messages (id, size, trace, body, message_id_header, submitted_by, origin)
        VALUES (message_id, octet_length(content), submit_trace((SELECT hostname FROM submit_settings), message_id),
            content, message_id_header, session_user, 'sql');
        INSERT INTO queue (message_id, sender, sender_domain, recipient, domain, priority, once)
        VALUES (message_id, sender, lower(split_part(sender COLLATE "C", '@', 2)), recipients[1],
            lower(split_part(recipients[1] COLLATE "C", '@', 2)), priority, once);
        RETURN message_id;
    END IF;
    -- The collation of an argument is the caller's, who may compare addresses without case.
    RETURN submit_any(sender COLLATE "C", recipients, content, send_at, priority, metadata, key, tenant, on_failed, once, wake);
END $$;

REVOKE EXECUTE ON FUNCTION submit_missing FROM PUBLIC;

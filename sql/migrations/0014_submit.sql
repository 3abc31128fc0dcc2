-- submit(): docs/decisions/0029-submission.md.

CREATE TABLE submit_settings (
    one boolean PRIMARY KEY DEFAULT true CHECK (one),
    hostname text CHECK (hostname ~ '^[A-Za-z0-9][A-Za-z0-9._-]{0,252}$'),
    message_size bigint NOT NULL DEFAULT 52428800 CHECK (message_size >= 65536)
);
COMMENT ON TABLE submit_settings IS 'The settings of submit(); one row.';
COMMENT ON COLUMN submit_settings.one IS 'Keeps it at one row.';
COMMENT ON COLUMN submit_settings.hostname IS
    'Host name in the Received field; null until queued writes its own, then localhost is there.';
COMMENT ON COLUMN submit_settings.message_size IS 'Octets of the largest content; at least 64 KB.';
INSERT INTO submit_settings DEFAULT VALUES;

CREATE FUNCTION submit_envelope(sender text, recipients text[],
    OUT addresses text[], OUT sender_domain text, OUT domains text[]) LANGUAGE plpgsql AS $$
DECLARE
    bad integer;
BEGIN
    IF sender = '' THEN
        sender_domain := '';
    ELSE
        sender_domain := mailbox_domain(sender);
        IF sender_domain IS NULL THEN PERFORM submit_refuse_mailbox('sender', sender, 'Address: '); END IF;
    END IF;
    IF recipients IS NULL OR cardinality(recipients) = 0 THEN
        PERFORM submit_refuse('recipients', 'there is none', NULL, 'Give a list: ARRAY[''bob@example.com''].');
    ELSIF cardinality(recipients) > 1000 THEN
        PERFORM submit_refuse('recipients', 'there are over 1000', NULL, 'Submit the message several times.');
    ELSIF cardinality(recipients) = 1 THEN
        addresses := ARRAY[recipients[array_lower(recipients, 1)]];
        domains := ARRAY[mailbox_domain(recipients[array_lower(recipients, 1)])];
        bad := CASE WHEN domains[1] IS NULL THEN 1 END;
    ELSE
        -- each recipient once, as smtpd does: the domain in any case, the local part as it is
        SELECT array_agg(address ORDER BY place), array_agg(domain ORDER BY place),
            min(place) FILTER (WHERE domain IS NULL)
        INTO addresses, domains, bad
        FROM (
            SELECT DISTINCT ON (left(address, length(domain) * -1), domain) address, domain, place
            FROM unnest(recipients) WITH ORDINALITY AS given (address, place),
                LATERAL (SELECT mailbox_domain(address) OFFSET 0) AS parsed (domain)
            ORDER BY left(address, length(domain) * -1), domain, place
        ) AS different;
    END IF;
    IF bad IS NOT NULL THEN
        PERFORM submit_refuse_mailbox('recipients', (SELECT address
                FROM unnest(recipients) WITH ORDINALITY AS given (address, place) WHERE place = bad),
            format('Recipient %s of %s: ', bad, cardinality(recipients)));
    END IF;
END $$;
COMMENT ON FUNCTION submit_envelope IS 'Parses the envelope: each recipient once. Raises the error of a bad one.';

CREATE FUNCTION submit_options(
    send_at timestamptz, priority integer, metadata jsonb, key text, tenant text, on_failed text
) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    bad text;
BEGIN
    IF send_at IS NOT NULL AND NOT isfinite(send_at) THEN
        PERFORM submit_refuse('send_at', 'it is infinite');
    ELSIF send_at > clock_timestamp() THEN
        PERFORM submit_refuse('send_at', 'it is in the future', NULL, 'Mail can''t be scheduled yet.', '0A000');
    END IF;
    IF priority NOT BETWEEN 0 AND 9 THEN
        PERFORM submit_refuse('priority', 'it is not from 0 (first) to 9', format('It is %s.', priority));
    END IF;
    IF on_failed NOT IN ('hold', 'remove') THEN
        PERFORM submit_refuse('on_failed', 'it is neither hold nor remove');
    ELSIF octet_length(tenant) > 64 OR tenant <> '' AND tenant !~ '^[A-Za-z0-9][A-Za-z0-9._@+-]{0,63}$' COLLATE "C" THEN
        PERFORM submit_refuse('tenant', 'it is no name of 1 to 64 letters, digits and . _ @ + -');
    END IF;
    IF length(key) NOT BETWEEN 1 AND 255 OR key ~ '[\u0001-\u001f\u007f]' COLLATE "C" THEN
        PERFORM submit_refuse('key', 'it is empty, over 255 characters or has control characters');
    END IF;
    IF jsonb_typeof(metadata) <> 'object' THEN
        PERFORM submit_refuse('metadata', 'it is no JSON object', 'It is of type ' || jsonb_typeof(metadata));
    ELSIF octet_length(metadata::text) > 4000 THEN
        PERFORM submit_refuse('metadata', 'it is over 4000 octets as text');
    ELSIF jsonb_path_exists(metadata, 'strict $.**{100}') THEN
        PERFORM submit_refuse('metadata', 'it is nested over 100 levels deep');
    ELSIF metadata <> '{}' THEN
        bad := (SELECT min(name) FROM jsonb_object_keys(metadata) AS name
                WHERE starts_with(name, '_') AND name <> '_partid');
        IF bad IS NOT NULL THEN
            PERFORM submit_refuse('metadata', 'a key begins with _', 'Key: ' || to_json(left(bad, 100)),
                'Such keys belong to pgmta; only _partid may be given.');
        ELSIF jsonb_typeof(metadata -> '_partid') NOT IN ('string', 'number')
                OR length(metadata ->> '_partid') > 100 THEN
            PERFORM submit_refuse('metadata', '_partid is no text of at most 100 characters');
        END IF;
    END IF;
    IF getdatabaseencoding() <> 'UTF8' THEN
        PERFORM submit_text('key', key), submit_text('metadata', metadata::text);
    END IF;
END $$;
COMMENT ON FUNCTION submit_options IS 'Raises the error of the first bad argument beside envelope and content.';

CREATE FUNCTION submit_trace(hostname text, message_id bigint) RETURNS text
RETURN concat('Received: by ', coalesce(hostname, 'localhost'), ' (pgmta) with SQL id ', message_id,
    E';\r\n\t', to_char(clock_timestamp() AT TIME ZONE 'UTC', 'Dy, DD Mon YYYY HH24:MI:SS +0000'), E'\r\n');
COMMENT ON FUNCTION submit_trace IS 'The Received field of a submission (RFC 5321, section 4.4).';

CREATE FUNCTION submit_any(
    sender text, recipients text[], content bytea, send_at timestamptz, priority integer, metadata jsonb,
    key text, tenant text, on_failed text, once boolean, wake boolean
) RETURNS bigint LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    chunk CONSTANT integer := 8096;
    message_id bigint;
    known bigint;
    octets integer;
    message_id_header text;
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
        OR encode(substring(content FROM 1 FOR position('\x0d0a0d0a'::bytea IN content)), 'escape')
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
    octets := octet_length(content);
    IF octets > chunk THEN
        content := content || ''::bytea;  -- read from its table once, not for each chunk
        INSERT INTO message_chunks (message_id, position, data)
        SELECT message_id, number, substring(submit_any.content FROM number * chunk + 1 FOR chunk)
        FROM generate_series(0, (octets - 1) / chunk) AS number;
    END IF;
    -- As queue_put does, which takes a group: its arrays would cost a single message as much again.
    -- tests/sql/test_one_door.py compares what both store.
    INSERT INTO messages (id, size, utf8, chunks, trace, body, message_id_header, tenant, submitted_by)
    VALUES (message_id, octets,
        concat(sender, array_to_string(recipients, '')) ~ '[^\u0001-\u007f]' COLLATE "C",
        CASE WHEN octets > chunk THEN (octets - 1) / chunk + 1 ELSE 0 END,
        submit_trace(settings.hostname, message_id),
        CASE WHEN octets > chunk THEN '' ELSE content END, message_id_header, tenant,
        session_user);
    INSERT INTO queue (message_id, sender, sender_domain, recipient, domain, priority, metadata, tenant, on_failed, once)
    SELECT message_id, sender, sender_domain, address, name, priority, metadata, tenant, on_failed, once
    FROM unnest(recipients, domains) AS recipient (address, name);
    IF wake THEN PERFORM pg_notify('pgmta_queue', ''); END IF;
    RETURN message_id;
END $$;
COMMENT ON FUNCTION submit_any IS 'Does what submit() does, for any arguments; raises the error of a bad one.';

CREATE FUNCTION submit(
    sender text, recipients text[], content bytea, send_at timestamptz DEFAULT NULL,
    priority integer DEFAULT 5, metadata jsonb DEFAULT '{}', key text DEFAULT NULL,
    tenant text DEFAULT '', on_failed text DEFAULT 'hold', once boolean DEFAULT false,
    wake boolean DEFAULT false
) RETURNS bigint LANGUAGE plpgsql SECURITY DEFINER SET search_path = pgmta, pg_catalog, pg_temp
    SET standard_conforming_strings = on AS $$  -- all that it calls is compiled with these settings too
#variable_conflict use_variable
DECLARE
    header text := encode(substring(content FROM 1 FOR position('\x0d0a0d0a'::bytea IN content)), 'escape');
    message_id_header text := substring(header FROM '(?in)^message-id[ \t]*:[ \t]*([^\r]*(?:\r\n[ \t])?)' COLLATE "C");
    message_id bigint;
BEGIN
    -- The usual mail, which has one recipient. PL/pgSQL prepares each expression anew in each transaction, so
    -- there are few of them. Whatever else is there goes to submit_any, with the same outcome.
    IF cardinality(recipients) = 1 AND octet_length(sender) <= 63 AND octet_length(recipients[1]) <= 63
        AND concat(sender, ' ', recipients[1]) ~ ('^[A-Za-z0-9_+=-]+(\.[A-Za-z0-9_+=-]+)*@[A-Za-z0-9]([A-Za-z0-9-]*'
            '[A-Za-z0-9])?(\.[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?)* [A-Za-z0-9_+=-]+(\.[A-Za-z0-9_+=-]+)*@'
            '[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?(\.[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?)*$' COLLATE "C")
        AND send_at IS NULL AND priority BETWEEN 0 AND 9 AND metadata = '{}' AND key IS NULL
        AND tenant = '' COLLATE "C" AND on_failed = 'hold' COLLATE "C" AND once IS NOT NULL AND NOT wake
        -- fields, an empty line, and no bare CR or LF
        AND octet_length(content) <= 8096 AND position('\x00'::bytea IN content) = 0
        AND encode(content, 'escape') ~ ('^[!-9;-~]+[ \t]*:[^\r\n]*(\r\n([!-9;-~]+[ \t]*:|[ \t])[^\r\n]*)*'
            '\r\n\r\n([^\r\n]|\r\n)*$' COLLATE "C")
        AND header !~ '(?in)^received' COLLATE "C"
        AND (message_id_header IS NULL OR message_id_header ~ '^[!-[\]-~]{1,250}$' COLLATE "C")
    THEN
        -- each submission opens a block of ids, so that smtpd's blocks never have this one
        message_id := nextval('message_ids');
        -- As queue_put does, which takes a group: its arrays would cost a single message as much again.
        -- tests/sql/test_one_door.py compares what all three store.
        INSERT INTO messages (id, size, trace, body, message_id_header, submitted_by)
        VALUES (message_id, octet_length(content), submit_trace((SELECT hostname FROM submit_settings), message_id),
            content, message_id_header, session_user);
        INSERT INTO queue (message_id, sender, sender_domain, recipient, domain, priority, once)
        VALUES (message_id, sender, lower(split_part(sender COLLATE "C", '@', 2)), recipients[1],
            lower(split_part(recipients[1] COLLATE "C", '@', 2)), priority, once);
        RETURN message_id;
    END IF;
    -- The collation of an argument is the caller's, who may compare addresses without case.
    RETURN submit_any(sender COLLATE "C", recipients, content, send_at, priority, metadata, key, tenant, on_failed, once, wake);
END $$;
COMMENT ON FUNCTION submit IS
    'Puts a message into the queue, in the transaction of the caller, and returns its id. Content is that '
    'of RFC 5322, each line with CRLF. docs/sql.md has the arguments and errors.';

REVOKE EXECUTE ON FUNCTION submit_envelope, submit_options, submit_trace, submit_any, submit FROM PUBLIC;

-- Submission by SQL: submit() in the transaction of the caller.

CREATE TABLE submit_settings (
    one boolean DEFAULT true PRIMARY KEY CHECK (one),
    hostname text CHECK (hostname ~ '^[A-Za-z0-9][A-Za-z0-9._-]{0,252}$'),
    message_size bigint NOT NULL DEFAULT 52428800 CHECK (message_size >= 65536)
);
COMMENT ON TABLE submit_settings IS 'The settings of submit(); one row.';
COMMENT ON COLUMN submit_settings.one IS 'Keeps it at one row.';
COMMENT ON COLUMN submit_settings.hostname IS
    'Host name in the Received field; null until queued writes its own, then localhost is there.';
COMMENT ON COLUMN submit_settings.message_size IS 'Octets of the largest content; at least 64 KB.';
COMMENT ON CONSTRAINT submit_settings_one_check ON submit_settings IS 'One row.';
COMMENT ON CONSTRAINT submit_settings_hostname_check ON submit_settings IS 'A host name.';
COMMENT ON CONSTRAINT submit_settings_message_size_check ON submit_settings IS 'At least 64 KB.';
INSERT INTO submit_settings DEFAULT VALUES;

CREATE TABLE idempotency_keys (
    tenant text COLLATE "C" NOT NULL,
    key text COLLATE "C" NOT NULL,
    message_id bigint NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    fingerprint bytea NOT NULL,
    submitted_by text NOT NULL,
    PRIMARY KEY (tenant, key)
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_insert_threshold = -1);
COMMENT ON TABLE idempotency_keys IS
    'Keys of submissions of the last day (retention.keys in queued.yaml): a repetition gets the first id.';
COMMENT ON COLUMN idempotency_keys.tenant IS 'Argument tenant; each tenant has its own keys.';
COMMENT ON COLUMN idempotency_keys.key IS 'Argument key.';
COMMENT ON COLUMN idempotency_keys.message_id IS 'Id of the first submission; its message may be gone.';
COMMENT ON COLUMN idempotency_keys.created_at IS 'When the transaction of the first submission began.';
COMMENT ON COLUMN idempotency_keys.fingerprint IS 'SHA-256 of all that makes the message.';
COMMENT ON COLUMN idempotency_keys.submitted_by IS 'Login of the first submission.';

CREATE INDEX idempotency_keys_created_at ON idempotency_keys (created_at);
COMMENT ON INDEX idempotency_keys_created_at IS 'Keys whose time is over.';

CREATE FUNCTION submit(
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
        AND header !~ '(?in)^(received|tls-required)' COLLATE "C"
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
COMMENT ON FUNCTION submit IS
    'Puts a message into the queue, in the transaction of the caller, and returns its id. Content is that of RFC '
    '5322, each line with CRLF. docs/sql.md has the arguments and errors.';

CREATE FUNCTION submit_any(
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
    INSERT INTO messages (id, size, utf8, chunks, trace, body, message_id_header, tenant, submitted_by, origin,
        tls_optional)
    VALUES (message_id, octets,
        concat(sender, array_to_string(recipients, '')) ~ '[^\u0001-\u007f]' COLLATE "C",
        CASE WHEN octets > chunk THEN (octets - 1) / chunk + 1 ELSE 0 END,
        submit_trace(settings.hostname, message_id),
        CASE WHEN octets > chunk THEN '' ELSE content END, message_id_header, tenant,
        session_user, 'sql',
        submit_tls_optional(encode(substring(content FROM 1 FOR position('\x0d0a0d0a'::bytea IN content)), 'escape')));
    INSERT INTO queue (message_id, sender, sender_domain, recipient, domain, priority, metadata, tenant, on_failed, once)
    SELECT message_id, sender, sender_domain, address, name, priority, metadata, tenant, on_failed, once
    FROM unnest(recipients, domains) AS recipient (address, name);
    IF wake THEN PERFORM pg_notify('pgmta_queue', ''); END IF;
    RETURN message_id;
END $$;
COMMENT ON FUNCTION submit_any IS 'Does what submit() does, for any arguments; raises the error of a bad one.';

CREATE FUNCTION submit_key(tenant text, key text, message_id bigint, fingerprint bytea) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
    first_one idempotency_keys;
BEGIN
    LOOP
        -- waits for an open transaction that has the key, and for no other
        INSERT INTO idempotency_keys (tenant, key, message_id, fingerprint, submitted_by)
        VALUES (submit_key.tenant, submit_key.key, submit_key.message_id, submit_key.fingerprint, session_user)
        ON CONFLICT ON CONSTRAINT idempotency_keys_pkey DO NOTHING;
        IF FOUND THEN RETURN NULL; END IF;
        SELECT k.* INTO first_one FROM idempotency_keys AS k
        WHERE k.tenant = submit_key.tenant AND k.key = submit_key.key;
        EXIT WHEN FOUND;  -- else it was removed meanwhile, because its time is over
    END LOOP;
    IF first_one.submitted_by <> session_user THEN
        PERFORM submit_refuse('key', 'another login has used it', NULL,
            'Give each login a tenant or a prefix for its keys.', 'unique_violation');
    ELSIF first_one.fingerprint <> fingerprint THEN
        PERFORM submit_refuse('key', 'it was used for another message',
            'Message ' || first_one.message_id || ' had it.', NULL, 'unique_violation');
    END IF;
    RETURN first_one.message_id;
END $$;
COMMENT ON FUNCTION submit_key IS
    'Takes a key for a message; returns null, or the id of the message that had it first. Raises an error if that '
    'was another message, or belongs to another login.';

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

CREATE FUNCTION submit_trace(hostname text, message_id bigint) RETURNS text
RETURN concat('Received: by ', coalesce(hostname, 'localhost'), ' (pgmta) with SQL id ', message_id,
    E';\r\n\t', to_char(clock_timestamp() AT TIME ZONE 'UTC', 'Dy, DD Mon YYYY HH24:MI:SS +0000'), E'\r\n');
COMMENT ON FUNCTION submit_trace IS 'The Received field of a submission (RFC 5321, section 4.4).';

CREATE FUNCTION submit_tls_optional(header text) RETURNS boolean LANGUAGE sql AS $$
    SELECT header ~ '(?in)^tls-required[ \t]*:([ \t]*\r\n)?[ \t]*no[ \t]*(?=\r|$)(?!\r\n[ \t])' COLLATE "C"
        AND regexp_count(header, '^tls-required[ \t]*:' COLLATE "C", 1, 'in') = 1
$$;
COMMENT ON FUNCTION submit_tls_optional IS
    'Whether a header has the only field TLS-Required: No (RFC 8689, section 3). pgmta/mail/header.py finds the same.';

INSERT INTO rights (object, role, privileges) VALUES
    ('submit_settings', 'pgmta_queued', 'SELECT, UPDATE (hostname)'),
    ('submit_settings', 'pgmta_operator', 'SELECT, UPDATE (hostname, message_size)'),
    ('submit_settings', 'pgmta_reader', 'SELECT'),
    -- as of messages, for FOR UPDATE
    ('idempotency_keys', 'pgmta_queued', 'SELECT, UPDATE (created_at), DELETE'),
    ('idempotency_keys', 'pgmta_operator', 'SELECT'),
    ('FUNCTION submit', 'pgmta_submit', 'EXECUTE');

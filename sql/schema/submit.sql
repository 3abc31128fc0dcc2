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
    tenant text DEFAULT '', on_failed text DEFAULT 'remove', once boolean DEFAULT false,
    wake boolean DEFAULT false, deadline timestamptz DEFAULT NULL, unsubscribe text DEFAULT NULL
) RETURNS bigint LANGUAGE plpgsql SECURITY DEFINER SET search_path = pgmta, pg_catalog, pg_temp
    SET standard_conforming_strings = on AS $$  -- all that it calls is compiled with these settings too
#variable_conflict use_variable
DECLARE
    message_id bigint;
    known bigint;
    scheduled timestamptz;
    header text COLLATE "C";
    message_id_header text;
    added text COLLATE "C";
    settings submit_settings;
    -- The collation of an argument is the caller's, who may compare addresses without case.
    sender_domain text := nullif(mailbox_domain(sender COLLATE "C"), 'sms');
    domains text[] := ARRAY[mailbox_domain(recipients[1] COLLATE "C")];
    chunks integer;
    octets integer;
    rows integer;
BEGIN
    -- PL/pgSQL prepares each expression anew in each transaction. So usual arguments pass by few of them.
    IF num_nulls(sender, content, priority, metadata, tenant, on_failed, once, wake) > 0 THEN
        PERFORM submit_refuse(CASE WHEN sender IS NULL THEN 'sender' WHEN content IS NULL THEN 'content'
            WHEN priority IS NULL THEN 'priority' WHEN metadata IS NULL THEN 'metadata'
            WHEN tenant IS NULL THEN 'tenant' WHEN on_failed IS NULL THEN 'on_failed'
            WHEN once IS NULL THEN 'once' ELSE 'wake' END, 'it is null');
    ELSIF num_nonnulls(send_at, key, deadline, unsubscribe) > 0 OR priority NOT BETWEEN 0 AND 9 OR metadata <> '{}'
            OR tenant <> '' COLLATE "C" OR on_failed <> 'remove' COLLATE "C" THEN
        SELECT * INTO metadata, scheduled
        FROM submit_options(send_at, priority, metadata, key, tenant COLLATE "C", on_failed, deadline, unsubscribe);
    END IF;
    IF cardinality(recipients) IS DISTINCT FROM 1 OR domains[1] IS NULL OR sender_domain IS NULL THEN
        SELECT * INTO recipients, sender_domain, domains FROM submit_envelope(sender COLLATE "C", recipients);
    END IF;
    SELECT * INTO settings FROM submit_settings;
    header := submit_header(content, settings.message_size);
    -- each submission opens a block of ids, so that smtpd's blocks never have this one
    message_id := next_message_id();
    IF num_nonnulls(key, unsubscribe) > 0 THEN
        IF unsubscribe IS NOT NULL AND header ~ '(?in)^list-unsubscribe(-post)?[ \t]*:' COLLATE "C" THEN
            PERFORM submit_refuse('content', 'it has List-Unsubscribe, and pgmta writes it for each recipient', NULL, 'Leave it out.');
        ELSIF key IS NOT NULL THEN
            known := submit_key(tenant, key, message_id, sha256(convert_to(jsonb_build_array(sender, recipients, priority,
                metadata - '_trace', on_failed, once, extract(epoch FROM send_at))::text, getdatabaseencoding()) || sha256(content)));
            IF known IS NOT NULL THEN RETURN known; END IF;
        END IF;
    END IF;
    message_id_header := CASE WHEN header ~ '(?in)^message-id[ \t]*:' COLLATE "C" THEN submit_message_id(header) END;
    added := submit_missing(header, settings.hostname);
    IF added <> '' THEN
        message_id_header := coalesce(message_id_header, substring(added FROM '<.*>'));
        content := convert_to(added, 'UTF8') || content;
    END IF;
    octets := octet_length(content);
    IF octets > 8096 THEN
        -- the content is read from TOAST once, not for each chunk
        chunks := submit_chunks(message_id, content || ''::bytea);
        content := '';
    END IF;
    rows := queue_put(
        ARRAY[new_message(id => message_id, size => octets, priority => priority::smallint,
            trace => submit_trace(settings.hostname, message_id), body => content, sender => sender,
            sender_domain => sender_domain, on_failed => on_failed, message_id_header => message_id_header, origin => 'sql',
            utf8 => concat(sender, array_to_string(recipients, '')) ~ '[^\u0001-\u007f]' COLLATE "C", chunks => chunks,
            tenant => tenant, once => once, submitted_by => acting(), tls_optional => submit_tls_optional(header),
            send_at => scheduled)],
        lone_rows(recipients, domains, metadata));
    IF wake AND scheduled IS NULL THEN PERFORM pgmta.notify_channel('pgmta_queue'); END IF;
    RETURN message_id;
END $$;
COMMENT ON FUNCTION submit IS
    'Puts a message into the queue, in the transaction of the caller, and returns its id. Content is that of RFC '
    '5322, each line with CRLF. docs/programs/sql.md has the arguments and errors.';

CREATE FUNCTION submit_chunks(message_id bigint, content bytea) RETURNS integer LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
    chunk CONSTANT integer := 8096;
    chunks integer := (octet_length(content) - 1) / chunk + 1;
BEGIN
    INSERT INTO message_chunks (message_id, position, data)
    SELECT message_id, number, substring(content FROM number * chunk + 1 FOR chunk)
    FROM generate_series(0, chunks - 1) AS number;
    RETURN chunks;
END $$;
COMMENT ON FUNCTION submit_chunks IS 'Stores content that is too large for its message row; returns the number of chunks.';

CREATE FUNCTION prove_earlier() RETURNS void LANGUAGE sql AS $$
    SELECT pg_logical_emit_message(true, 'pgmta', '')
$$;
COMMENT ON FUNCTION prove_earlier IS
    'Has the COMMIT of the caller wait for its standbys until they have all that this transaction sees. To be called before an '
    'answer that something is there already: the session that wrote it may have ended while its own COMMIT waited, and a '
    'transaction that writes nothing waits for nothing. It writes 96 octets of WAL and no row.';

CREATE FUNCTION submit_key(tenant text, key text, message_id bigint, fingerprint bytea) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
    first_one idempotency_keys;
BEGIN
    LOOP
        -- waits only for an open transaction that has the same key
        INSERT INTO idempotency_keys (tenant, key, message_id, fingerprint, submitted_by)
        VALUES (submit_key.tenant, submit_key.key, submit_key.message_id, submit_key.fingerprint, acting())
        ON CONFLICT ON CONSTRAINT idempotency_keys_pkey DO NOTHING;
        IF FOUND THEN RETURN NULL; END IF;
        SELECT k.* INTO first_one FROM idempotency_keys AS k
        WHERE k.tenant = submit_key.tenant AND k.key = submit_key.key;
        EXIT WHEN FOUND;  -- otherwise the key has expired meanwhile
    END LOOP;
    IF first_one.submitted_by <> acting() THEN
        PERFORM submit_refuse('key', 'another login has used it', NULL,
            'Give each login a tenant or a prefix for its keys.', 'unique_violation');
    ELSIF first_one.fingerprint <> fingerprint THEN
        PERFORM submit_refuse('key', 'it was used for another message',
            'Message ' || first_one.message_id || ' had it.', NULL, 'unique_violation');
    END IF;
    PERFORM prove_earlier();
    RETURN first_one.message_id;
END $$;
COMMENT ON FUNCTION submit_key IS
    'Takes a key for a message; returns null, or the id of the message that had it first. Raises an error if that '
    'was another message, or belongs to another role.';

-- in SQL, so that PostgreSQL puts the function into the expression of the caller
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
    SELECT header ~ '(?in)^tls-required[ \t]*:((\r\n)?[ \t])*no((\r\n)?[ \t])*(?=\r|$)(?!\r\n[ \t])' COLLATE "C"
        AND regexp_count(header, '^tls-required[ \t]*:' COLLATE "C", 1, 'in') = 1
$$;
COMMENT ON FUNCTION submit_tls_optional IS
    'Whether a header has the only field TLS-Required: No (RFC 8689, section 3). pgmta/mail/header.py finds the same.';

INSERT INTO rights (object, role, privileges) VALUES
    ('submit_settings', 'pgmta_queued', 'SELECT, UPDATE (hostname)'),
    ('submit_settings', 'pgmta_operator', 'SELECT, UPDATE (hostname, message_size)'),
    ('submit_settings', 'pgmta_reader', 'SELECT'),
    -- FOR UPDATE needs this right, as for the table messages
    ('idempotency_keys', 'pgmta_queued', 'SELECT, UPDATE (created_at), DELETE'),
    ('idempotency_keys', 'pgmta_operator', 'SELECT'),
    ('FUNCTION submit', 'pgmta_submit', 'EXECUTE');

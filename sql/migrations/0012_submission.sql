-- Mail from SQL in the caller's transaction, and one door for all mail: docs/decisions/0029-submission.md.
-- Every function that acts with the owner's rights has a search_path of its own.

-- 1. The one door: a group of messages with their rows.

CREATE FUNCTION queue_put(
    -- of each message
    ids bigint[], sizes bigint[], utf8 boolean[], chunks integer[], traces text[], bodies bytea[],
    message_id_headers text[],
    -- of each row
    message_ids bigint[], senders text[], sender_domains text[], recipients text[], domains text[],
    priorities smallint[], metadata text[], holds text[] DEFAULT NULL,
    -- more of each message, which its rows have too; null: the columns have their defaults
    tenants text[] DEFAULT NULL, on_failed text[] DEFAULT NULL, once boolean[] DEFAULT NULL, logins text[] DEFAULT NULL,
    envids text[] DEFAULT NULL, rets text[] DEFAULT NULL, requiretls boolean[] DEFAULT NULL,
    -- more of each row
    notifies text[] DEFAULT NULL, orcpts text[] DEFAULT NULL
) RETURNS void LANGUAGE plpgsql SECURITY DEFINER  -- callers set plan_cache_mode = force_generic_plan
    SET search_path = pgmta, pg_catalog, pg_temp AS $$
#variable_conflict use_column
BEGIN
    -- Chunks are written without a sync, so a crash before this statement can lose them.
    IF 0 < ANY (queue_put.chunks) THEN  -- mostly not, and a query costs what several rows do
        IF EXISTS (
            SELECT FROM unnest(ids, queue_put.chunks) AS message (id, number)
            WHERE number > 0
                AND number <> (SELECT count(*) FROM message_chunks WHERE message_id = message.id)
        ) THEN
            RAISE EXCEPTION 'chunks of a message are missing' USING
                ERRCODE = 'not_null_violation', TABLE = 'messages', COLUMN = 'chunks';
        END IF;
    END IF;
    -- The whole group fails if one id exists already, because the caller repeats a group then.
    WITH new_messages AS (
        INSERT INTO messages (id, size, utf8, chunks, trace, body, message_id_header, tenant,
            submitted_by, envid, ret, requiretls)
        SELECT id, size, utf8, chunks, trace, body, header, coalesce(tenant, ''), login, envid, ret,
            coalesce(requiretls, false)
        FROM unnest(ids, sizes, queue_put.utf8, queue_put.chunks, traces, bodies, message_id_headers, tenants,
                logins, envids, rets, queue_put.requiretls)
            AS message (id, size, utf8, chunks, trace, body, header, tenant, login, envid, ret, requiretls)
    )
    INSERT INTO queue (message_id, sender, sender_domain, recipient, domain, priority, metadata,
        status, hold_reason, held_by, held_at, tenant, on_failed, once, notify, orcpt)
    SELECT message_id, sender, sender_domain, recipient, domain, priority, metadata::jsonb,
        CASE WHEN hold IS NULL THEN 'QUEUED' ELSE 'HOLD' END, hold,
        CASE WHEN hold IS NOT NULL THEN 'smtpd' END, CASE WHEN hold IS NOT NULL THEN now() END,
        coalesce(tenants[place], ''), coalesce(queue_put.on_failed[place], 'hold'),
        coalesce(queue_put.once[place], false), notify, orcpt
    FROM unnest(message_ids, senders, sender_domains, recipients, domains, priorities, queue_put.metadata, holds,
            notifies, orcpts)
        AS row (message_id, sender, sender_domain, recipient, domain, priority, metadata, hold, notify, orcpt)
    CROSS JOIN LATERAL array_position(ids, message_id) AS place;
END $$;
COMMENT ON FUNCTION queue_put IS
    'Stores a group of messages with all their rows. It checks nothing. '
    'The whole group fails if an id exists already, or if chunks of a message are missing.';

-- 2. Each row has a message.

-- A foreign key took 17 of about 220 us of a message's way (docs/decisions/0029), because PostgreSQL looks into each
-- leaf for each message that goes. All mail of smtpd and of submit() comes in with its message, in one
-- transaction. So the key is checked for rows that a program inserts itself, for rows that change their
-- message, and for messages that something else than messages_refcount deletes.
DO $$
DECLARE
    key record;
BEGIN
    FOR key IN
        SELECT conname FROM pg_constraint
        WHERE contype = 'f' AND conrelid = 'queue'::regclass AND confrelid = 'messages'::regclass
    LOOP
        EXECUTE format('ALTER TABLE queue DROP CONSTRAINT %I', key.conname);
    END LOOP;
END $$;
CREATE FUNCTION queue_message_present() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pgmta, pg_catalog, pg_temp AS $$
BEGIN
    -- the lock makes messages_refcount wait, and then it sees this row
    PERFORM FROM messages WHERE id = NEW.message_id FOR KEY SHARE;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'there is no message %', NEW.message_id USING
            ERRCODE = 'foreign_key_violation', SCHEMA = 'pgmta', TABLE = 'queue', COLUMN = 'message_id';
    END IF;
    RETURN NULL;
END $$;
COMMENT ON FUNCTION queue_message_present() IS 'Refuses a row without a message.';
CREATE TRIGGER queue_message AFTER INSERT ON queue FOR EACH ROW
    WHEN (NEW.lease_owner IS NOT NULL) EXECUTE FUNCTION queue_message_present();
COMMENT ON TRIGGER queue_message ON queue IS
    'A row that a program inserts by itself has a message: queue_sender_domain_func marks such rows.';
CREATE TRIGGER queue_message_changed AFTER UPDATE OF message_id ON queue FOR EACH ROW
    WHEN (OLD.message_id IS DISTINCT FROM NEW.message_id) EXECUTE FUNCTION queue_message_present();
COMMENT ON TRIGGER queue_message_changed ON queue IS 'The same for a row that gets another message.';

CREATE FUNCTION messages_in_use() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pgmta, pg_catalog, pg_temp AS $$
BEGIN
    IF TG_OP = 'TRUNCATE' AND EXISTS (SELECT FROM queue) THEN
        RAISE EXCEPTION 'rows of the queue refer to messages' USING
            ERRCODE = 'foreign_key_violation', SCHEMA = 'pgmta', TABLE = 'messages',
            HINT = 'Truncate both tables in one statement.';
    ELSIF TG_OP = 'DELETE' AND (SELECT true FROM queue WHERE message_id = OLD.id LIMIT 1) THEN
        RAISE EXCEPTION 'rows of the queue refer to message %', OLD.id USING
            ERRCODE = 'foreign_key_violation', SCHEMA = 'pgmta', TABLE = 'messages',
            HINT = 'Delete the rows of the queue: the body goes with the last one.';
    END IF;
    RETURN NULL;
END $$;
COMMENT ON FUNCTION messages_in_use() IS 'Refuses to delete a body that a row needs.';
CREATE TRIGGER messages_in_use AFTER DELETE ON messages FOR EACH ROW
    WHEN (pg_trigger_depth() = 0) EXECUTE FUNCTION messages_in_use();
COMMENT ON TRIGGER messages_in_use ON messages IS 'No mistake deletes a body; messages_refcount has looked itself.';
CREATE TRIGGER messages_truncated AFTER TRUNCATE ON messages EXECUTE FUNCTION messages_in_use();
COMMENT ON TRIGGER messages_truncated ON messages IS 'The same for TRUNCATE.';
REVOKE EXECUTE ON FUNCTION queue_message_present(), messages_in_use() FROM PUBLIC;

CREATE OR REPLACE FUNCTION messages_refcount_func() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER
    SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off
    SET search_path = pg_catalog, pg_temp
    AS $$
DECLARE
    ids bigint[];
    large bigint[];
BEGIN
    IF TG_LEVEL = 'ROW' OR TG_OP <> 'DELETE' THEN
        RETURN coalesce(NEW, OLD);
    END IF;
    IF current_setting('transaction_isolation') IN ('repeatable read', 'serializable') THEN
        RETURN NULL;  -- it can't see a row that came meanwhile, so upkeep removes the body later
    END IF;
    SELECT array_agg(DISTINCT message_id) INTO ids FROM gone;
    -- Locks in id order: of two transactions that delete the last two rows of a message, the
    -- second waits here and then sees what the first has left.
    PERFORM FROM pgmta.messages WHERE id = ANY (ids) ORDER BY id FOR UPDATE;
    -- No join, which NOT EXISTS would be: a partition that was empty when the plan was made would
    -- later be read as a whole for each message (docs/decisions/0005).
    ids := ARRAY(SELECT one FROM unnest(ids) AS one
        WHERE (SELECT true FROM pgmta.queue AS q WHERE q.message_id = one LIMIT 1) IS NULL);
    WITH unreferenced AS (
        DELETE FROM pgmta.messages WHERE id = ANY (ids) RETURNING id, chunks
    )
    SELECT array_agg(id) INTO large FROM unreferenced WHERE chunks > 0;
    IF large IS NOT NULL THEN
        DELETE FROM pgmta.message_chunks WHERE message_id = ANY (large);
    END IF;
    RETURN NULL;
END $$;

-- 3. What an address (migration 0013) and a content have to be. Python accepts all that SQL accepts
-- (pgmta/newlines.py; tests/sql/test_submit_values.py).

CREATE FUNCTION submit_refuse(argument text, reason text, detail text DEFAULT NULL, hint text DEFAULT NULL,
    state text DEFAULT 'invalid_parameter_value') RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    hint := coalesce(hint, 'docs/sql.md has the arguments: "Submit in your transaction".');
    IF detail IS NULL THEN  -- an option of RAISE can't be null
        RAISE EXCEPTION '%: %', argument, reason USING ERRCODE = state, COLUMN = argument, HINT = hint;
    END IF;
    RAISE EXCEPTION '%: %', argument, reason
        USING ERRCODE = state, COLUMN = argument, HINT = hint, DETAIL = detail;
END $$;
COMMENT ON FUNCTION submit_refuse IS 'Raises the error of a bad argument, with its name as COLUMN.';

CREATE FUNCTION submit_text(argument text, value text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM convert_to(value, 'UTF8');
EXCEPTION WHEN untranslatable_character OR character_not_in_repertoire THEN
    PERFORM submit_refuse(argument, 'it has octets that are no character');
END $$;
COMMENT ON FUNCTION submit_text IS
    'Raises the error of text that UTF-8 has no character for: the worker that reads it would stop.';

CREATE FUNCTION submit_refuse_mailbox(argument text, address text, place text) RETURNS void LANGUAGE plpgsql AS $$
DECLARE  -- variables, because CONTEXT shows a whole statement
    too_long boolean := octet_length(address) > 254;
    head text := left(address, 255);
    domain text := split_part(head, '@', -1);
    reason text := CASE WHEN address IS NULL THEN 'an address is null'
        WHEN too_long THEN 'an address is over 254 octets'
        WHEN head ~ '[\u0001-\u001f\u007f]' COLLATE "C" THEN 'an address has a control character'
        WHEN head !~ '@' THEN 'an address has no domain'
        WHEN length(head) - length(domain) > 65 THEN 'a local part is over 64 characters'
        ELSE 'an address is malformed' END;
    detail text := place || coalesce(to_json(left(head, 100))::text, 'null');
    hint text := CASE WHEN too_long THEN NULL
        WHEN domain ~ '[^\u0001-\u007f]' COLLATE "C" THEN 'Write the domain in A-labels: xn--…'
        WHEN head ~ '[<>,; ]' THEN 'Give the mailbox alone: no display name, no angle brackets.' END;
BEGIN
    PERFORM submit_refuse(argument, reason, detail, hint);
END $$;
COMMENT ON FUNCTION submit_refuse_mailbox IS 'Raises the error of text that is no mailbox.';

CREATE FUNCTION submit_content(content bytea, size_limit bigint) RETURNS text LANGUAGE plpgsql AS $$
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
            'Each line ends with CR LF: replace(content, E''\n'', E''\r\n'').');
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
COMMENT ON FUNCTION submit_content(bytea, bigint) IS
    'Raises the error of content that can''t be a message. Returns the Message-ID of the header; null if it '
    'has none, or one that is not printable ASCII of at most 998 characters.';

-- 4. Keys: a repeated submission gets the id of the first one.

CREATE TABLE idempotency_keys (
    tenant text COLLATE "C",
    key text COLLATE "C",
    message_id bigint NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    fingerprint bytea NOT NULL,
    submitted_by text NOT NULL,
    PRIMARY KEY (tenant, key)
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_insert_threshold = -1);
CREATE INDEX idempotency_keys_created_at ON idempotency_keys (created_at);
COMMENT ON TABLE idempotency_keys IS
    'Keys of submissions of the last day (retention.keys in queued.yaml): a repetition gets the first id.';
COMMENT ON COLUMN idempotency_keys.tenant IS 'Argument tenant; each tenant has its own keys.';
COMMENT ON COLUMN idempotency_keys.key IS 'Argument key.';
COMMENT ON COLUMN idempotency_keys.message_id IS 'Id of the first submission; its message may be gone.';
COMMENT ON COLUMN idempotency_keys.created_at IS 'When the transaction of the first submission began.';
COMMENT ON COLUMN idempotency_keys.fingerprint IS 'SHA-256 of all that makes the message.';
COMMENT ON COLUMN idempotency_keys.submitted_by IS 'Login of the first submission.';
COMMENT ON INDEX idempotency_keys_created_at IS 'Keys whose time is over.';

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
COMMENT ON FUNCTION submit_key(text, text, bigint, bytea) IS
    'Takes a key for a message; returns null, or the id of the message that had it first. Raises an '
    'error if that was another message, or belongs to another login.';

REVOKE EXECUTE ON FUNCTION queue_put, submit_refuse, submit_text, submit_refuse_mailbox, submit_content, submit_key
    FROM PUBLIC;

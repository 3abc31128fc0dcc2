-- Many mails by one call: submit_mails(), its calls, and the trace context in metadata.

SET LOCAL check_function_bodies = off;  -- functions may name later ones

CREATE TABLE submit_calls (
    call uuid PRIMARY KEY,
    login text NOT NULL,
    fingerprint bigint NOT NULL,
    called_at timestamptz NOT NULL DEFAULT now(),
    ids bigint[],
    problems jsonb
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_insert_threshold = -1);
COMMENT ON TABLE submit_calls IS
    'Calls of submit_mails() of the last hour with their answers: a repetition gets the answer of the first.';
COMMENT ON COLUMN submit_calls.call IS 'Argument call.';
COMMENT ON COLUMN submit_calls.login IS 'Login of the first call.';
COMMENT ON COLUMN submit_calls.fingerprint IS 'Hash of the arguments mails and contents: others under the same call are a mistake.';
COMMENT ON COLUMN submit_calls.called_at IS 'When the transaction of the first call began.';
COMMENT ON COLUMN submit_calls.ids IS 'Its answer: the message id of each mail, null for a refused one.';
COMMENT ON COLUMN submit_calls.problems IS 'Its answer: the refused mails with their errors; null if there are none.';

CREATE INDEX submit_calls_called_at ON submit_calls (called_at);
COMMENT ON INDEX submit_calls_called_at IS 'Calls whose time is over.';

CREATE FUNCTION submit_mails(
    mails jsonb, contents bytea[] DEFAULT '{}', call uuid DEFAULT NULL, wake boolean DEFAULT false,
    OUT ids bigint[], OUT problems jsonb
) LANGUAGE plpgsql SECURITY DEFINER SET search_path = pgmta, pg_catalog, pg_temp
    SET standard_conforming_strings = on AS $$  -- all that it calls is compiled with these settings too
#variable_conflict use_variable
DECLARE
    mail jsonb;
    place integer;
    message_id bigint;
    problem jsonb;
    refused jsonb[] := '{}';
BEGIN
    IF jsonb_typeof(mails) IS DISTINCT FROM 'array' THEN
        PERFORM submit_refuse('mails', 'it is no JSON array', NULL, 'Give a list of objects: docs/sql.md has their keys.');
    ELSIF wake IS NULL THEN
        PERFORM submit_refuse('wake', 'it is null');
    END IF;
    WHILE call IS NOT NULL LOOP
        -- waits for an open transaction that has the call, and for no other
        INSERT INTO submit_calls (call, login, fingerprint) VALUES (call, session_user, call_fingerprint(mails, contents))
        ON CONFLICT ON CONSTRAINT submit_calls_pkey DO NOTHING;
        EXIT WHEN FOUND;
        SELECT c.ids, c.problems INTO ids, problems FROM submit_called(call, call_fingerprint(mails, contents)) AS c;
        IF ids IS NOT NULL THEN RETURN; END IF;  -- else it was removed meanwhile, because its time is over
    END LOOP;
    IF jsonb_array_length(mails) = 1 THEN
        ids := ARRAY[submit_plain_mail(mails -> 0)];
    ELSE
        ids := coalesce(submit_plain_mails(mails), '{}');
    END IF;
    IF array_position(ids, NULL) > 0 THEN  -- those that are not plain, or bad
        FOR mail, place IN
            SELECT each.mail, n FROM jsonb_array_elements(mails) WITH ORDINALITY AS each (mail, n) WHERE ids[n] IS NULL
        LOOP
            SELECT t.id, t.problem INTO message_id, problem FROM submit_tried(mail, contents) AS t;
            ids[place] := message_id;
            IF problem IS NOT NULL THEN
                refused := refused || (jsonb_build_object('index', place - 1) || problem);
            END IF;
        END LOOP;
        problems := nullif(to_jsonb(refused), '[]');
    END IF;
    IF call IS NOT NULL THEN
        UPDATE submit_calls AS c SET ids = submit_mails.ids, problems = submit_mails.problems
        WHERE c.call = submit_mails.call;
    END IF;
    IF wake AND cardinality(array_remove(ids, NULL)) > 0 THEN PERFORM pg_notify('pgmta_queue', ''); END IF;
END $$;
COMMENT ON FUNCTION submit_mails IS
    'Puts mails into the queue, in the transaction of the caller. Returns the id of each, and the errors of those that '
    'are refused: the others are stored. docs/sql.md has the keys of a mail.';

CREATE FUNCTION call_fingerprint(mails jsonb, contents bytea[]) RETURNS bigint IMMUTABLE
RETURN jsonb_hash_extended(mails, 0) # coalesce(hash_array_extended(contents, 0), 0);
COMMENT ON FUNCTION call_fingerprint IS 'submit_calls.fingerprint of a call.';

CREATE FUNCTION submit_called(call uuid, fingerprint bigint, OUT ids bigint[], OUT problems jsonb) LANGUAGE plpgsql AS $$
DECLARE
    first_one submit_calls;
BEGIN
    SELECT c.* INTO first_one FROM submit_calls AS c WHERE c.call = submit_called.call;
    IF first_one.login <> session_user THEN
        PERFORM submit_refuse('call', 'another login has used it', NULL, 'Make a new UUID for each call.', 'unique_violation');
    ELSIF first_one.fingerprint <> submit_called.fingerprint THEN
        PERFORM submit_refuse('call', 'it was used for other mails', NULL, 'Make a new UUID for each call.', 'unique_violation');
    END IF;
    ids := first_one.ids;
    problems := first_one.problems;
END $$;
COMMENT ON FUNCTION submit_called IS
    'The answer of the first call with this UUID. Raises an error if that was of another login, or with other mails.';

CREATE FUNCTION submit_tried(mail jsonb, contents bytea[], OUT id bigint, OUT problem jsonb)
LANGUAGE plpgsql AS $$
DECLARE
    argument text;
    reason text;
    details text;
    advice text;
BEGIN
    id := submit_object(mail, contents);
-- Errors about a mail. All others end the call: PostgreSQL can't store any mail then, or the transaction is over.
EXCEPTION WHEN data_exception OR program_limit_exceeded OR unique_violation THEN
    GET STACKED DIAGNOSTICS argument = COLUMN_NAME, reason = MESSAGE_TEXT, details = PG_EXCEPTION_DETAIL,
        advice = PG_EXCEPTION_HINT;
    IF argument = '' AND sqlstate = '23505' THEN RAISE; END IF;  -- of a table, and not of submit_refuse()
    problem := jsonb_build_object('argument', coalesce(nullif(argument, ''), 'mails'), 'code', sqlstate,
        'message', reason, 'detail', nullif(details, ''), 'hint', nullif(advice, ''));
END $$;
COMMENT ON FUNCTION submit_tried IS 'Submits one mail, and returns its id, or the error that is about this mail.';

INSERT INTO rights (object, role, privileges) VALUES
    ('FUNCTION submit_mails', 'pgmta_submit', 'EXECUTE'),
    -- as of messages, for FOR UPDATE
    ('submit_calls', 'pgmta_queued', 'SELECT (call, called_at), UPDATE (called_at), DELETE'),
    ('submit_calls', 'pgmta_operator', 'SELECT');

-- is_plain() decides. It takes no mail that submit_mail() refuses, and leaves it all that is not common. Both store the
-- same rows (tests/sql/test_plain_mails.py).
--
-- The functions read JSON texts: mail -> 'tenant' with its quotes, and not mail ->> 'tenant'. A pattern with the quotes
-- refuses numbers, lists and escapes by itself. A key that is missing is NULL, and JSON null is the text null, which no
-- pattern takes. The functions of language sql are STABLE and one SELECT each, so PostgreSQL makes them a part of the
-- expression of the caller: a call of them costs nothing. A pattern is a constant then, also one made by replace().

CREATE FUNCTION plain_mailboxes(mail jsonb) RETURNS text STABLE LANGUAGE sql AS $$
    SELECT concat(mail -> 'from', mail -> 'reply_to', '|', mail -> 'sender', replace(concat(
        nullif(mail -> 'to', '[]'), nullif(mail -> 'cc', '[]'), nullif(mail -> 'bcc', '[]')), '"]["', '", "'))
$$;
COMMENT ON FUNCTION plain_mailboxes IS
    'All mailboxes of a mail as JSON texts: From and Reply-To, |, the sender, and one list of the recipients. For example '
    '"Shop <shop@a.example>""help@a.example"|"bounce@a.example"["ann@b.example", "bob@b.example"].';

CREATE FUNCTION without_names(mailboxes text) RETURNS text STABLE LANGUAGE sql AS $$
    SELECT CASE WHEN strpos(mailboxes, '<') > 0
        THEN regexp_replace(mailboxes, '"[^"<>]*<([^"<>]*)>"' COLLATE "C", '"\1"', 'g') ELSE mailboxes END
$$;
COMMENT ON FUNCTION without_names IS 'JSON texts of mailboxes with the addresses alone.';

CREATE FUNCTION mailbox_pairs(list text) RETURNS text STABLE LANGUAGE sql AS $$
    SELECT CASE WHEN strpos(list, '<') > 0
        THEN regexp_replace(list, '"(([^"<>]*[^"<> ])? *<)?([^"<>]*)>?"' COLLATE "C", '["\2", "\3"]', 'g')
        ELSE '[["", ' || substr(replace(list, '", "', '"], ["", "'), 2) || ']' END
$$;
COMMENT ON FUNCTION mailbox_pairs IS
    'A JSON list of mailboxes as one of pairs of name and address, as submit_mailboxes() makes it: ["Ann <ann@b.example>"] '
    'is [["Ann", "ann@b.example"]].';

CREATE FUNCTION is_plain(mail jsonb, mailboxes text, message_size bigint) RETURNS boolean STABLE LANGUAGE sql AS $$
    SELECT length(mailboxes) < 4000  -- many recipients take their time in any way
        AND without_names(mailboxes) ~ (replace('^("ADDRESS")*\|"ADDRESS"\["ADDRESS"(, "ADDRESS")*\]$', 'ADDRESS',
            '[A-Za-z0-9_+=-]+(\.[A-Za-z0-9_+=-]+)*@[a-z0-9]+((-+|\.)[a-z0-9]+)*') COLLATE "C")
        -- a name is of at most 63 characters, without escapes and without a blank in front
        AND mailboxes !~ '[^"<>]{64}|[\\\u007f]|" ' COLLATE "C"
        AND strpos(mail ->> 'sender', '<') = 0
        AND mail - '{sender,to,cc,bcc,reply_to,from,subject,body,html,priority,metadata,tenant,on_failed,once}'::text[] = '{}'
        AND length((mail -> 'subject')::text) <= 2000
        -- a character that is no blank, and no escape but \"
        AND (mail -> 'subject')::text ~ '^"([^\\\u007f]|\\")*[^ "\\\u007f]([^\\\u007f]|\\")*"$' COLLATE "C"
        AND concat(left((mail -> 'body')::text, 1), left((mail -> 'html')::text, 1)) IN ('"', '""')  -- one or both
        AND coalesce(octet_length((mail -> 'priority')::text) = 1, true)  -- a digit
        AND coalesce(plain_metadata((mail -> 'metadata')::text), true)
        AND coalesce(length((mail -> 'tenant')::text) <= 66
            AND (mail -> 'tenant')::text ~ '^"[A-Za-z0-9][A-Za-z0-9._@+-]*"$' COLLATE "C", true)
        AND coalesce((mail -> 'on_failed')::text IN ('"hold"', '"remove"', '"bounce"'), true)
        AND coalesce((mail -> 'once')::text IN ('true', 'false'), true)
        -- the text of an octet in JSON has at most 6, and so has a mailbox as a pair
        AND pg_column_size(mail) * 6 < least(message_size, 4194304)
        AND getdatabaseencoding() = 'UTF8'
$$;
COMMENT ON FUNCTION is_plain IS
    'Whether a mail with these plain_mailboxes() is good and common; false or null of other mail, which may be bad.';

CREATE FUNCTION plain_metadata(metadata text) RETURNS boolean STABLE LANGUAGE sql AS $$
    -- flat, and of the keys with _ only _trace
    SELECT octet_length(metadata) <= 4000 AND metadata ~ '^\{[^][{}]*\}$' COLLATE "C" AND (strpos(metadata, '"_') = 0
        OR metadata !~ '"_(?!trace": "00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")' COLLATE "C")
$$;
COMMENT ON FUNCTION plain_metadata IS 'Whether metadata of plain mail is good without a look at its values.';

CREATE FUNCTION plain_params(mail jsonb) RETURNS text STABLE LANGUAGE sql AS $$
    -- a list of no recipients is no key: || of NULL is NULL, and concat() leaves it out
    SELECT concat('{"from": ', substr(mailbox_pairs('[' || coalesce(mail -> 'from', mail -> 'sender')::text), 2),
        ', "to": ' || mailbox_pairs(nullif((mail -> 'to')::text, '[]')),
        ', "cc": ' || mailbox_pairs(nullif((mail -> 'cc')::text, '[]')),
        ', "reply_to": ' || mailbox_pairs('[' || (mail -> 'reply_to')::text || ']'),
        ', "subject": ', mail -> 'subject', ', "body": ' || (mail -> 'body')::text,
        ', "html": ' || (mail -> 'html')::text, '}')
$$;
COMMENT ON FUNCTION plain_params IS 'messages.params of a plain mail, as text that is as long as that of the jsonb.';

CREATE FUNCTION submit_plain_mail(mail jsonb) RETURNS bigint LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
    mailboxes text := plain_mailboxes(mail);
    hostname text;
    message_size bigint;
    params text;
    message_id bigint;
    sender text := mail ->> 'sender';
    address text;
    recipients text[] := '{}';
    domains text[] := '{}';
    rows integer;
BEGIN
    SELECT s.hostname, s.message_size INTO hostname, message_size FROM submit_settings AS s;
    params := CASE WHEN is_plain(mail, mailboxes, message_size) THEN plain_params(mail) END;
    IF params IS NULL THEN RETURN NULL; END IF;
    FOREACH address IN ARRAY string_to_array(btrim(split_part(without_names(mailboxes), '[', 2), '"]'), '", "') LOOP
        IF address <> ALL (recipients) THEN
            recipients := recipients || address;
            domains := domains || split_part(address, '@', 2);
        END IF;
    END LOOP;
    message_id := nextval('message_ids');
    -- an assignment, because PERFORM runs a query, which takes longer
    rows := queue_put(ARRAY[message_id], ARRAY[octet_length(params)], ARRAY[submit_trace(hostname, message_id)],
        ARRAY[''::bytea], ARRAY[plain_message_id(message_id, hostname)], '{sql}', ARRAY[sender],
        ARRAY[split_part(sender, '@', 2)], ARRAY[coalesce((mail ->> 'priority')::smallint, '5')],
        array_fill(1, ARRAY[cardinality(recipients)]), recipients, domains, tenants => ARRAY[mail ->> 'tenant'],
        on_failed => ARRAY[mail ->> 'on_failed'], once => ARRAY[(mail ->> 'once')::boolean], logins => ARRAY[session_user],
        rets => '{HDRS}', metadata => array_fill(mail ->> 'metadata', ARRAY[cardinality(recipients)]),
        params => ARRAY[params::jsonb]);
    RETURN message_id;
END $$;
COMMENT ON FUNCTION submit_plain_mail IS
    'submit_plain_mails() of one mail, which has to be quick alone: PL/pgSQL, because a query takes longer to begin.';

CREATE FUNCTION submit_plain_mails(mails jsonb) RETURNS bigint[] LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    ids bigint[];
    rows integer;
    slice jsonb;
BEGIN
    IF jsonb_array_length(mails) > 1000 THEN  -- PostgreSQL looks for a text in an array from its beginning
        FOR slice IN
            SELECT jsonb_agg(mail ORDER BY place) FROM jsonb_array_elements(mails) WITH ORDINALITY AS each (mail, place)
            GROUP BY (place - 1) / 1000 ORDER BY (place - 1) / 1000
        LOOP
            ids := ids || submit_plain_mails(slice);
        END LOOP;
        RETURN ids;
    END IF;
    -- OFFSET 0: what a subquery computes is computed once, and not wherever it is named
    WITH judged AS MATERIALIZED (
        SELECT mail, mailboxes, params, CASE WHEN params IS NOT NULL THEN nextval('message_ids') END AS id
        FROM (
            SELECT *, CASE WHEN is_plain(mail, mailboxes, (SELECT message_size FROM submit_settings))
                THEN plain_params(mail) END AS params
            FROM (
                SELECT mail, plain_mailboxes(mail) AS mailboxes FROM jsonb_array_elements(mails) AS each (mail) OFFSET 0
            ) AS given OFFSET 0
        ) AS made
    ), numbered AS MATERIALIZED (
        SELECT id, mail, params, mail ->> 'sender' AS sender, row_number() OVER ()::integer AS number,
            string_to_array(btrim(split_part(without_names(mailboxes), '[', 2), '"]'), '", "') AS addresses
        FROM judged WHERE id IS NOT NULL
    ), each_message AS (
        SELECT count(*)::integer AS number, array_agg(id) AS ids, array_agg(octet_length(params)::bigint) AS sizes,
            array_agg(submit_trace(hostname, id)) AS traces, array_agg(plain_message_id(id, hostname)) AS message_ids,
            array_agg(sender) AS senders, array_agg(split_part(sender, '@', 2)) AS sender_domains,
            array_agg(coalesce((mail ->> 'priority')::smallint, '5')) AS priorities, array_agg(mail ->> 'tenant') AS tenants,
            array_agg(mail ->> 'on_failed') AS on_failed, array_agg((mail ->> 'once')::boolean) AS once,
            array_agg(params::jsonb) AS params
        FROM numbered, submit_settings
    ), each_row AS (
        SELECT array_agg(number) AS numbers, array_agg(address) AS recipients,
            array_agg(split_part(address, '@', 2)) AS domains, array_agg(metadata) AS metadata
        FROM (
            SELECT number, mail ->> 'metadata' AS metadata, addresses, unnest(addresses) AS address,
                generate_subscripts(addresses, 1) AS place
            FROM numbered OFFSET 0
        ) AS each
        WHERE array_position(addresses, address) = place  -- each recipient once
    )
    SELECT (SELECT array_agg(id) FROM judged), (
        SELECT queue_put(m.ids, m.sizes, m.traces, array_fill(''::bytea, ARRAY[number]), m.message_ids,
            array_fill('sql'::text, ARRAY[number]), m.senders, m.sender_domains, m.priorities, r.numbers, r.recipients,
            r.domains, tenants => m.tenants, on_failed => m.on_failed, once => m.once,
            logins => array_fill(session_user::text, ARRAY[number]), rets => array_fill('HDRS'::text, ARRAY[number]),
            metadata => r.metadata, params => m.params)
        FROM each_message AS m, each_row AS r WHERE number > 0)
    INTO ids, rows;
    RETURN ids;
END $$;
COMMENT ON FUNCTION submit_plain_mails IS
    'Puts the plain mails of a JSON array into the queue. Returns the id of each in order, null of one that is not plain.';

CREATE FUNCTION plain_message_id(id bigint, hostname text) RETURNS text LANGUAGE sql AS $$
    SELECT concat('<', id, '.', right(replace(gen_random_uuid()::text, '-', ''), 16), '@', coalesce(hostname, 'localhost'), '>')
$$;
COMMENT ON FUNCTION plain_message_id IS 'The Message-ID of a plain mail, as submit_composed() makes it.';

CREATE FUNCTION submit_object(mail jsonb, contents bytea[]) RETURNS bigint LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
    files submit_attachment[];
    send_at timestamptz;
    deadline timestamptz;
    priority integer;
    metadata jsonb := coalesce(nullif(mail -> 'metadata', 'null'), '{}');
    tenant text := coalesce(mail ->> 'tenant', '');
    on_failed text := coalesce(mail ->> 'on_failed', 'hold');
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
            once, false, deadline);
    ELSIF mail ->> 'content' IS NOT NULL THEN
        RETURN submit(mail ->> 'sender', json_texts(mail -> 'recipients'),
            submit_octets('content', mail -> 'content', contents), send_at, priority, metadata, mail ->> 'key', tenant,
            on_failed, once, false, deadline);
    END IF;
    RETURN submit_mail(mail ->> 'sender', json_texts(mail -> 'to'), mail ->> 'subject', mail ->> 'body',
        mail ->> 'html', json_texts(mail -> 'cc'), json_texts(mail -> 'bcc'), mail ->> 'reply_to',
        coalesce(nullif(mail -> 'headers', 'null'), '{}'), files, mail ->> 'from', send_at, priority, metadata,
        mail ->> 'key', tenant, on_failed, once, false, deadline);
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
            "tenant": "text", "on_failed": "text", "once": "boolean"}'
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
        WHEN value = 'null' THEN NULL  -- as if it were missing
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
            made := made || (file ->> 'name', file ->> 'type', submit_octets('attachments', file -> 'content', contents),
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
            SELECT substr(concat(' ', lower(left(word, 100)), ' '), n, 2) FROM generate_series(1, length(left(word, 100)) + 1) AS n
            INTERSECT SELECT substr(concat(' ', each, ' '), n, 2) FROM generate_series(1, length(each) + 1) AS n
        ) AS common) AS pairs
    WHERE number * 4 >= length(left(word, 100)) + length(each) + 2
    ORDER BY number * 2.0 / (length(left(word, 100)) + length(each) + 2) DESC, each LIMIT 1
$$;
COMMENT ON FUNCTION nearest_word IS 'The word that has most pairs of neighbouring letters in common with another; null if none has half.';

-- metadata may have _trace, which does not make another message of a repetition
CREATE OR REPLACE FUNCTION submit_options(
    send_at timestamptz, priority integer, INOUT metadata jsonb, key text, tenant text, on_failed text,
    deadline timestamptz, OUT scheduled timestamptz
) LANGUAGE plpgsql AS $$
DECLARE
    bad text;
BEGIN
    IF send_at IS NOT NULL THEN
        scheduled := submit_send_at(send_at);
    END IF;
    IF priority NOT BETWEEN 0 AND 9 THEN
        PERFORM submit_refuse('priority', 'it is not from 0 (first) to 9', format('It is %s.', priority));
    END IF;
    IF on_failed NOT IN ('hold', 'remove', 'bounce') THEN
        PERFORM submit_refuse('on_failed', 'it is neither hold nor remove nor bounce');
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
                WHERE starts_with(name, '_') AND name NOT IN ('_partid', '_deadline', '_trace'));
        IF bad IS NOT NULL THEN
            PERFORM submit_refuse('metadata', 'a key begins with _', 'Key: ' || to_json(left(bad, 100)),
                'Such keys belong to pgmta; only _partid, _deadline and _trace may be given.');
        ELSIF jsonb_typeof(metadata -> '_partid') NOT IN ('string', 'number')
                OR length(metadata ->> '_partid') > 100 THEN
            PERFORM submit_refuse('metadata', '_partid is no text of at most 100 characters');
        ELSIF metadata ? '_deadline' AND NOT deadline_valid(metadata -> '_deadline') THEN
            PERFORM submit_refuse('metadata', '_deadline is no time of RFC 3339', NULL,
                'Write for example 2026-01-31T09:30:00Z.');
        ELSIF metadata ? '_trace' AND (jsonb_typeof(metadata -> '_trace') <> 'string' OR metadata ->> '_trace'
                !~ '^00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}$' COLLATE "C") THEN
            PERFORM submit_refuse('metadata', '_trace is no traceparent of W3C Trace Context', NULL,
                'Write for example 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01.');
        END IF;
    END IF;
    IF deadline IS NOT NULL THEN
        IF metadata ? '_deadline' THEN
            PERFORM submit_refuse('deadline', 'metadata has _deadline too', NULL, 'Give one of them.');
        ELSIF deadline <= scheduled THEN
            PERFORM submit_refuse('deadline', 'it is not after send_at', NULL, 'The mail would never be sent.');
        END IF;
        metadata := metadata || jsonb_build_object('_deadline', submit_deadline(deadline));
    END IF;
    IF getdatabaseencoding() <> 'UTF8' THEN
        PERFORM submit_text('key', key), submit_text('metadata', metadata::text);
    END IF;
END $$;

CREATE OR REPLACE FUNCTION submit(
    sender text, recipients text[], content bytea, send_at timestamptz DEFAULT NULL,
    priority integer DEFAULT 5, metadata jsonb DEFAULT '{}', key text DEFAULT NULL,
    tenant text DEFAULT '', on_failed text DEFAULT 'hold', once boolean DEFAULT false,
    wake boolean DEFAULT false, deadline timestamptz DEFAULT NULL
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
    sender_domain text := mailbox_domain(sender COLLATE "C");
    domains text[] := ARRAY[mailbox_domain(recipients[1] COLLATE "C")];
    chunks integer[];
    octets integer;
    rows integer;
BEGIN
    -- PL/pgSQL prepares each expression anew in each transaction. So usual arguments pass by few of them.
    IF num_nulls(sender, content, priority, metadata, tenant, on_failed, once, wake) > 0 THEN
        PERFORM submit_refuse(CASE WHEN sender IS NULL THEN 'sender' WHEN content IS NULL THEN 'content'
            WHEN priority IS NULL THEN 'priority' WHEN metadata IS NULL THEN 'metadata'
            WHEN tenant IS NULL THEN 'tenant' WHEN on_failed IS NULL THEN 'on_failed'
            WHEN once IS NULL THEN 'once' ELSE 'wake' END, 'it is null');
    ELSIF num_nonnulls(send_at, key, deadline) > 0 OR priority NOT BETWEEN 0 AND 9 OR metadata <> '{}'
            OR tenant <> '' COLLATE "C" OR on_failed <> 'hold' COLLATE "C" THEN
        SELECT * INTO metadata, scheduled
        FROM submit_options(send_at, priority, metadata, key, tenant COLLATE "C", on_failed, deadline);
    END IF;
    IF cardinality(recipients) IS DISTINCT FROM 1 OR domains[1] IS NULL OR sender_domain IS NULL THEN
        SELECT * INTO recipients, sender_domain, domains FROM submit_envelope(sender COLLATE "C", recipients);
    END IF;
    SELECT * INTO settings FROM submit_settings;
    header := submit_header(content, settings.message_size);
    -- each submission opens a block of ids, so that smtpd's blocks never have this one
    message_id := nextval('message_ids');
    IF key IS NOT NULL THEN
        known := submit_key(tenant, key, message_id, sha256(convert_to(jsonb_build_array(sender, recipients, priority,
            metadata - '_trace', on_failed, once, extract(epoch FROM send_at))::text, getdatabaseencoding()) || sha256(content)));
        IF known IS NOT NULL THEN RETURN known; END IF;
    END IF;
    message_id_header := CASE WHEN header ~ '(?in)^message-id[ \t]*:' COLLATE "C" THEN submit_message_id(header) END;
    added := submit_missing(header, settings.hostname);
    IF added <> '' THEN
        message_id_header := coalesce(message_id_header, substring(added FROM '<.*>'));
        content := convert_to(added, 'UTF8') || content;
    END IF;
    octets := octet_length(content);
    IF octets > 8096 THEN
        -- read from its table once, not for each chunk
        chunks := ARRAY[submit_chunks(message_id, content || ''::bytea)];
        content := '';
    END IF;
    rows := queue_put(ARRAY[message_id], ARRAY[octets], ARRAY[submit_trace(settings.hostname, message_id)],
        ARRAY[content], ARRAY[message_id_header], '{sql}', ARRAY[sender], ARRAY[sender_domain],
        ARRAY[priority::smallint], array_fill(1, ARRAY[cardinality(recipients)]), recipients, domains,
        CASE WHEN concat(sender, array_to_string(recipients, '')) ~ '[^\u0001-\u007f]' COLLATE "C"
            THEN '{t}'::boolean[] END,
        chunks, CASE WHEN tenant <> '' COLLATE "C" THEN ARRAY[tenant] END,
        CASE WHEN on_failed <> 'hold' COLLATE "C" THEN ARRAY[on_failed] END, CASE WHEN once THEN '{t}'::boolean[] END,
        ARRAY[session_user], tls_optional => CASE WHEN submit_tls_optional(header) THEN '{t}'::boolean[] END,
        metadata => CASE WHEN metadata <> '{}' THEN array_fill(metadata::text, ARRAY[cardinality(recipients)]) END,
        send_ats => CASE WHEN scheduled IS NOT NULL THEN ARRAY[scheduled] END);
    IF wake AND scheduled IS NULL THEN PERFORM pg_notify('pgmta_queue', ''); END IF;
    RETURN message_id;
END $$;

CREATE OR REPLACE FUNCTION submit_composed(
    template_id bigint, params jsonb, sender text, mailboxes jsonb, attachments submit_attachment[], has_body boolean,
    has_html boolean, send_at timestamptz, priority integer, metadata jsonb, key text, tenant text, on_failed text,
    once boolean, wake boolean, deadline timestamptz, given jsonb
) RETURNS bigint LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
    message_id bigint := nextval('message_ids');
    known bigint;
    scheduled timestamptz;
    local_part text := concat(message_id, '.', right(replace(gen_random_uuid()::text, '-', ''), 16));
    tail bytea := '';
    octets bigint;
    chunks integer[];
    recipients text[] := ARRAY(SELECT pair ->> 1 FROM jsonb_array_elements(mailboxes) AS pair);
    sender_domain text := mailbox_domain(sender COLLATE "C");
    domains text[] := ARRAY[mailbox_domain(recipients[1] COLLATE "C")];
    settings submit_settings;
BEGIN
    IF num_nulls(sender, attachments, priority, metadata, tenant, on_failed, once, wake) > 0 THEN
        PERFORM submit_refuse(CASE WHEN sender IS NULL THEN 'sender' WHEN attachments IS NULL THEN 'attachments'
            WHEN priority IS NULL THEN 'priority' WHEN metadata IS NULL THEN 'metadata'
            WHEN tenant IS NULL THEN 'tenant' WHEN on_failed IS NULL THEN 'on_failed'
            WHEN once IS NULL THEN 'once' ELSE 'wake' END, 'it is null');
    ELSIF num_nonnulls(send_at, key, deadline) > 0 OR priority NOT BETWEEN 0 AND 9 OR metadata <> '{}'
            OR tenant <> '' COLLATE "C" OR on_failed <> 'hold' COLLATE "C" THEN
        SELECT * INTO metadata, scheduled
        FROM submit_options(send_at, priority, metadata, key, tenant COLLATE "C", on_failed, deadline);
    END IF;
    IF cardinality(recipients) > 1000 THEN
        PERFORM submit_refuse('to', 'there are over 1000 recipients', NULL, 'Submit the mail several times.');
    ELSIF cardinality(recipients) <> 1 OR sender_domain IS NULL THEN
        SELECT * INTO recipients, sender_domain, domains FROM submit_envelope(sender COLLATE "C", recipients);
    END IF;
    SELECT * INTO settings FROM submit_settings;
    IF key IS NOT NULL THEN
        known := submit_key(tenant, key, message_id, sha256(convert_to(jsonb_build_array(coalesce(given, to_jsonb(sender)), params,
            recipients, priority, metadata - '_trace', on_failed, once, extract(epoch FROM send_at), (
                SELECT jsonb_agg(jsonb_build_array(a.name, a.type, encode(sha256(a.content), 'hex'), a.content_id))
                FROM unnest(attachments) AS a))::text, getdatabaseencoding())));
        IF known IS NOT NULL THEN RETURN known; END IF;
    END IF;
    IF getdatabaseencoding() <> 'UTF8' THEN
        PERFORM submit_text(CASE WHEN template_id IS NULL THEN part WHEN part = 'to' THEN 'recipient' ELSE 'params' END,
            value::text)
        FROM jsonb_each(params) AS each (part, value);
    END IF;
    IF cardinality(attachments) > 0 THEN
        SELECT submit_tail.tail, params || jsonb_build_object('tail', submit_tail.kind) INTO tail, params
        FROM submit_tail(attachments, '=_' || local_part, has_body, has_html, settings.message_size);
    END IF;
    octets := octet_length(params::text);
    IF octets > 4194304 THEN  -- a worker has them in memory
        PERFORM submit_refuse(CASE WHEN template_id IS NULL THEN 'body' ELSE 'params' END, 'it is over 4 MB', NULL,
            'Attach what is so large.');
    END IF;
    octets := octets + octet_length(tail);
    IF octets > settings.message_size THEN
        PERFORM submit_refuse('attachments', format('the mail is over %s octets', settings.message_size),
            format('It has %s.', octets));
    END IF;
    IF octet_length(tail) > 8096 THEN
        chunks := ARRAY[submit_chunks(message_id, tail)];
        tail := '';
    END IF;
    PERFORM queue_put(ARRAY[message_id], ARRAY[octets], ARRAY[submit_trace(settings.hostname, message_id)],
        ARRAY[tail], ARRAY[concat('<', local_part, '@', coalesce(settings.hostname, 'localhost'), '>')], '{sql}',
        ARRAY[sender], ARRAY[sender_domain], ARRAY[priority::smallint], array_fill(1, ARRAY[cardinality(recipients)]),
        recipients, domains,
        -- of large parameters a worker knows no more than this
        CASE WHEN concat(sender, array_to_string(recipients, ''), params #>> '{from,1}', params #>> '{reply_to,0,1}')
                ~ '[^\u0001-\u007f]' COLLATE "C"
            THEN '{t}'::boolean[] END,
        chunks, CASE WHEN tenant <> '' COLLATE "C" THEN ARRAY[tenant] END,
        CASE WHEN on_failed <> 'hold' COLLATE "C" THEN ARRAY[on_failed] END, CASE WHEN once THEN '{t}'::boolean[] END,
        ARRAY[session_user], rets => '{HDRS}',
        tls_optional => CASE WHEN params ? 'headers' AND submit_no_tls(params -> 'headers')
            THEN '{t}'::boolean[] END,
        metadata => CASE WHEN metadata <> '{}' THEN array_fill(metadata::text, ARRAY[cardinality(recipients)]) END,
        template_ids => CASE WHEN template_id IS NOT NULL THEN ARRAY[template_id] END, params => ARRAY[params],
        send_ats => CASE WHEN scheduled IS NOT NULL THEN ARRAY[scheduled] END);
    IF wake AND scheduled IS NULL THEN PERFORM pg_notify('pgmta_queue', ''); END IF;
    RETURN message_id;
END $$;

SELECT grants();

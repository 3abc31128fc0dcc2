-- Composed mail: submit_mail() and submit_template() in the transaction of the caller.

CREATE FUNCTION submit_mail(
    sender text, "to" text[], subject text DEFAULT '', body text DEFAULT NULL, html text DEFAULT NULL, cc text[] DEFAULT '{}',
    bcc text[] DEFAULT '{}', reply_to text DEFAULT NULL, headers jsonb DEFAULT '{}',
    attachments submit_attachment[] DEFAULT '{}', "from" text DEFAULT NULL, send_at timestamptz DEFAULT NULL,
    priority integer DEFAULT 5, metadata jsonb DEFAULT '{}', key text DEFAULT NULL, tenant text DEFAULT '',
    on_failed text DEFAULT 'remove', once boolean DEFAULT false, wake boolean DEFAULT false,
    deadline timestamptz DEFAULT NULL
) RETURNS bigint LANGUAGE plpgsql SECURITY DEFINER SET search_path = pgmta, pg_catalog, pg_temp
    SET standard_conforming_strings = on AS $$
#variable_conflict use_variable
DECLARE
    -- The collation of an argument is the caller's, who may compare addresses without case.
    field text := submit_field(subject);
    named jsonb := submit_mailboxes(CASE WHEN "from" IS NULL THEN 'sender' ELSE 'from' END,
        ARRAY[coalesce("from", sender)] COLLATE "C");
    main jsonb := submit_mailboxes('to', "to" COLLATE "C");
    copies jsonb := submit_mailboxes('cc', cc COLLATE "C");
    hidden jsonb := submit_mailboxes('bcc', bcc COLLATE "C");
BEGIN
    IF field IS NOT NULL THEN
        PERFORM submit_refuse('subject', field, NULL, 'Give one line of up to 2,000 characters.');
    ELSIF coalesce(body, html) IS NULL THEN
        PERFORM submit_refuse('body', 'there is neither body nor html', NULL, 'Give plain text, html or both.');
    ELSIF named IS NULL THEN
        IF sender IS NULL THEN PERFORM submit_refuse('sender', 'it is null'); END IF;
        PERFORM submit_refuse('from', 'it is missing', NULL, 'The sender is empty, so give an address for From.');
    ELSIF headers IS DISTINCT FROM '{}' THEN
        PERFORM submit_own_headers(headers);
    END IF;
    IF main IS NULL AND copies IS NULL AND hidden IS NULL THEN
        PERFORM submit_refuse('to', 'there is no recipient', NULL, 'Give a mailbox in to, cc or bcc.');
    ELSIF cardinality("to") + cardinality(cc) > 300 AND octet_length(concat(main, copies)) > 400000 THEN
        -- a header over 1 MB is not signed, and few servers take one
        PERFORM submit_refuse('to', 'to and cc are over 400000 octets', NULL, 'Submit the mail several times.');
    END IF;
    RETURN submit_composed(NULL, jsonb_strip_nulls(jsonb_build_object('from', named -> 0, 'to', main, 'cc', copies,
            'reply_to', submit_mailboxes('reply_to', ARRAY[reply_to] COLLATE "C"),
            'subject', CASE WHEN subject ~ '\S' COLLATE "C" THEN subject END, 'body', body, 'html', html,
            'headers', nullif(headers, '{}'))),
        sender COLLATE "C", coalesce(main, '[]') || coalesce(copies, '[]') || coalesce(hidden, '[]'), attachments,
        body IS NOT NULL, html IS NOT NULL, send_at, priority, metadata, key, tenant, on_failed, once, wake, deadline, NULL);
END $$;
COMMENT ON FUNCTION submit_mail IS
    'Puts mail into the queue that is given as parts, in the transaction of the caller, and returns its id. It is '
    'composed at delivery. docs/programs/composed.md has the arguments and errors.';

CREATE FUNCTION submit_template(
    template text, recipient text, params jsonb DEFAULT '{}', version integer DEFAULT NULL,
    attachments submit_attachment[] DEFAULT '{}', send_at timestamptz DEFAULT NULL, priority integer DEFAULT 5,
    metadata jsonb DEFAULT '{}', key text DEFAULT NULL, tenant text DEFAULT '', on_failed text DEFAULT 'remove',
    once boolean DEFAULT false, wake boolean DEFAULT false, deadline timestamptz DEFAULT NULL
) RETURNS bigint LANGUAGE plpgsql SECURITY DEFINER SET search_path = pgmta, pg_catalog, pg_temp
    SET standard_conforming_strings = on AS $$
#variable_conflict use_variable
DECLARE
    found templates;
    main jsonb := submit_mailboxes('recipient', ARRAY[recipient] COLLATE "C");
BEGIN
    -- a template of the tenant goes before one of all
    SELECT t.* INTO found FROM templates AS t
    WHERE t.tenant IN (tenant COLLATE "C", '') AND t.name = template COLLATE "C"
        AND (version IS NULL OR t.version = version)
    ORDER BY t.tenant DESC, t.version DESC LIMIT 1;
    IF found.id IS NULL THEN
        PERFORM submit_no_template(template COLLATE "C", version, tenant);
    ELSIF main IS NULL THEN
        PERFORM submit_refuse('recipient', 'it is null');
    END IF;
    PERFORM submit_words(params, found.words);
    IF octet_length(params::text) > 65536 AND (
            SELECT sum(octet_length(value)::bigint
                * regexp_count(concat(found.body, found.html), concat('\{\{[ \t]*', name, '[ \t]*\}\}')))
            FROM jsonb_each_text(params) AS word (name, value)) > 4194304 THEN
        PERFORM submit_refuse('params', 'the words are over 4 MB, each as often as the template has it', NULL,
            'Attach what is so large.');
    END IF;
    RETURN submit_composed(found.id, jsonb_build_object('to', main, 'words', params), found.sender COLLATE "C", main, attachments,
        found.body IS NOT NULL, found.html IS NOT NULL, send_at, priority, metadata, key, tenant, on_failed, once, wake,
        deadline, jsonb_build_array(template, version));
END $$;
COMMENT ON FUNCTION submit_template IS
    'Puts mail into the queue that a template and its words make, in the transaction of the caller, and returns its '
    'id. The version is fixed then. docs/programs/composed.md has the arguments and errors.';

CREATE FUNCTION submit_composed(
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
    sender_domain text := nullif(mailbox_domain(sender COLLATE "C"), 'sms');
    domains text[] := ARRAY[mailbox_domain(recipients[1] COLLATE "C")];
    settings submit_settings;
BEGIN
    IF num_nulls(sender, attachments, priority, metadata, tenant, on_failed, once, wake) > 0 THEN
        PERFORM submit_refuse(CASE WHEN sender IS NULL THEN 'sender' WHEN attachments IS NULL THEN 'attachments'
            WHEN priority IS NULL THEN 'priority' WHEN metadata IS NULL THEN 'metadata'
            WHEN tenant IS NULL THEN 'tenant' WHEN on_failed IS NULL THEN 'on_failed'
            WHEN once IS NULL THEN 'once' ELSE 'wake' END, 'it is null');
    ELSIF num_nonnulls(send_at, key, deadline) > 0 OR priority NOT BETWEEN 0 AND 9 OR metadata <> '{}'
            OR tenant <> '' COLLATE "C" OR on_failed <> 'remove' COLLATE "C" THEN
        SELECT * INTO metadata, scheduled
        FROM submit_options(send_at, priority, metadata, key, tenant COLLATE "C", on_failed, deadline);
    END IF;
    IF cardinality(recipients) > 1000 THEN
        PERFORM submit_refuse('to', 'there are over 1000 recipients', NULL, 'Submit the mail several times.');
    ELSIF cardinality(recipients) <> 1 OR sender_domain IS NULL THEN
        SELECT * INTO recipients, sender_domain, domains FROM submit_envelope(sender COLLATE "C", recipients);
    END IF;
    IF domains[1] = 'sms' THEN PERFORM submit_sms(template_id IS NOT NULL, params, has_body, attachments); END IF;
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
        ARRAY[on_failed], CASE WHEN once THEN '{t}'::boolean[] END,
        ARRAY[acting()], rets => '{HDRS}',
        tls_optional => CASE WHEN params ? 'headers' AND submit_no_tls(params -> 'headers')
            THEN '{t}'::boolean[] END,
        metadata => CASE WHEN metadata <> '{}' THEN array_fill(metadata::text, ARRAY[cardinality(recipients)]) END,
        template_ids => CASE WHEN template_id IS NOT NULL THEN ARRAY[template_id] END, params => ARRAY[params],
        send_ats => CASE WHEN scheduled IS NOT NULL THEN ARRAY[scheduled] END);
    IF wake AND scheduled IS NULL THEN PERFORM pgmta.notify_channel('pgmta_queue'); END IF;
    RETURN message_id;
END $$;
COMMENT ON FUNCTION submit_composed IS
    'The common part of submit_mail() and submit_template(). The envelope has each of the mailboxes once. For a key, '
    '`given` is the template as it was asked for: a new version makes no other mail of a repetition.';

CREATE FUNCTION submit_field(value text, most integer DEFAULT 2000) RETURNS text LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN value ~ '[\r\n]' COLLATE "C" THEN 'it has a line end'
        WHEN value ~ '[\u0001-\u001f\u007f]' COLLATE "C" THEN 'it has a control character'
        WHEN length(value) > most THEN format('it is over %s characters', most) END
$$;
COMMENT ON FUNCTION submit_field IS 'Why a text can''t be in a header field; null if it can.';

CREATE FUNCTION submit_mailboxes(argument text, mailboxes text[]) RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE
    pairs jsonb;
    bad integer;
    names text[];
    addresses text[];
    fault text;
BEGIN
    IF mailboxes IS NULL THEN PERFORM submit_refuse(argument, 'it is null'); END IF;
    -- mostly a single address without a name
    IF cardinality(mailboxes) = 1 AND right(mailboxes[array_lower(mailboxes, 1)], 1) <> '>' COLLATE "C"
            AND mailbox_domain(mailboxes[array_lower(mailboxes, 1)] COLLATE "C") <> (CASE
                WHEN argument IN ('to', 'recipient') THEN '' ELSE 'sms' END) THEN
        RETURN jsonb_build_array(jsonb_build_array('', mailboxes[array_lower(mailboxes, 1)]));
    ELSIF cardinality(mailboxes) = 0 OR argument IN ('sender', 'from', 'reply_to', 'recipient')
            AND coalesce(mailboxes[array_lower(mailboxes, 1)], '') = '' THEN
        RETURN NULL;
    END IF;
    IF cardinality(mailboxes) = 1 THEN  -- or one with a name that needs no quotes
        names := regexp_match(mailboxes[array_lower(mailboxes, 1)] COLLATE "C",
            '^([^\u0001-\u001f\u007f"<>\\]+)<([^<>]+)>$');
        IF length(names[1]) <= 255 AND mailbox_domain(names[2] COLLATE "C") <> 'sms' THEN
            RETURN jsonb_build_array(jsonb_build_array(btrim(names[1]), names[2]));
        END IF;
    END IF;
    WITH parsed AS MATERIALIZED (
        SELECT place, given, named, coalesce(replace(replace(unquoted, '\"', '"'), '\\', '\'), '') AS name, address
        FROM unnest(mailboxes) WITH ORDINALITY AS each (given, place),
            LATERAL (SELECT given COLLATE "C" ~ '>[ \t]*$' AS named) AS form,
            LATERAL (SELECT CASE WHEN named THEN substring(given FROM '<([^<>]*)>[ \t]*$') ELSE given END AS address,
                CASE WHEN named THEN btrim(regexp_replace(given, '<[^<>]*>[ \t]*$', ''), E' \t') END AS written) AS parts,
            LATERAL (SELECT CASE WHEN written ~ '^".*"$' THEN substr(written, 2, length(written) - 2) ELSE written END
                AS unquoted) AS quoted
    )
    SELECT jsonb_agg(jsonb_build_array(name, address) ORDER BY place),
        min(place) FILTER (WHERE submit_field(name, 255) IS NOT NULL OR coalesce(mailbox_domain(address COLLATE "C"), 'sms') = 'sms'
            AND NOT (argument IN ('to', 'recipient') AND mailbox_domain(address COLLATE "C") IS NOT NULL)),
        array_agg(name ORDER BY place), array_agg(coalesce(address, given) ORDER BY place)
    INTO pairs, bad, names, addresses FROM parsed;
    IF bad IS NOT NULL AND argument IN ('to', 'recipient') AND submit_numbers(mailboxes) <> mailboxes THEN
        RETURN submit_mailboxes(argument, submit_numbers(mailboxes));
    ELSIF bad IS NOT NULL THEN
        fault := submit_field(names[bad], 255);
        IF fault IS NOT NULL THEN
            PERFORM submit_refuse(argument, 'a name: ' || fault, format('Mailbox %s of %s: %s', bad,
                cardinality(mailboxes), to_json(left(names[bad], 100))), 'A name has up to 255 characters in one line.');
        END IF;
        IF argument <> 'sender' AND octet_length(addresses[bad]) <= 254
                AND addresses[bad] ~ '[<>,; ]' AND addresses[bad] !~ '[\u0001-\u001f\u007f]|^[0-9+ .()-]+$' COLLATE "C" THEN
            PERFORM submit_refuse(argument, 'an address is malformed', format('Mailbox %s of %s: %s', bad,
                cardinality(mailboxes), to_json(left(mailboxes[array_lower(mailboxes, 1) + bad - 1], 100))),
                'Each mailbox is bob@example.com or Bob <bob@example.com>, and one alone.');
        END IF;
        PERFORM submit_refuse_mailbox(argument, addresses[bad], format('Mailbox %s of %s: ', bad, cardinality(mailboxes)));
    END IF;
    RETURN pairs;
END $$;
COMMENT ON FUNCTION submit_mailboxes IS
    'Pairs of name and address of mailboxes such as Bob <bob@example.com>, as JSON; null if there are none. Raises '
    'the error of a bad one.';

CREATE FUNCTION submit_sms(by_template boolean, params jsonb, has_body boolean, attachments submit_attachment[]) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    lost text := CASE WHEN cardinality(attachments) > 0 THEN 'attachments' WHEN by_template THEN NULL
        WHEN params ->> 'subject' ~ '\S' THEN 'subject' ELSE (
            SELECT part FROM unnest('{html,cc,reply_to,headers}'::text[]) AS part WHERE params ? part LIMIT 1) END;
BEGIN
    IF NOT has_body OR params ->> 'body' !~ '\S' THEN
        PERFORM submit_refuse(CASE WHEN by_template THEN 'template' ELSE 'body' END, 'there is no plain text', NULL,
            'A telephone number gets the plain text alone.');
    ELSIF lost IS NOT NULL THEN
        PERFORM submit_refuse(lost, 'a telephone number gets none', NULL, 'It gets the plain text alone.');
    END IF;
END $$;
COMMENT ON FUNCTION submit_sms IS 'Raises the error of mail for a telephone number that is more than its plain text.';

CREATE FUNCTION submit_own_headers(headers jsonb) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    bad text;
    reason text;
BEGIN
    IF headers IS NULL OR jsonb_typeof(headers) <> 'object' THEN
        PERFORM submit_refuse('headers', 'it is no JSON object', NULL, 'Give fields by name: {"X-Order": "4711"}.');
    END IF;
    SELECT name, fault INTO bad, reason
    FROM jsonb_each(headers) AS each (name, value), LATERAL (SELECT value #>> '{}' AS text) AS as_text,
        LATERAL (SELECT CASE WHEN name !~ '^[A-Za-z0-9-]{1,70}$' COLLATE "C" THEN 'a field has no name of letters, digits and -'
            WHEN header_reserved(name) THEN 'a field is reserved: pgmta writes it'
            WHEN jsonb_typeof(value) <> 'string' THEN 'the value of a field is no text'
            WHEN text !~ '\S' THEN 'the value of a field is empty'
            WHEN header_structured(name) AND text ~ '[^\u0001-\u007f]' COLLATE "C" THEN 'such a field is in ASCII'
            WHEN header_structured(name) AND (SELECT max(length(word)) FROM regexp_split_to_table(text, ' ') AS word) > 997
                THEN 'such a field has a word of over 997 characters, which fits into no line'
            ELSE 'the value of a field: ' || submit_field(text) END AS fault) AS judged
    WHERE fault IS NOT NULL ORDER BY name COLLATE "C" LIMIT 1;
    IF bad IS NOT NULL THEN
        PERFORM submit_refuse('headers', reason, 'Field: ' || to_json(left(bad, 100)),
            CASE WHEN header_reserved(bad) THEN 'Leave it out.' ELSE 'docs/programs/composed.md has the arguments.' END);
    ELSIF octet_length(headers::text) > 100000 THEN
        PERFORM submit_refuse('headers', 'they are over 100000 octets');
    END IF;
END $$;
COMMENT ON FUNCTION submit_own_headers IS 'Raises the error of the first bad header field of a program.';

CREATE FUNCTION header_reserved(name text) RETURNS boolean LANGUAGE sql IMMUTABLE AS $$
    SELECT lower(name COLLATE "C") = ANY ('{apparently-to,authentication-results,bcc,cc,date,delivered-to,dkim-signature,'
        'domainkey-signature,from,message-id,mime-version,original-recipient,received,received-spf,reply-to,return-path,'
        'sender,subject,to}'::text[])
        OR lower(name COLLATE "C") ~ '^(arc|content|resent)-'
$$;
COMMENT ON FUNCTION header_reserved IS
    'Whether a program may not give a header field, because pgmta or another mail system writes it. '
    'pgmta/compose/own_fields.py has the same names.';

CREATE FUNCTION header_structured(name text) RETURNS boolean LANGUAGE sql IMMUTABLE AS $$
    SELECT lower(name COLLATE "C") = ANY ('{in-reply-to,references,auto-submitted,precedence,feedback-id,tls-required,'
        'importance,priority,disposition-notification-to,autocrypt}'::text[]) OR lower(name COLLATE "C") ~ '^list-'
$$;
COMMENT ON FUNCTION header_structured IS
    'Whether readers parse a header field, so that it has no encoded words (RFC 2047, section 5). '
    'pgmta/compose/own_fields.py has the same names.';

CREATE FUNCTION submit_no_tls(headers jsonb) RETURNS boolean LANGUAGE sql IMMUTABLE AS $$
    SELECT EXISTS (SELECT FROM jsonb_each_text(headers) AS each (name, value)
        WHERE lower(name COLLATE "C") = 'tls-required' AND lower(btrim(value) COLLATE "C") = 'no')
$$;
COMMENT ON FUNCTION submit_no_tls IS 'Whether header fields have TLS-Required: No (RFC 8689, section 3).';

CREATE FUNCTION submit_no_template(template text, version integer, tenant text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF template IS NULL THEN PERFORM submit_refuse('template', 'it is null'); END IF;
    PERFORM submit_refuse(CASE WHEN version IS NULL THEN 'template' ELSE 'version' END,
        CASE WHEN version IS NULL THEN 'there is none with this name' ELSE 'the template has no such version' END,
        format('Template %s%s of tenant %s.', to_json(left(template, 100)), ', version ' || version,
            to_json(left(tenant, 100))),
        coalesce((SELECT 'There is ' || string_agg(name, ', ' ORDER BY name) || '.' FROM (
            SELECT DISTINCT t.name FROM templates AS t WHERE t.tenant IN (submit_no_template.tenant, '')
            ORDER BY t.name LIMIT 10) AS near), 'There is no template yet: queuectl template put stores one.'));
END $$;
COMMENT ON FUNCTION submit_no_template IS 'Raises the error of a template or version that is not there.';

CREATE FUNCTION submit_words(params jsonb, words jsonb) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    bad text;
    reason text;
BEGIN
    IF params IS NULL OR jsonb_typeof(params) <> 'object' THEN
        PERFORM submit_refuse('params', 'it is no JSON object', NULL, 'Give words by name: {"name": "Ann"}.');
    END IF;
    SELECT name, fault INTO bad, reason
    FROM jsonb_each(words) AS wanted (name, places) FULL JOIN jsonb_each(params) AS given (name, value) USING (name),
        LATERAL (SELECT CASE WHEN value IS NULL THEN 'a word is missing'
            WHEN places IS NULL THEN 'the template has no such word'
            WHEN jsonb_typeof(value) NOT IN ('string', 'number', 'boolean') THEN 'a word is no text, number or boolean'
            ELSE submit_word(value #>> '{}', places) END AS fault) AS judged
    WHERE fault IS NOT NULL ORDER BY name COLLATE "C" LIMIT 1;
    IF bad IS NOT NULL THEN
        PERFORM submit_refuse('params', reason, 'Word: ' || to_json(left(bad, 100)),
            CASE WHEN reason IN ('the template has no such word', 'a word is missing') THEN
                format('It has %s.', coalesce((SELECT string_agg(w, ', ' ORDER BY w) FROM jsonb_object_keys(words) AS w), 'none'))
            ELSE 'docs/programs/templates.md has the values of each place: "Words".' END);
    END IF;
END $$;
COMMENT ON FUNCTION submit_words IS 'Raises the error of the first word that is missing, unknown, or bad for its place.';

CREATE FUNCTION submit_word(value text, places jsonb) RETURNS text LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN places ?| '{field,name}' AND submit_field(value, 998) IS NOT NULL
            THEN 'a word of a header field: ' || submit_field(value, 998)
        WHEN places ? 'name' AND length(value) > 255 THEN 'a word of a name is over 255 characters'
        WHEN places ? 'address' AND (coalesce(mailbox_domain(value COLLATE "C"), 'sms') = 'sms' OR value ~ '[^\u0001-\u007f]' COLLATE "C")
            THEN 'a word is no mailbox in ASCII'
        WHEN places ? 'url' AND value !~ ('^[Hh][Tt][Tt][Pp][Ss]?://[A-Za-z0-9[]'
            '[]A-Za-z0-9._~:/?#[@!$&''()*+,;=%-]*$' COLLATE "C") THEN 'a word is no URL with http or https'
        WHEN places ? 'url_part' AND value IN ('.', '..') THEN 'a word in a URL is a step in a path'
        WHEN places ? 'atom' AND value !~ '^[A-Za-z0-9._~-]{1,255}$' COLLATE "C"
            THEN 'a word of a header field has other characters than A-Z, a-z, 0-9 and . _ ~ -' END
$$;
COMMENT ON FUNCTION submit_word IS
    'Why a value can''t be in the places of its word; null if it can. pgmta/compose/words.py has the same.';

CREATE FUNCTION composition_shown(template_id bigint, params jsonb) RETURNS jsonb STABLE LANGUAGE sql AS $$
    SELECT jsonb_build_array(
        -- a row may be broken by hand
        CASE WHEN jsonb_typeof(params) = 'object' THEN params - '{words,body,html,token}'::text[] ELSE '{}' END
            || CASE WHEN params ? 'body' THEN '{"body": ""}'::jsonb ELSE '{}' END
            || CASE WHEN params ? 'html' THEN '{"html": ""}'::jsonb ELSE '{}' END,
        (SELECT jsonb_build_object('name', t.name, 'version', t.version, 'sender', t.sender, 'from', t.from_field,
                'reply_to', t.reply_to, 'subject', t.subject, 'headers', t.headers,
                'body', CASE WHEN t.body IS NOT NULL THEN 'x' END, 'html', CASE WHEN t.html IS NOT NULL THEN 'x' END)
            FROM pgmta.templates AS t WHERE t.id = composition_shown.template_id))
    WHERE params IS NOT NULL
$$;
COMMENT ON FUNCTION composition_shown IS
    'What operators and DSNs may see of composed mail: the parts of its header, or the recipient and the header of its '
    'template, without words, tokens and texts.';

INSERT INTO rights (object, role, privileges) VALUES
    ('FUNCTION submit_mail', 'pgmta_submit', 'EXECUTE'),
    ('FUNCTION submit_template', 'pgmta_submit', 'EXECUTE'),
    ('FUNCTION composition_shown', 'pgmta_operator', 'EXECUTE'),
    ('FUNCTION composition_shown', 'pgmta_queued', 'EXECUTE');

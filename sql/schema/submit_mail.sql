-- Composed mail: submit_mail() and submit_template() in the transaction of the caller.

CREATE FUNCTION submit_mail(
    sender text, "to" text[], subject text DEFAULT '', body text DEFAULT NULL, html text DEFAULT NULL, cc text[] DEFAULT '{}',
    bcc text[] DEFAULT '{}', reply_to text DEFAULT NULL, headers jsonb DEFAULT '{}',
    attachments submit_attachment[] DEFAULT '{}', "from" text DEFAULT NULL, send_at timestamptz DEFAULT NULL,
    priority integer DEFAULT 5, metadata jsonb DEFAULT '{}', key text DEFAULT NULL, tenant text DEFAULT '',
    on_failed text DEFAULT 'remove', once boolean DEFAULT false, wake boolean DEFAULT false,
    deadline timestamptz DEFAULT NULL, unsubscribe text DEFAULT NULL
) RETURNS bigint LANGUAGE plpgsql SECURITY DEFINER SET search_path = pgmta, pg_catalog, pg_temp
    SET standard_conforming_strings = on AS $$
#variable_conflict use_variable
DECLARE
    given jsonb := jsonb_build_object('sender', sender, 'to', "to", 'cc', cc, 'bcc', bcc, 'reply_to', reply_to, 'from', "from",
        'subject', subject, 'body', body, 'html', html, 'headers', headers);
    judged record;
BEGIN
    IF num_nulls("to", cc, bcc) > 0 THEN
        PERFORM submit_refuse(CASE WHEN "to" IS NULL THEN 'to' WHEN cc IS NULL THEN 'cc' ELSE 'bcc' END, 'it is null');
    END IF;
    SELECT j.* INTO judged FROM mails_judged(jsonb_build_array(given)) AS j;
    IF judged.fault IS NOT NULL THEN
        PERFORM submit_refuse_parts(given, judged.fault, judged.bad);
    ELSIF headers IS DISTINCT FROM '{}' THEN
        PERFORM submit_own_headers(headers);
    END IF;
    RETURN submit_composed(NULL, judged.params, sender COLLATE "C", judged.sender_domain, judged.recipients, judged.domains,
        attachments, body IS NOT NULL, html IS NOT NULL, send_at, priority, metadata, key, tenant, on_failed, once, wake,
        deadline, NULL, unsubscribe);
END $$;
COMMENT ON FUNCTION submit_mail IS
    'Puts mail into the queue that is given as parts, in the transaction of the caller, and returns its id. It is '
    'composed at delivery. docs/programs/composed.md has the arguments and errors.';

CREATE FUNCTION submit_template(
    template text, recipient text, params jsonb DEFAULT '{}', version integer DEFAULT NULL,
    attachments submit_attachment[] DEFAULT '{}', send_at timestamptz DEFAULT NULL, priority integer DEFAULT 5,
    metadata jsonb DEFAULT '{}', key text DEFAULT NULL, tenant text DEFAULT '', on_failed text DEFAULT 'remove',
    once boolean DEFAULT false, wake boolean DEFAULT false, deadline timestamptz DEFAULT NULL, unsubscribe text DEFAULT NULL
) RETURNS bigint LANGUAGE plpgsql SECURITY DEFINER SET search_path = pgmta, pg_catalog, pg_temp
    SET standard_conforming_strings = on AS $$
#variable_conflict use_variable
DECLARE
    found templates;
    judged record;
BEGIN
    -- a template of the tenant goes before one of all
    SELECT t.* INTO found FROM templates AS t
    WHERE t.tenant IN (tenant COLLATE "C", '') AND t.name = template COLLATE "C"
        AND (version IS NULL OR t.version = version)
    ORDER BY t.tenant DESC, t.version DESC LIMIT 1;
    IF found.id IS NULL THEN
        PERFORM submit_no_template(template COLLATE "C", version, tenant);
    ELSIF coalesce(recipient, '') = '' COLLATE "C" THEN
        PERFORM submit_refuse('recipient', 'it is null');
    END IF;
    SELECT j.*, CASE WHEN found.sender = '' THEN '' ELSE mailbox_domain(found.sender) END AS sender_domain INTO judged
    FROM mailboxes_judged('[]', jsonb_build_array(recipient), '[]', '[]', '[]') AS j;
    IF judged.bad IS NOT NULL THEN
        PERFORM submit_refuse_named('recipient', recipient, 'Mailbox: ');
    ELSIF judged.sender_domain IS NULL THEN  -- a row that was changed by hand
        PERFORM submit_refuse_mailbox('sender', found.sender, 'Address: ');
    END IF;
    -- the value of this word is the link
    PERFORM submit_words(params, CASE WHEN coalesce(unsubscribe, found.unsubscribe) IS NULL THEN found.words
        ELSE found.words - 'unsubscribe' END);
    PERFORM submit_words_size(params, found.words, found.counts, found.html IS NOT NULL);
    RETURN submit_composed(found.id, jsonb_build_object('to', judged.to_pairs, 'words', params), found.sender COLLATE "C",
        judged.sender_domain, judged.recipients, judged.domains, attachments, found.body IS NOT NULL, found.html IS NOT NULL,
        send_at, priority, metadata, key, tenant, on_failed, once, wake, deadline, jsonb_build_array(template, version, unsubscribe),
        coalesce(unsubscribe, found.unsubscribe));
END $$;
COMMENT ON FUNCTION submit_template IS
    'Puts mail into the queue that a template and its words make, in the transaction of the caller, and returns its '
    'id. The version is fixed then. docs/programs/composed.md has the arguments and errors.';

CREATE FUNCTION submit_composed(
    template_id bigint, params jsonb, sender text, sender_domain text, recipients text[], domains text[],
    attachments submit_attachment[], has_body boolean, has_html boolean, send_at timestamptz, priority integer,
    metadata jsonb, key text, tenant text, on_failed text, once boolean, wake boolean, deadline timestamptz, given jsonb,
    scope text
) RETURNS bigint LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
    message_id bigint := next_message_id();
    known bigint;
    scheduled timestamptz;
    local_part text := concat(message_id, '.', right(replace(gen_random_uuid()::text, '-', ''), 16));
    made record;
    tail bytea := '';
    octets bigint;
    chunks integer;
    rows integer;
    settings submit_settings;
BEGIN
    IF num_nulls(sender, attachments, priority, metadata, tenant, on_failed, once, wake) > 0 THEN
        PERFORM submit_refuse(CASE WHEN sender IS NULL THEN 'sender' WHEN attachments IS NULL THEN 'attachments'
            WHEN priority IS NULL THEN 'priority' WHEN metadata IS NULL THEN 'metadata'
            WHEN tenant IS NULL THEN 'tenant' WHEN on_failed IS NULL THEN 'on_failed'
            WHEN once IS NULL THEN 'once' ELSE 'wake' END, 'it is null');
    ELSIF num_nonnulls(send_at, key, deadline, scope) > 0 OR priority NOT BETWEEN 0 AND 9 OR metadata <> '{}'
            OR tenant <> '' COLLATE "C" OR on_failed <> 'remove' COLLATE "C" THEN
        SELECT * INTO metadata, scheduled
        FROM submit_options(send_at, priority, metadata, key, tenant COLLATE "C", on_failed, deadline, scope);
    END IF;
    IF domains[1] = 'sms' THEN PERFORM submit_sms(template_id IS NOT NULL, params, has_body, attachments); END IF;
    SELECT * INTO settings FROM submit_settings;
    IF num_nonnulls(key, scope) > 0 THEN
        known := CASE WHEN key IS NOT NULL THEN submit_key(tenant, key, message_id, sha256(convert_to(jsonb_build_array(
            coalesce(given, jsonb_build_array(sender, scope)), params, recipients, priority,
            metadata - '{_trace,_scope}'::text[], on_failed, once, extract(epoch FROM send_at), (
                SELECT jsonb_agg(jsonb_build_array(a.name, a.type, encode(sha256(a.content), 'hex'), a.content_id))
                FROM unnest(attachments) AS a))::text, getdatabaseencoding()))) END;
        IF known IS NOT NULL THEN RETURN known; END IF;
        IF scope IS NOT NULL THEN params := params || jsonb_build_object('unsubscribe', scope); END IF;
    END IF;
    IF getdatabaseencoding() <> 'UTF8' THEN
        PERFORM submit_text(CASE WHEN template_id IS NULL THEN part WHEN part = 'to' THEN 'recipient' ELSE 'params' END,
            value::text)
        FROM jsonb_each(params) AS each (part, value);
    END IF;
    IF cardinality(attachments) > 0 THEN
        -- no SELECT FROM it: that would write the result to a temporary file
        made := submit_tail(attachments, '=_' || local_part, has_body, has_html, settings.message_size);
        tail := made.tail;
        params := params || jsonb_build_object('tail', made.kind);
    END IF;
    octets := octet_length(params::text);
    IF octets > 4194304 THEN  -- 4 MB, because a worker has them in memory
        PERFORM submit_refuse(CASE WHEN template_id IS NULL THEN 'body' ELSE 'params' END, 'it is over 4 MB', NULL,
            'Attach what is so large.');
    END IF;
    octets := octets + octet_length(tail);
    IF octets > settings.message_size THEN
        PERFORM submit_refuse('attachments', format('the mail is over %s octets', settings.message_size),
            format('It has %s.', octets));
    END IF;
    IF octet_length(tail) > 8096 THEN
        chunks := submit_chunks(message_id, tail);
        tail := '';
    END IF;
    rows := queue_put(
        ARRAY[new_message(id => message_id, size => octets, priority => priority::smallint,
            trace => submit_trace(settings.hostname, message_id), body => tail, sender => sender,
            sender_domain => sender_domain, on_failed => on_failed,
            message_id_header => concat('<', local_part, '@', coalesce(settings.hostname, 'localhost'), '>'), origin => 'sql',
            utf8 => composed_utf8(sender, recipients, params), chunks => chunks, tenant => tenant, once => once,
            submitted_by => acting(), ret => 'HDRS',
            tls_optional => params ? 'headers' AND submit_no_tls(params -> 'headers'), send_at => scheduled,
            template_id => template_id, params => params)],
        lone_rows(recipients, domains, metadata));
    IF wake AND scheduled IS NULL THEN PERFORM pgmta.notify_channel('pgmta_queue'); END IF;
    RETURN message_id;
END $$;
COMMENT ON FUNCTION submit_composed IS
    'The common part of submit_mail() and submit_template(), once they have judged their mailboxes. For a key, '
    '`given` is the template as it was asked for: a new version makes no other mail of a repetition. `scope` is that of the '
    'link by which its recipients unsubscribe.';

CREATE FUNCTION submit_field(value text, most integer DEFAULT 2000) RETURNS text LANGUAGE sql STABLE AS $$
    SELECT CASE WHEN value ~ '[\u0001-\u001f\u007f]' COLLATE "C"
            THEN CASE WHEN value ~ '[\r\n]' COLLATE "C" THEN 'it has a line end' ELSE 'it has a control character' END
        WHEN length(value) > most THEN format('it is over %s characters', most) END
$$;
COMMENT ON FUNCTION submit_field IS 'Why a text can''t be in a header field; null if it can.';

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
DECLARE
    known CONSTANT text[] := ARRAY(SELECT DISTINCT t.name FROM templates AS t
        WHERE t.tenant IN (submit_no_template.tenant, '') ORDER BY t.name);
    versions CONSTANT text := (SELECT string_agg(v.version::text, ', ' ORDER BY v.version) FROM (
        SELECT DISTINCT t.version FROM templates AS t
        WHERE t.tenant IN (submit_no_template.tenant, '') AND t.name = template COLLATE "C"
        ORDER BY t.version DESC LIMIT 10) AS v);
    detail CONSTANT text := format('Template %s%s%s.', to_json(left(template, 100)), ', version ' || version,
        ' of tenant ' || to_json(left(nullif(tenant, ''), 100)));
BEGIN
    IF template IS NULL THEN PERFORM submit_refuse('template', 'it is null'); END IF;
    IF versions IS NOT NULL THEN
        PERFORM submit_refuse('version', 'the template has no such version', detail, format('There is version %s.', versions));
    END IF;
    PERFORM submit_refuse('template', 'there is none with this name', detail, coalesce(
        'Did you mean ' || nearest_word(template, known) || '?',
        'There is ' || nullif(array_to_string(known[1:10], ', '), '') || '.',
        'There is no template yet: queuectl template put stores one.'));
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
            CASE WHEN reason = 'a word is missing' AND bad = 'unsubscribe' THEN 'Give the argument unsubscribe a scope.'
            WHEN reason IN ('the template has no such word', 'a word is missing') THEN coalesce(
                CASE WHEN reason <> 'a word is missing'
                    THEN 'Did you mean ' || nearest_word(bad, ARRAY(SELECT jsonb_object_keys(words))) || '?' END,
                format('It has %s.', coalesce((SELECT string_agg(w, ', ' ORDER BY w) FROM jsonb_object_keys(words) AS w), 'none')))
            ELSE 'docs/programs/templates.md has the values of each place: "Words".' END);
    END IF;
END $$;
COMMENT ON FUNCTION submit_words IS 'Raises the error of the first word that is missing, unknown, or bad for its place.';

CREATE FUNCTION submit_words_size(params jsonb, words jsonb, counts jsonb, has_html boolean) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    -- 4 MB, because a worker has them in memory
    most CONSTANT bigint := (SELECT least(4194304, s.message_size) FROM submit_settings AS s);
BEGIN
    -- an octet becomes at most &quot; in each of 1000 places, so most mail needs no sum
    IF most < 6000::bigint * octet_length(params::text) AND most < (
        SELECT sum((counts -> name)::numeric * size)
        FROM jsonb_each_text(params) AS word (name, value), LATERAL (SELECT greatest(
            CASE WHEN words -> name ? 'url_part' THEN 3 * octet_length(value) END,  -- %20
            octet_length(value) + CASE WHEN has_html THEN 5 * (length(value) - length(translate(value, '&<>"''', '')))  -- &quot;
                ELSE 0 END) AS size) AS encoded)
    THEN
        PERFORM submit_refuse('params', format('the words are over %s octets, each as often as the template has it', most), NULL,
            'Attach what is so large.');
    END IF;
END $$;
COMMENT ON FUNCTION submit_words_size IS
    'Raises the error of words that would be too large in body and html, encoded and each as often as they are there. '
    'pgmta/compose/template.py takes all that this lets through.';

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
        -- the row may have been broken by hand
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

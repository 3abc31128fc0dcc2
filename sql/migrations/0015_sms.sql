-- Telephone numbers as recipients: a row with one has the domain sms.

CREATE OR REPLACE FUNCTION mailbox_domain_any(address text) RETURNS text LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE
    SET search_path = pg_catalog, pg_temp SET standard_conforming_strings = on AS $$
DECLARE
    domain text COLLATE "C" := split_part(address COLLATE "C", '@', -1);
    names text := '[A-Za-z0-9]([A-Za-z0-9_-]*[A-Za-z0-9])?(\.[A-Za-z0-9]([A-Za-z0-9_-]*[A-Za-z0-9])?)*';
    atom text := '[A-Za-z0-9!#$%&''*+/=?^_`{|}~-]+';
    octet text := '(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])';
    groups text := '([0-9a-f]{1,4}(:[0-9a-f]{1,4})*)';
    written text COLLATE "C";
BEGIN
    IF address ~ '^\+[1-9][0-9]{6,14}$' COLLATE "C" THEN RETURN 'sms'; END IF;  -- E.164
    IF octet_length(address) > 254 OR length(address) - length(domain) > 65 THEN RETURN NULL; END IF;
    IF address !~ concat('^', atom, '(\.', atom, ')*@', names, '$') COLLATE "C" THEN
        -- no dot-string and name, as nearly all are
        IF address ~ '[^\u0001-\u007f]' COLLATE "C" THEN
            -- no control or format characters, nor any from outside the basic plane
            IF getdatabaseencoding() <> 'UTF8' OR address ~ ('[\u0080-\u009f\u00ad\u0600-\u0605\u061c\u06dd'
                '\u070f\u0890\u0891\u08e2\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff0-\uffff]'
                '|[^\u0001-\uffff]') COLLATE "C" THEN RETURN NULL; END IF;
            atom := '[A-Za-z0-9!#$%&''*+/=?^_`{|}~\u0080-\uffff-]+';
        END IF;
        IF left(address, length(address) - length(domain)) !~ concat('^(', atom, '(\.', atom, ')*',
                '|"([^"\\\u0001-\u001f\u007f]|\\[ -~])*")@$') COLLATE "C" THEN RETURN NULL; END IF;
        IF domain ~ '^\[' THEN
            IF domain ~ concat('^\[', octet, '(\.', octet, '){3}\]$') COLLATE "C" THEN RETURN domain; END IF;
            written := lower(substr(rtrim(domain, ']'), 7));
            -- eight groups of digits, or at most seven around ::
            IF domain !~* '^\[ipv6:[^]]+\]$' COLLATE "C" OR written !~ concat('^[0-9a-f]{1,4}(:[0-9a-f]{1,4}){7}$|^',
                    groups, '?::', groups, '?$') COLLATE "C" THEN RETURN NULL; END IF;
            IF regexp_count(written, '[0-9a-f]+') - (written !~ '::')::integer > 7 THEN RETURN NULL; END IF;
            written := host(written::inet);
            -- PostgreSQL and Python write an address with an IPv4 address in it differently
            RETURN CASE WHEN written !~ '\.' THEN concat('[IPv6:', written, ']') END;
        END IF;
        IF domain !~ concat('^', names, '$') COLLATE "C" THEN RETURN NULL; END IF;
    END IF;
    RETURN CASE WHEN domain !~ '[^.]{64}' THEN nullif(lower(domain), 'sms') END;
END $$;

CREATE OR REPLACE FUNCTION mailbox_domain(address text) RETURNS text IMMUTABLE PARALLEL SAFE
RETURN CASE WHEN length(address) <= 63 AND address ~ ('^[A-Za-z0-9_+=-]+(\.[A-Za-z0-9_+=-]+)*@'
        '[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?(\.[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?)*$' COLLATE "C")
    THEN nullif(lower(split_part(address COLLATE "C", '@', 2)), 'sms') ELSE mailbox_domain_any(address) END;
COMMENT ON FUNCTION mailbox_domain IS
    'The domain of a mailbox (RFC 5321, section 4.1.2) in lower case, or an address literal; null if the text is no '
    'mailbox. A domain beyond ASCII has to be written in A-labels. That of a telephone number such as +491701234567 is sms, '
    'and no mailbox has it.';

CREATE FUNCTION submit_numbers(recipients text[]) RETURNS text[] IMMUTABLE LANGUAGE sql AS $$
    SELECT array_agg(CASE WHEN recipient ~ '^[ (]*[+][0-9 .()-]+$' COLLATE "C"
        THEN regexp_replace(recipient, '[ .()-]', '', 'g') ELSE recipient END ORDER BY place)
    FROM unnest(recipients) WITH ORDINALITY AS given (recipient, place)
$$;

COMMENT ON FUNCTION submit_numbers IS
    'Recipients with telephone numbers in E.164, without visual separators (RFC 3966, section 5.1.1) and blanks. '
    'pgmta/mail/telephone.py has the same.';

CREATE OR REPLACE FUNCTION submit_envelope(sender text, recipients text[],
    OUT addresses text[], OUT sender_domain text, OUT domains text[]) LANGUAGE plpgsql AS $$
DECLARE
    bad integer;
BEGIN
    IF sender = '' THEN
        sender_domain := '';
    ELSE
        sender_domain := nullif(mailbox_domain(sender), 'sms');
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
    IF bad IS NOT NULL AND submit_numbers(recipients) <> recipients THEN
        SELECT e.* INTO addresses, sender_domain, domains FROM submit_envelope(sender, submit_numbers(recipients)) AS e;
    ELSIF bad IS NOT NULL THEN
        PERFORM submit_refuse_mailbox('recipients', (SELECT address
                FROM unnest(recipients) WITH ORDINALITY AS given (address, place) WHERE place = bad),
            format('Recipient %s of %s: ', bad, cardinality(recipients)));
    ELSIF 'sms' = ANY (domains) AND 'sms' <> ANY (domains) THEN
        PERFORM submit_refuse('recipients', 'there are telephone numbers and mailboxes', NULL, 'Submit a message for each kind.');
    END IF;
END $$;

CREATE OR REPLACE FUNCTION submit_refuse_mailbox(argument text, address text, place text) RETURNS void LANGUAGE plpgsql AS $$
DECLARE  -- variables, because CONTEXT shows a whole statement
    too_long boolean := octet_length(address) > 254;
    head text := left(address, 255);
    domain text := split_part(head, '@', -1);
    reason text := CASE WHEN address IS NULL THEN 'an address is null'
        WHEN too_long THEN 'an address is over 254 octets'
        WHEN head ~ '[\u0001-\u001f\u007f]' COLLATE "C" THEN 'an address has a control character'
        WHEN head ~ '^[ (]*([+]|tel:)|^[0-9 .()-]+$' COLLATE "C" AND head !~ '@' THEN 'a telephone number is not in E.164'
        WHEN head !~ '@' THEN 'an address has no domain'
        WHEN lower(domain) = 'sms' THEN 'the domain sms is that of telephone numbers'
        WHEN length(head) - length(domain) > 65 THEN 'a local part is over 64 characters'
        ELSE 'an address is malformed' END;
    detail text := place || coalesce(to_json(left(head, 100))::text, 'null');
    hint text := CASE WHEN too_long THEN NULL
        WHEN head ~ '^[ (]*([+]|tel:)|^[0-9 .()-]+$' COLLATE "C" AND head !~ '@'
            THEN 'Write it with its country code, such as +491701234567.'
        WHEN domain ~ '[^\u0001-\u007f]' COLLATE "C" THEN 'Write the domain in A-labels: xn--…'
        WHEN head ~ '[<>,; ]' THEN 'Give the mailbox alone: no display name, no angle brackets.' END;
BEGIN
    PERFORM submit_refuse(argument, reason, detail, hint);
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
    sender_domain text := nullif(mailbox_domain(sender COLLATE "C"), 'sms');
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

CREATE FUNCTION reply_word(reply text, name text) RETURNS text IMMUTABLE PARALLEL SAFE
RETURN CASE WHEN reply ~ '^[245][.\d]+ HTTP \d' COLLATE "C"
    THEN substring(reply FROM concat(' ', name, '=(.+?)(?: error_sub_type=| error_text=| \(given up |$)')) END;

COMMENT ON FUNCTION reply_word IS 'The error code or sub type of a provider in a reply by HTTP, as queued writes it.';

CREATE OR REPLACE FUNCTION campaign_reconcile(most integer) RETURNS integer LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pgmta, pg_catalog, pg_temp SET jit = off
    SET enable_hashjoin = off SET enable_mergejoin = off SET enable_seqscan = off AS $$
DECLARE
    job record;
    changed integer := 0;
    earliest integer;
    number integer;
BEGIN
    FOR job IN
        SELECT j.id, j.campaign_id, j.first, j.last FROM campaign_jobs AS j
        WHERE j.status IN ('STOPPED', 'SENDING', 'SENT') ORDER BY j.id FOR UPDATE OF j SKIP LOCKED
    LOOP
        WITH gone AS MATERIALIZED (
            SELECT r.number, r.message_id FROM campaign_recipients AS r
            WHERE r.campaign_id = job.campaign_id AND r.number BETWEEN job.first AND job.last
                AND r.state IN ('queued', 'deferred')
                AND NOT EXISTS (SELECT FROM queue AS q WHERE q.message_id = r.message_id)
            LIMIT most
        ), ended AS MATERIALIZED (
            SELECT g.number, g.message_id, a.* FROM gone AS g LEFT JOIN LATERAL (
                SELECT a.event, a.code, a.enhanced, a.class, a.ended_at, a.reply FROM attempts AS a
                WHERE a.message_id = g.message_id AND a.event <> 'deferred'
                -- a delivery is a fact, whatever came after it
                ORDER BY a.event = 'delivered' DESC, a.event = 'unknown' DESC, a.ended_at DESC LIMIT 1) AS a ON true
        ), told AS (
            UPDATE campaign_recipients AS r SET
                state = CASE WHEN e.event = 'delivered' THEN 'sent' WHEN e.event = 'unknown' THEN 'unknown'
                    WHEN e.event IS NULL OR e.reply = 'the campaign was stopped' THEN 'unsent'
                    WHEN e.reply = 'suppressed' THEN 'invalid' ELSE 'failed' END,
                sent_at = CASE WHEN e.event = 'delivered' THEN e.ended_at END, answered_at = e.ended_at,
                bounced = e.event = 'failed' AND campaign_bounces(e.class),
                error_code = CASE WHEN e.event = 'delivered' THEN NULL WHEN e.reply = 'suppressed' THEN 'suppressed'
                    ELSE coalesce(reply_word(e.reply, 'error'), substring(e.reply FROM '^[245][.\d]+ HTTP (\d{3})\M'),
                        nullif(e.code, 0)::text, e.event) END,
                error_sub_type = coalesce(reply_word(e.reply, 'error_sub_type'),
                    nullif(concat_ws(' ', nullif(e.enhanced, ''), e.class), ''))
            FROM ended AS e
            WHERE r.campaign_id = job.campaign_id AND r.number = e.number AND r.message_id = e.message_id
                AND r.state IN ('queued', 'deferred')
            RETURNING r.number, r.state
        )
        SELECT count(*), min(told.number) FILTER (WHERE told.state = 'unsent') INTO number, earliest FROM told;
        changed := changed + number;
        -- what came back is fed again
        UPDATE campaign_jobs AS j SET fed_to = least(j.fed_to, earliest - 1),
            status = CASE j.status WHEN 'SENT' THEN 'SENDING' ELSE j.status END
        WHERE j.id = job.id AND earliest IS NOT NULL AND j.status IN ('ENQUEUED', 'SENDING', 'SENT');
    END LOOP;
    RETURN changed;
END $$;

CREATE OR REPLACE FUNCTION submit_mail(
    sender text, "to" text[], subject text, body text DEFAULT NULL, html text DEFAULT NULL, cc text[] DEFAULT '{}',
    bcc text[] DEFAULT '{}', reply_to text DEFAULT NULL, headers jsonb DEFAULT '{}',
    attachments submit_attachment[] DEFAULT '{}', "from" text DEFAULT NULL, send_at timestamptz DEFAULT NULL,
    priority integer DEFAULT 5, metadata jsonb DEFAULT '{}', key text DEFAULT NULL, tenant text DEFAULT '',
    on_failed text DEFAULT 'hold', once boolean DEFAULT false, wake boolean DEFAULT false,
    deadline timestamptz DEFAULT NULL
) RETURNS bigint LANGUAGE plpgsql SECURITY DEFINER SET search_path = pgmta, pg_catalog, pg_temp
    SET standard_conforming_strings = on AS $$
#variable_conflict use_variable
DECLARE
    -- The collation of an argument is the caller's, who may compare addresses without case.
    field text := CASE WHEN subject IS NULL THEN 'it is null' ELSE submit_field(subject) END;
    named jsonb := submit_mailboxes(CASE WHEN "from" IS NULL THEN 'sender' ELSE 'from' END,
        ARRAY[coalesce("from", sender)] COLLATE "C");
    main jsonb := submit_mailboxes('to', "to" COLLATE "C");
    copies jsonb := submit_mailboxes('cc', cc COLLATE "C");
    hidden jsonb := submit_mailboxes('bcc', bcc COLLATE "C");
BEGIN
    IF field IS NOT NULL OR subject !~ '\S' COLLATE "C" AND main #>> '{0,1}' !~ '^\+[0-9]+$' COLLATE "C" IS NOT FALSE THEN
        PERFORM submit_refuse('subject', coalesce(field, 'it is empty'), NULL, 'Give one line of up to 2,000 characters.');
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
            'reply_to', submit_mailboxes('reply_to', ARRAY[reply_to] COLLATE "C"), 'subject', subject, 'body', body, 'html', html,
            'headers', nullif(headers, '{}'))),
        sender COLLATE "C", coalesce(main, '[]') || coalesce(copies, '[]') || coalesce(hidden, '[]'), attachments,
        body IS NOT NULL, html IS NOT NULL, send_at, priority, metadata, key, tenant, on_failed, once, wake, deadline, NULL);
END $$;

CREATE OR REPLACE FUNCTION submit_mailboxes(argument text, mailboxes text[]) RETURNS jsonb LANGUAGE plpgsql AS $$
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
            OR tenant <> '' COLLATE "C" OR on_failed <> 'hold' COLLATE "C" THEN
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

CREATE OR REPLACE FUNCTION submit_word(value text, places jsonb) RETURNS text LANGUAGE sql IMMUTABLE AS $$
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

CREATE OR REPLACE FUNCTION is_plain(mail jsonb, mailboxes text, message_size bigint) RETURNS boolean STABLE LANGUAGE sql AS $$
    SELECT length(mailboxes) < 4000  -- many recipients take their time in any way
        AND without_names(mailboxes) ~ (replace('^("ADDRESS")*\|"ADDRESS"\["ADDRESS"(, "ADDRESS")*\]$', 'ADDRESS',
            '[A-Za-z0-9_+=-]+(\.[A-Za-z0-9_+=-]+)*@[a-z0-9]+((-+|\.)[a-z0-9]+)*') COLLATE "C")
        -- a name is of at most 63 characters, without escapes and without a blank in front; sms is no domain of mail
        AND mailboxes !~ '[^"<>]{64}|[\\\u007f]|" |@sms[">]' COLLATE "C"
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

ALTER TABLE suppressions DROP CONSTRAINT suppressions_address, ADD CONSTRAINT suppressions_address CHECK (
        address = lower(address COLLATE "C") AND octet_length(address) <= 254
        AND address ~ '^([^[:cntrl:]]+@[^@[:space:][:cntrl:]]+|[+][1-9][0-9]{6,14}|hmac:[0-9a-f]{64})$');
COMMENT ON CONSTRAINT suppressions_address ON suppressions IS 'A mailbox without upper case, a telephone number, or a keyed hash.';

COMMENT ON COLUMN campaign_recipients.recipient IS 'The mailbox or telephone number.';
COMMENT ON COLUMN campaign_recipients.error_code IS
    'The SMTP reply code of a failure, the error code of a provider or the status of HTTP, or a word such as suppressed.';
COMMENT ON COLUMN campaign_recipients.error_sub_type IS
    'The enhanced status code and the answer class of a failure, or the sub type of the provider.';

DO $$
BEGIN
    IF grants() <> '{}' THEN
        RAISE WARNING 'a role could not be made'
            USING HINT = 'Create the roles of docs/rights.md (NOLOGIN) and call pgmta.grants() as owner of the tables.';
    END IF;
END $$;

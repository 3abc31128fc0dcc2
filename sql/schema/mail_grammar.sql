-- The grammar of mail that is given as parts: judged for many mails at once, or for one.
--
-- The functions of language sql are STABLE and one SELECT each, so PostgreSQL makes them a part of the query of the
-- caller: a call of them costs nothing.

CREATE FUNCTION mails_judged(mails jsonb) RETURNS TABLE (
    place bigint, mail jsonb, params jsonb, sender_domain text, recipients text[], domains text[], fault text, bad integer
) STABLE LANGUAGE sql AS $$
    -- OFFSET 0: what a subquery computes is computed once, and not wherever it is named
    SELECT place, mail, jsonb_strip_nulls(jsonb_build_object('from', from_pair, 'to', to_pairs, 'cc', cc_pairs,
            'reply_to', reply_to_pairs, 'subject', CASE WHEN subject ~ '\S' COLLATE "C" THEN subject END,
            'body', mail -> 'body', 'html', mail -> 'html', 'headers', nullif(mail -> 'headers', '{}'))),
        sender_domain, recipients, domains, fault, bad
    FROM (
        SELECT place, mail, subject, coalesce(from_pair, jsonb_build_array('', sender)) AS from_pair, to_pairs, cc_pairs,
            reply_to_pairs, sender_domain, bad,
            -- PostgreSQL looks for a text in an array from its beginning, and more are refused
            CASE WHEN cardinality(firsts) <= 1000 THEN ARRAY(SELECT recipients[n] FROM unnest(firsts) AS n) ELSE recipients END AS recipients,
            CASE WHEN cardinality(firsts) <= 1000 THEN ARRAY(SELECT domains[n] FROM unnest(firsts) AS n) ELSE domains END AS domains,
            CASE WHEN sender IS NULL THEN 'no sender'
                WHEN sender_domain IS NULL THEN 'sender'
                WHEN coalesce(mail ->> 'from', sender) = '' THEN 'from'
                WHEN bad > 0 THEN 'mailbox'
                WHEN submit_field(subject) IS NOT NULL THEN 'subject'
                WHEN coalesce(mail ->> 'body', mail ->> 'html') IS NULL THEN 'body'
                WHEN domains IS NULL THEN 'no recipient'
                WHEN firsts IS NOT NULL THEN CASE
                    WHEN cardinality(firsts) > 1000 THEN 'many recipients'
                    -- a header over 1 MB is not signed, and few servers take one
                    WHEN cardinality(domains) > 300 AND octet_length(concat(to_pairs, cc_pairs)) > 400000 THEN 'large header'
                    WHEN 'sms' = ANY (domains) AND 'sms' <> ANY (domains) THEN 'two kinds' END END AS fault
        FROM (
            SELECT place, mail, mail ->> 'sender' AS sender, mail ->> 'subject' AS subject,
                CASE WHEN mail ->> 'sender' = '' THEN '' ELSE nullif(mailbox_domain(mail ->> 'sender'), 'sms') END AS sender_domain
            FROM jsonb_array_elements(mails) WITH ORDINALITY AS each (mail, place) OFFSET 0
        ) AS given, LATERAL mailboxes_judged(text_in_list(mail -> 'from'), json_list(mail -> 'to'), json_list(mail -> 'cc'),
            json_list(mail -> 'bcc'), text_in_list(mail -> 'reply_to')) OFFSET 0
    ) AS judged OFFSET 0
$$;
COMMENT ON FUNCTION mails_judged IS
    'Judges each mail of a JSON array: what makes its message and its rows, and the first fault of its parts. A mailbox that '
    'is bad has its place in all lists. Other values have to be of the right types.';

CREATE FUNCTION mailboxes_judged("from" jsonb, "to" jsonb, cc jsonb, bcc jsonb, reply_to jsonb) RETURNS TABLE (
    from_pair jsonb, to_pairs jsonb, cc_pairs jsonb, reply_to_pairs jsonb, recipients text[], domains text[], firsts bigint[],
    bad integer
) STABLE LANGUAGE sql AS $$
    SELECT from_pair, to_pairs, cc_pairs, reply_to_pairs, recipients, domains, CASE WHEN cardinality(domains) > 1 THEN ARRAY(
            -- each recipient once, as smtpd does: the domain in any case, the local part as it is
            SELECT min(n) FROM unnest(recipients, domains) WITH ORDINALITY AS each (recipient, domain, n)
            GROUP BY recipient_key(recipient, domain) ORDER BY 1) END, bad
    FROM (
        SELECT jsonb_agg(pair) FILTER (WHERE n <= from_end) -> 0 AS from_pair,
            jsonb_agg(pair) FILTER (WHERE n > from_end AND n <= to_end) AS to_pairs,
            jsonb_agg(pair) FILTER (WHERE n > to_end AND n <= cc_end) AS cc_pairs,
            jsonb_agg(pair) FILTER (WHERE n > bcc_end) AS reply_to_pairs,
            array_agg(address) FILTER (WHERE n > from_end AND n <= bcc_end) AS recipients,
            array_agg(domain) FILTER (WHERE n > from_end AND n <= bcc_end) AS domains,
            min(n) FILTER (WHERE domain IS NULL OR domain = 'sms' AND (n <= from_end OR n > to_end)
                OR name <> '' AND submit_field(name, 255) IS NOT NULL) AS bad
        FROM (
            SELECT *, jsonb_build_array(name, address) AS pair, mailbox_domain(address) AS domain
            FROM (
                SELECT from_end, to_end, cc_end, bcc_end, n,
                    CASE WHEN tail IS NULL THEN ''
                        ELSE unquoted(btrim(left(mailbox, length(mailbox) - length(tail) - 1), E' \t')) END AS name,
                    CASE WHEN tail IS NOT NULL THEN split_part(tail, '>', 1)
                        WHEN strpos(mailbox, '@') = 0 THEN submit_number(mailbox) ELSE mailbox END AS address
                FROM (
                    SELECT from_end, to_end, cc_end, bcc_end, n, mailbox,
                        CASE WHEN strpos(mailbox, '<') > 0 AND mailbox ~ '>[ \t]*$' COLLATE "C"
                            THEN split_part(mailbox, '<', -1) END AS tail
                    FROM (
                        SELECT from_end, to_end, cc_end, bcc_end, jsonb_array_elements_text(list) AS mailbox,
                            generate_series(1, jsonb_array_length(list)) AS n
                        FROM (
                            SELECT "from" || "to" || cc || bcc || reply_to AS list, jsonb_array_length("from") AS from_end,
                                jsonb_array_length("from" || "to") AS to_end, jsonb_array_length("from" || "to" || cc) AS cc_end,
                                jsonb_array_length("from" || "to" || cc || bcc) AS bcc_end OFFSET 0
                        ) AS lists OFFSET 0
                    ) AS each OFFSET 0
                ) AS split OFFSET 0
            ) AS named OFFSET 0
        ) AS parsed
    ) AS gathered OFFSET 0
$$;
COMMENT ON FUNCTION mailboxes_judged IS
    'Pairs of name and address of the mailboxes of a mail: Ann <ann@b.example> is ["Ann", "ann@b.example"]. The addresses of '
    'its recipients with their domains; if there are several, the places where each of them is first. And the place of the '
    'first bad mailbox in all lists.';

CREATE FUNCTION json_list(value jsonb) RETURNS jsonb IMMUTABLE LANGUAGE sql AS $$
    SELECT CASE WHEN jsonb_typeof(value) = 'array' THEN value ELSE '[]' END
$$;
COMMENT ON FUNCTION json_list IS 'A JSON array; an empty one for another value.';

CREATE FUNCTION text_in_list(value jsonb) RETURNS jsonb STABLE LANGUAGE sql AS $$
    SELECT CASE WHEN value NOT IN ('""', 'null') THEN jsonb_build_array(value) ELSE '[]' END
$$;
COMMENT ON FUNCTION text_in_list IS 'A JSON array of a text; an empty one if it is missing or empty.';

CREATE FUNCTION unquoted(name text) RETURNS text IMMUTABLE LANGUAGE sql AS $$
    SELECT CASE WHEN strpos(name, '"') + strpos(name, '\') = 0 THEN name ELSE replace(replace(
        CASE WHEN name ~ '^".*"$' COLLATE "C" THEN substr(name, 2, length(name) - 2) ELSE name END, '\"', '"'), '\\', '\') END
$$;
COMMENT ON FUNCTION unquoted IS 'A name without quotes around it and backslashes in it (RFC 5322, section 3.2.4).';

CREATE FUNCTION submit_refuse_parts(mail jsonb, fault text, bad integer) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    argument text;
    list jsonb;
BEGIN
    IF fault = 'mailbox' THEN
        FOREACH argument IN ARRAY '{from,to,cc,bcc,reply_to}'::text[] LOOP
            list := CASE WHEN argument IN ('from', 'reply_to') THEN text_in_list(mail -> argument)
                ELSE json_list(mail -> argument) END;
            IF bad <= jsonb_array_length(list) THEN
                PERFORM submit_refuse_named(argument, list ->> bad - 1,
                    format('Mailbox %s of %s: ', bad, jsonb_array_length(list)));
            END IF;
            bad := bad - jsonb_array_length(list);
        END LOOP;
    ELSIF fault = 'sender' THEN
        PERFORM submit_refuse_mailbox('sender', mail ->> 'sender', 'Address: ');
    ELSIF fault = 'subject' THEN
        PERFORM submit_refuse('subject', submit_field(mail ->> 'subject'), NULL, 'Give one line of up to 2,000 characters.');
    END IF;
    PERFORM CASE fault
        WHEN 'no sender' THEN submit_refuse('sender', 'it is null')
        WHEN 'from' THEN submit_refuse('from', 'it is missing', NULL, 'The sender is empty, so give an address for From.')
        WHEN 'body' THEN submit_refuse('body', 'there is neither body nor html', NULL, 'Give plain text, html or both.')
        WHEN 'no recipient' THEN submit_refuse('to', 'there is no recipient', NULL, 'Give a mailbox in to, cc or bcc.')
        WHEN 'many recipients' THEN submit_refuse('to', 'there are over 1000 recipients', NULL, 'Submit the mail several times.')
        WHEN 'large header' THEN submit_refuse('to', 'to and cc are over 400000 octets', NULL, 'Submit the mail several times.')
        WHEN 'two kinds' THEN submit_refuse('recipients', 'there are telephone numbers and mailboxes', NULL,
            'Submit a message for each kind.') END;
END $$;
COMMENT ON FUNCTION submit_refuse_parts IS
    'Raises the error of a fault that mails_judged() has found.';

CREATE FUNCTION submit_refuse_named(argument text, mailbox text, place text) RETURNS void LANGUAGE plpgsql AS $$
DECLARE  -- variables, because CONTEXT shows a whole statement
    named text[] := regexp_match(mailbox COLLATE "C", '^(.*)<([^<>]*)>[ \t]*$');
    name text := unquoted(btrim(named[1], E' \t'));
    address text := coalesce(named[2], mailbox);
    fault text := submit_field(name, 255);
BEGIN
    IF fault IS NOT NULL THEN
        PERFORM submit_refuse(argument, 'a name: ' || fault, place || to_json(left(name, 100)),
            'A name has up to 255 characters in one line.');
    ELSIF octet_length(address) <= 254 AND address ~ '[<>,; ]'
            AND address !~ '[\u0001-\u001f\u007f]|^[0-9+ .()-]+$' COLLATE "C" THEN
        PERFORM submit_refuse(argument, 'an address is malformed', place || to_json(left(mailbox, 100)),
            'Each mailbox is bob@example.com or Bob <bob@example.com>, and one alone.');
    END IF;
    PERFORM submit_refuse_mailbox(argument, address, place);
END $$;
COMMENT ON FUNCTION submit_refuse_named IS 'Raises the error of a bad mailbox that may have a name.';

CREATE FUNCTION recipient_key(address text, domain text) RETURNS text IMMUTABLE LANGUAGE sql AS $$
    SELECT CASE WHEN domain = 'sms' THEN address
        ELSE left(address, length(address) - length(split_part(address, '@', -1))) || domain END COLLATE "C"
$$;
COMMENT ON FUNCTION recipient_key IS 'A text that two recipients have in common if they are the same.';

CREATE FUNCTION common_judged(mails jsonb) RETURNS TABLE (
    place bigint, mail jsonb, sender text, params jsonb, octets bigint, utf8 boolean, sender_domain text, recipients text[],
    domains text[], hostname text, good boolean
) STABLE LANGUAGE sql AS $$
    SELECT place, mail, mail ->> 'sender', params, octet_length(written),
        (octet_length(written) > length(written) OR mail ? 'bcc') AND composed_utf8(mail ->> 'sender', recipients, params),
        sender_domain, recipients, domains, hostname, fault IS NULL AND is_common(mail) AND octet_length(written) <= least(message_size, 4194304)
            AND domains[1] <> 'sms'
            AND option_fault((mail ->> 'priority')::integer, mail -> 'metadata', mail ->> 'tenant', mail ->> 'on_failed') IS NULL
    FROM (SELECT *, params::text AS written FROM mails_judged(mails) OFFSET 0) AS judged, submit_settings OFFSET 0
$$;
COMMENT ON FUNCTION common_judged IS
    'mails_judged(), and whether a mail is good and common: without the keys that make further rows, or that few mails have.';

CREATE FUNCTION is_common(mail jsonb) RETURNS boolean STABLE LANGUAGE sql AS $$
    -- a mailbox that is no text has a fault, and so have metadata that are no object
    SELECT CASE WHEN jsonb_typeof(mail) = 'object' THEN
        mail - '{sender,to,cc,bcc,reply_to,from,subject,body,html,priority,metadata,tenant,on_failed,once}'::text[] = '{}'
        AND coalesce(jsonb_typeof(mail -> 'to') = 'array', true) AND coalesce(jsonb_typeof(mail -> 'cc') = 'array', true)
        AND coalesce(jsonb_typeof(mail -> 'bcc') = 'array', true) AND coalesce(jsonb_typeof(mail -> 'subject') = 'string', true)
        AND coalesce(jsonb_typeof(mail -> 'body') = 'string', true) AND coalesce(jsonb_typeof(mail -> 'html') = 'string', true)
        AND coalesce(jsonb_typeof(mail -> 'tenant') = 'string', true) AND coalesce(jsonb_typeof(mail -> 'once') = 'boolean', true)
        AND coalesce(jsonb_typeof(mail -> 'priority') = 'number' AND octet_length((mail -> 'priority')::text) = 1, true)
        AND getdatabaseencoding() = 'UTF8' END
$$;
COMMENT ON FUNCTION is_common IS
    'Whether a mail has only common keys, each with a value of its type; null or false of others.';

CREATE FUNCTION composed_message_id(id bigint, hostname text) RETURNS text LANGUAGE sql AS $$
    SELECT concat('<', id, '.', right(replace(gen_random_uuid()::text, '-', ''), 16), '@', coalesce(hostname, 'localhost'), '>')
$$;
COMMENT ON FUNCTION composed_message_id IS 'The Message-ID of composed mail without attachments.';

CREATE FUNCTION parts_message(
    id bigint, mail jsonb, sender text, sender_domain text, octets bigint, utf8 boolean, params jsonb, hostname text
) RETURNS new_message LANGUAGE sql
RETURN new_message(id => id, size => octets, priority => coalesce((mail ->> 'priority')::smallint, '5'),
    trace => submit_trace(hostname, id), body => '', sender => sender, sender_domain => sender_domain,
    on_failed => coalesce(mail ->> 'on_failed', 'remove'), message_id_header => composed_message_id(id, hostname),
    origin => 'sql', utf8 => utf8, tenant => mail ->> 'tenant', once => (mail ->> 'once')::boolean,
    submitted_by => acting(), ret => 'HDRS', params => params);
COMMENT ON FUNCTION parts_message IS 'A mail for queue_put that common_judged() has found good.';

CREATE FUNCTION submit_lone_mail(mails jsonb) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    judged record;
    message_id bigint;
    rows integer;
BEGIN
    SELECT j.* INTO judged FROM common_judged(mails) AS j WHERE good;
    IF NOT FOUND THEN RETURN NULL; END IF;
    message_id := next_message_id();
    -- an assignment, because PERFORM runs a query, which takes longer
    rows := queue_put(
        ARRAY[parts_message(message_id, judged.mail, judged.sender, judged.sender_domain, judged.octets, judged.utf8,
            judged.params, judged.hostname)],
        lone_rows(judged.recipients, judged.domains, judged.mail -> 'metadata'));
    RETURN message_id;
END $$;
COMMENT ON FUNCTION submit_lone_mail IS
    'submit_parts() of one mail, which has to be quick alone: few expressions, because PL/pgSQL prepares each in each transaction.';

CREATE FUNCTION submit_parts(mails jsonb) RETURNS bigint[] LANGUAGE plpgsql AS $$
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
            ids := ids || submit_parts(slice);
        END LOOP;
        RETURN ids;
    END IF;
    WITH judged AS MATERIALIZED (
        SELECT *, CASE WHEN good THEN next_message_id() END AS id FROM common_judged(mails)
    ), numbered AS MATERIALIZED (
        SELECT *, row_number() OVER ()::integer AS number FROM judged WHERE good
    )
    SELECT (SELECT array_agg(id ORDER BY place) FROM judged), (
        SELECT queue_put(array_agg(parts_message(id, mail, sender, sender_domain, octets, utf8, params, hostname)), ARRAY(
            SELECT new_row(number, r, d, mail -> 'metadata') FROM numbered, unnest(recipients, domains) AS each (r, d)))
        FROM numbered HAVING count(*) > 0)
    INTO ids, rows;
    RETURN ids;
END $$;
COMMENT ON FUNCTION submit_parts IS
    'Puts the common mails of a JSON array into the queue that are good. Returns the id of each in order, null of the others.';

CREATE FUNCTION composed_utf8(sender text, recipients text[], params jsonb) RETURNS boolean STABLE LANGUAGE sql AS $$
    -- of large parameters a worker knows no more than this
    SELECT concat(sender, array_to_string(recipients, ''), params #>> '{from,1}', params #>> '{reply_to,0,1}')
        ~ '[^\u0001-\u007f]' COLLATE "C"
$$;
COMMENT ON FUNCTION composed_utf8 IS 'Whether composed mail has an address beyond ASCII.';

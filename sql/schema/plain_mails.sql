-- Plain mail of submit_mails(): parts in their common form, stored by few statements for all of them.
--
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
        on_failed => ARRAY[coalesce(mail ->> 'on_failed', 'remove')], once => ARRAY[(mail ->> 'once')::boolean],
        logins => ARRAY[acting()], rets => '{HDRS}', metadata => array_fill(mail ->> 'metadata', ARRAY[cardinality(recipients)]),
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
            array_agg(coalesce(mail ->> 'on_failed', 'remove')) AS on_failed, array_agg((mail ->> 'once')::boolean) AS once,
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
            logins => array_fill(acting()::text, ARRAY[number]), rets => array_fill('HDRS'::text, ARRAY[number]),
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

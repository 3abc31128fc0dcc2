-- Checks of the arguments of submit(), and the errors of bad ones.

-- PL/pgSQL compiles a function once in a session, by the settings of its first call, and submit() then runs it
-- with the owner's rights. So settings of this function fix the types of its variables and the text of its patterns.
CREATE FUNCTION mailbox_domain_any(address text) RETURNS text LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE
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
        -- nearly all local parts and domains match the pattern of a dot-string and a name; these do not
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
COMMENT ON FUNCTION mailbox_domain_any IS 'mailbox_domain of an address in any notation.';

-- PL/pgSQL prepares its expressions in each transaction; this becomes a part of one expression.
CREATE FUNCTION mailbox_domain(address text) RETURNS text IMMUTABLE PARALLEL SAFE
RETURN CASE WHEN length(address) <= 63 AND address ~ ('^[A-Za-z0-9_+=-]+(\.[A-Za-z0-9_+=-]+)*@'
        '[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?(\.[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?)*$' COLLATE "C")
    THEN nullif(lower(split_part(address COLLATE "C", '@', 2)), 'sms') ELSE mailbox_domain_any(address) END;
COMMENT ON FUNCTION mailbox_domain IS
    'The domain of a mailbox (RFC 5321, section 4.1.2) in lower case, or an address literal; null if the text is no '
    'mailbox. A domain beyond ASCII has to be written in A-labels. That of a telephone number such as +491701234567 is sms, '
    'and no mailbox has it.';

CREATE FUNCTION mailbox_key(address text) RETURNS text IMMUTABLE PARALLEL SAFE
RETURN lower(CASE WHEN strpos(address, '"') <> 1 THEN address
    -- a dot-string in quotes, with or without backslashes
    WHEN regexp_replace(substring(address FROM '^"(.*)"@[^@]*$'), '\\(.)', '\1', 'g') COLLATE "C"
        ~ '^[^][()<>:;@\\,." [:cntrl:]]+(\.[^][()<>:;@\\,." [:cntrl:]]+)*$'
    THEN regexp_replace(substring(address FROM '^"(.*)"@[^@]*$'), '\\(.)', '\1', 'g') || substring(address FROM '@[^@]*$')
    ELSE coalesce('"' || regexp_replace(regexp_replace(substring(address FROM '^"(.*)"@[^@]*$'), '\\(.)', '\1', 'g'),
        '(["\\])', '\\\1', 'g') || '"' || substring(address FROM '@[^@]*$'), address) END COLLATE "C");
COMMENT ON FUNCTION mailbox_key IS
    'The text by which addresses are compared: in lower case of ASCII, without needless quotes and backslashes. A domain beyond '
    'ASCII has to be written in A-labels.';

CREATE FUNCTION submit_envelope(sender text, recipients text[],
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
            SELECT DISTINCT ON (recipient_key(address, domain)) address, domain, place
            FROM unnest(recipients) WITH ORDINALITY AS given (address, place),
                LATERAL (SELECT mailbox_domain(address) OFFSET 0) AS parsed (domain)
            ORDER BY recipient_key(address, domain), place
        ) AS different;
    END IF;
    IF bad IS NOT NULL AND ARRAY(SELECT submit_number(each) FROM unnest(recipients) AS each) <> recipients THEN
        SELECT e.* INTO addresses, sender_domain, domains
        FROM submit_envelope(sender, ARRAY(SELECT submit_number(each) FROM unnest(recipients) AS each)) AS e;
    ELSIF bad IS NOT NULL THEN
        PERFORM submit_refuse_mailbox('recipients', (SELECT address
                FROM unnest(recipients) WITH ORDINALITY AS given (address, place) WHERE place = bad),
            format('Recipient %s of %s: ', bad, cardinality(recipients)));
    ELSIF 'sms' = ANY (domains) AND 'sms' <> ANY (domains) THEN
        PERFORM submit_refuse('recipients', 'there are telephone numbers and mailboxes', NULL, 'Submit a message for each kind.');
    END IF;
END $$;
COMMENT ON FUNCTION submit_envelope IS 'Parses the envelope: each recipient once. Raises the error of a bad one.';

CREATE FUNCTION submit_number(recipient text) RETURNS text IMMUTABLE LANGUAGE sql AS $$
    SELECT CASE WHEN recipient ~ '^[ (]*[+][0-9 .()-]+$' COLLATE "C"
        THEN regexp_replace(recipient, '[ .()-]', '', 'g') ELSE recipient END
$$;
COMMENT ON FUNCTION submit_number IS
    'A recipient; a telephone number in E.164, without visual separators (RFC 3966, section 5.1.1) and blanks. '
    'pgmta/mail/telephone.py has the same.';

-- PL/pgSQL prepares each expression anew in each transaction, so there are few.
CREATE FUNCTION submit_header(content bytea, size_limit bigint) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    octets bigint := octet_length(content);
    -- escaped text is ASCII in every encoding
    beginning text COLLATE "C" := encode(substring(content FROM 1 FOR 65536), 'escape');
    header text COLLATE "C" := split_part(beginning, E'\r\n\r\n', 1);
    fault text := CASE
        WHEN octets = 0 THEN 'it is empty'
        WHEN octets > size_limit THEN format('it is over %s octets', size_limit)
        WHEN position('\x00'::bytea IN content) > 0 THEN 'it has NUL'
        WHEN CASE WHEN octets > 65536 THEN submit_bare(content)
            ELSE beginning ~ '\r([^\n]|$)|(^|[^\r])\n' COLLATE "C" END THEN 'it has a bare CR or LF'
        WHEN length(header) = 65536 THEN 'its header does not end within 64 KB'
        -- whole fields with their continuations (RFC 5322, section 2.2)
        WHEN header !~ '^[!-9;-~]+[ \t]*:[^\r]*(\r\n([!-9;-~]+[ \t]*:|[ \t])[^\r]*)*(\r\n)?$' COLLATE "C"
            THEN 'it does not begin with header fields'
        WHEN header ~ '(?in)^received:' COLLATE "C" AND regexp_count(header, '^received:', 1, 'in') > 100
            THEN 'it has over 100 Received fields' END;
BEGIN
    IF fault IS NULL THEN RETURN header; END IF;
    PERFORM submit_refuse('content', fault, CASE
        WHEN octets > size_limit THEN format('It has %s.', octets)
        WHEN fault = 'it has NUL' THEN 'At octet ' || position('\x00'::bytea IN content) END,
        CASE fault WHEN 'it has a bare CR or LF' THEN 'Each line ends with CR LF: '
            'convert_to(regexp_replace(convert_from(content, ''LATIN1''), E''\r\n?|\n'', E''\r\n'', ''g''), ''LATIN1'').'
        WHEN 'it does not begin with header fields' THEN
            'Fields such as From: and Subject: come first, each in one line or folded, then an empty line.'
        WHEN 'it has over 100 Received fields' THEN 'It may be in a loop.' END);
END $$;
COMMENT ON FUNCTION submit_header IS
    'Returns the header of content, escaped. Raises the error of content that can''t be a message.';

CREATE FUNCTION submit_bare(content bytea) RETURNS boolean LANGUAGE sql AS $$
    -- each octet and the next one are in one slice
    SELECT get_byte(content, 0) = 10 OR get_byte(content, octet_length(content) - 1) = 13 OR EXISTS (
        SELECT FROM generate_series(1, octet_length(content), 65536) AS place
        WHERE encode(substring(content FROM place FOR 65537), 'escape') ~ '\r[^\n]|[^\r]\n' COLLATE "C")
$$;
COMMENT ON FUNCTION submit_bare IS 'Whether large content has a CR without LF, or the other way round.';

CREATE FUNCTION submit_message_id(header text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    value text COLLATE "C" := substring(header FROM '(?in)^message-id[ \t]*:([^\r]*(?:\r\n[ \t][^\r]*)*)' COLLATE "C");
BEGIN
    value := btrim(regexp_replace(value, '\r\n[ \t]+', ' ', 'g'), E' \t\v\f');
    -- a backslash is doubled; a single one begins an octet beyond ASCII
    IF value !~ '^([ -[^-~\]]|\\\\)+$' COLLATE "C" THEN RETURN NULL; END IF;
    value := replace(value, '\\', '\');
    RETURN CASE WHEN length(value) <= 998 THEN value END;
END $$;
COMMENT ON FUNCTION submit_message_id IS
    'The Message-ID of a header; null if it has none, or one that is not printable ASCII of at most 998 characters.';

CREATE FUNCTION submit_options(
    send_at timestamptz, priority integer, INOUT metadata jsonb, key text, tenant text, on_failed text,
    deadline timestamptz, scope text, OUT scheduled timestamptz
) LANGUAGE plpgsql AS $$
DECLARE
    fault text[];
    exempt jsonb := CASE WHEN jsonb_typeof(metadata) = 'object' THEN metadata -> '_exempt' END;
BEGIN
    IF send_at IS NOT NULL THEN
        scheduled := submit_send_at(send_at);
    END IF;
    IF exempt IS NOT NULL THEN metadata := metadata - '_exempt'; END IF;
    fault := option_fault(priority, metadata, tenant, on_failed);
    IF fault IS NOT NULL THEN PERFORM submit_refuse(fault[1], fault[2], fault[3], fault[4]); END IF;
    IF length(key) NOT BETWEEN 1 AND 255 OR key ~ '[\u0001-\u001f\u007f]' COLLATE "C" THEN
        PERFORM submit_refuse('key', 'it is empty, over 255 characters or has control characters');
    END IF;
    IF deadline IS NOT NULL THEN
        IF metadata ? '_deadline' THEN
            PERFORM submit_refuse('deadline', 'metadata has _deadline too', NULL, 'Give one of them.');
        ELSIF deadline <= scheduled THEN
            PERFORM submit_refuse('deadline', 'it is not after send_at', NULL, 'The mail would never be sent.');
        END IF;
        metadata := metadata || jsonb_build_object('_deadline', submit_deadline(deadline));
    END IF;
    IF exempt IS NOT NULL THEN metadata := metadata || submit_exempt(exempt); END IF;
    IF scope IS NOT NULL THEN
        PERFORM submit_scope(scope, tenant);
        metadata := metadata || jsonb_build_object('_scope', scope);
    END IF;
    IF getdatabaseencoding() <> 'UTF8' THEN
        PERFORM submit_text('key', key), submit_text('metadata', metadata::text);
    END IF;
END $$;
COMMENT ON FUNCTION submit_options IS
    'Raises the error of the first bad argument beside envelope and content. Returns the metadata with the deadline '
    'and the scope, and send_at if the mail is scheduled, else null.';

-- a feature replaces it
CREATE FUNCTION submit_scope(scope text, tenant text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM submit_refuse('unsubscribe', 'there is no list of suppressions here', NULL, 'Leave it out.');
END $$;
COMMENT ON FUNCTION submit_scope IS
    'Raises the error of a scope from which recipients of a tenant can''t unsubscribe, as the argument unsubscribe has it.';

CREATE FUNCTION submit_exempt(given jsonb) RETURNS jsonb LANGUAGE plpgsql STABLE AS $$
BEGIN
    IF NOT acting_in(to_regrole('pgmta_operator')) THEN
        PERFORM submit_refuse('metadata', 'only operators may give _exempt', NULL,
            'It sends mail to a suppressed address: a right of pgmta_operator.');
    END IF;
    RETURN jsonb_build_object('_exempt', concat('operator ', acting(),
        CASE WHEN jsonb_typeof(given) = 'string' THEN ': ' || left(given #>> '{}', 200) END));
END $$;
COMMENT ON FUNCTION submit_exempt IS
    'The key _exempt of mail by an operator, which goes to suppressed addresses too: the log has the name, and the text given.';

CREATE FUNCTION option_fault(priority integer, metadata jsonb, tenant text, on_failed text) RETURNS text[]
STABLE LANGUAGE sql AS $$
    SELECT CASE WHEN priority NOT BETWEEN 0 AND 9
            THEN ARRAY['priority', 'it is not from 0 (first) to 9', format('It is %s.', priority)]
        WHEN on_failed NOT IN ('hold', 'remove', 'bounce')
            THEN ARRAY['on_failed', 'it is neither hold nor remove nor bounce']
        WHEN octet_length(tenant) > 64 OR tenant <> '' AND tenant !~ '^[A-Za-z0-9][A-Za-z0-9._@+-]{0,63}$' COLLATE "C"
            THEN ARRAY['tenant', 'it is no name of 1 to 64 letters, digits and . _ @ + -']
        -- mostly flat, and without keys that begin with _
        WHEN NOT (octet_length(metadata::text) <= 4000 AND metadata::text ~ '^\{[^][{}]*\}$' COLLATE "C"
            AND strpos(metadata::text, '"_') = 0) THEN metadata_fault(metadata) END
$$;
COMMENT ON FUNCTION option_fault IS
    'The first bad one of these arguments, which every kind of mail has: its name, the reason, details and a hint, as '
    'submit_refuse() takes them.';

CREATE FUNCTION metadata_fault(metadata jsonb) RETURNS text[] STABLE LANGUAGE plpgsql AS $$
DECLARE
    bad text := CASE WHEN jsonb_typeof(metadata) = 'object' THEN (SELECT min(name) FROM jsonb_object_keys(metadata) AS name
        WHERE starts_with(name, '_') AND name NOT IN ('_partid', '_deadline', '_trace')) END;
BEGIN
    RETURN CASE WHEN jsonb_typeof(metadata) <> 'object'
            THEN ARRAY['metadata', 'it is no JSON object', 'It is of type ' || jsonb_typeof(metadata)]
        WHEN octet_length(metadata::text) > 4000
            THEN ARRAY['metadata', 'it is over 4000 octets as text']
        WHEN jsonb_path_exists(metadata, 'strict $.**{100}')
            THEN ARRAY['metadata', 'it is nested over 100 levels deep']
        WHEN bad IS NOT NULL
            THEN ARRAY['metadata', 'a key begins with _', 'Key: ' || to_json(left(bad, 100)),
                'Such keys belong to pgmta; only _partid, _deadline and _trace may be given, by operators also _exempt.']
        WHEN jsonb_typeof(metadata -> '_partid') NOT IN ('string', 'number') OR length(metadata ->> '_partid') > 100
            THEN ARRAY['metadata', '_partid is no text of at most 100 characters']
        WHEN metadata ? '_deadline' AND NOT deadline_valid(metadata -> '_deadline')
            THEN ARRAY['metadata', '_deadline is no time of RFC 3339', NULL,
                'Write for example 2026-01-31T09:30:00Z.']
        WHEN metadata ? '_trace' AND (jsonb_typeof(metadata -> '_trace') <> 'string' OR metadata ->> '_trace'
                !~ '^00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}$' COLLATE "C")
            THEN ARRAY['metadata', '_trace is no traceparent of W3C Trace Context', NULL,
                'Write for example 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01.'] END;
END $$;
COMMENT ON FUNCTION metadata_fault IS 'option_fault() of metadata.';

CREATE FUNCTION submit_send_at(send_at timestamptz) RETURNS timestamptz LANGUAGE plpgsql AS $$
BEGIN
    IF NOT isfinite(send_at) THEN
        PERFORM submit_refuse('send_at', 'it is infinite');
    ELSIF send_at > clock_timestamp() + interval '10 years' THEN
        -- a later time is a slip in the year, or milliseconds taken for seconds, and may be beyond a program's calendar
        PERFORM submit_refuse('send_at', 'it is over 10 years ahead',
            'It is in the year ' || extract(year FROM send_at AT TIME ZONE 'UTC'));
    END IF;
    RETURN CASE WHEN send_at > clock_timestamp() THEN send_at END;
END $$;
COMMENT ON FUNCTION submit_send_at IS 'Returns a time that is in the future, else null. Raises the error of a bad one.';

CREATE FUNCTION submit_deadline(deadline timestamptz) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
    IF deadline NOT BETWEEN '0001-01-02 00:00:00+00' AND '9999-12-30 00:00:00+00' THEN
        PERFORM submit_refuse('deadline', 'it is infinite or beyond the years 1 to 9999');
    END IF;
    RETURN rtrim(rtrim(to_char(deadline AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US'), '0'), '.') || 'Z';
END $$;
COMMENT ON FUNCTION submit_deadline IS
    'Writes a deadline as a time of RFC 3339 in UTC, as metadata._deadline has it. Raises the error of a bad one.';

CREATE FUNCTION deadline_valid(deadline jsonb) RETURNS boolean STABLE LANGUAGE plpgsql AS $$
BEGIN
    -- queued/outgoing/deadline_stage.py reads it
    RETURN jsonb_typeof(deadline) = 'null' OR jsonb_typeof(deadline) = 'string'
        AND deadline #>> '{}' ~ ('^\d{4}-\d\d-\d\d[Tt ]([01]\d|2[0-3]):[0-5]\d:([0-5]\d|60)(\.\d+)?'
            '([Zz]|[+-]([01]\d|2[0-3]):[0-5]\d)$' COLLATE "C")
        AND (left(deadline #>> '{}', 10)::date BETWEEN '0001-01-02' AND '9999-12-30');
EXCEPTION WHEN datetime_field_overflow OR invalid_datetime_format THEN
    RETURN false;
END $$;
COMMENT ON FUNCTION deadline_valid IS 'Whether metadata._deadline is a time of RFC 3339, or null.';

CREATE FUNCTION submit_refuse(argument text, reason text, detail text DEFAULT NULL, hint text DEFAULT NULL,
    state text DEFAULT 'invalid_parameter_value') RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    hint := coalesce(hint, 'docs/programs/sql.md has the arguments: "Submit in your transaction".');
    IF detail IS NULL THEN  -- an option of RAISE can't be null
        RAISE EXCEPTION '%: %', argument, reason USING ERRCODE = state, COLUMN = argument, HINT = hint;
    END IF;
    RAISE EXCEPTION '%: %', argument, reason
        USING ERRCODE = state, COLUMN = argument, HINT = hint, DETAIL = detail;
END $$;
COMMENT ON FUNCTION submit_refuse IS 'Raises the error of a bad argument, with its name as COLUMN.';

CREATE FUNCTION submit_refuse_mailbox(argument text, address text, place text) RETURNS void LANGUAGE plpgsql AS $$
DECLARE  -- variables, because CONTEXT of an error shows a whole statement with its texts
    too_long boolean := octet_length(address) > 254;
    head text := left(address, 255);
    domain text := split_part(head, '@', -1);
    reason text := CASE WHEN address IS NULL THEN 'an address is null'
        WHEN too_long THEN 'an address is over 254 octets'
        WHEN head ~ '[\u0001-\u001f\u007f]' COLLATE "C" THEN 'an address has a control character'
        WHEN head ~ '^[ (]*([+]|tel:)|^[0-9 .()-]+$' COLLATE "C" AND head !~ '@' THEN 'a telephone number is not in E.164'
        WHEN head !~ '@' THEN 'an address has no domain'
        WHEN lower(domain COLLATE "C") = 'sms' THEN 'the domain sms is that of telephone numbers'
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
COMMENT ON FUNCTION submit_refuse_mailbox IS 'Raises the error of text that is no mailbox.';

CREATE FUNCTION submit_text(argument text, value text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM convert_to(value, 'UTF8');
EXCEPTION WHEN untranslatable_character OR character_not_in_repertoire THEN
    PERFORM submit_refuse(argument, 'it has octets that are no character');
END $$;
COMMENT ON FUNCTION submit_text IS
    'Raises the error of text that UTF-8 has no character for: the worker that reads it would stop.';

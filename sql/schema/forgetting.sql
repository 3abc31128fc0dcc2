-- One person is forgotten: queue, logs, transcripts, and what features have. A keyed hash stays.

CREATE TABLE mailbox_secret (
    inner_pad bytea NOT NULL,
    outer_pad bytea NOT NULL,
    one boolean DEFAULT true PRIMARY KEY CHECK (one)
);
COMMENT ON TABLE mailbox_secret IS
    'The key of mailbox_hash(). No role may read it. Who loses it forgets who had to be forgotten.';
COMMENT ON COLUMN mailbox_secret.inner_pad IS 'The key XOR 0x36 in each of 64 octets (RFC 2104).';
COMMENT ON COLUMN mailbox_secret.outer_pad IS 'The key XOR 0x5c in each of 64 octets.';
COMMENT ON COLUMN mailbox_secret.one IS 'There is one row.';
COMMENT ON CONSTRAINT mailbox_secret_one_check ON mailbox_secret IS 'One row.';
-- the random octets are PostgreSQL's strong ones
WITH secret AS MATERIALIZED (
    SELECT sha256(uuid_send(gen_random_uuid()) || uuid_send(gen_random_uuid()) || uuid_send(gen_random_uuid()))
        || decode(repeat('00', 32), 'hex') AS octets
)
INSERT INTO mailbox_secret
SELECT string_agg(decode(lpad(to_hex(get_byte(octets, n) # 54), 2, '0'), 'hex'), ''::bytea ORDER BY n),
    string_agg(decode(lpad(to_hex(get_byte(octets, n) # 92), 2, '0'), 'hex'), ''::bytea ORDER BY n)
FROM secret, generate_series(0, 63) AS n;

CREATE FUNCTION mailbox_hash(address text) RETURNS text LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path = pgmta, pg_catalog, pg_temp SET jit = off AS $$  -- callers may have forbidden its plan, the only one
    SELECT 'hmac:' || encode(sha256(s.outer_pad || sha256(s.inner_pad
        || convert_to(mailbox_key(mailbox_hash.address), 'UTF8'))), 'hex')
    FROM mailbox_secret AS s
$$;
COMMENT ON FUNCTION mailbox_hash IS
    'hmac: and HMAC-SHA256 (RFC 2104) of an address: what stays of one that had to be forgotten.';

CREATE TABLE forget_columns (
    relation text NOT NULL,
    names text[] NOT NULL,
    way text NOT NULL CHECK (way IN ('row', 'words', 'null', 'named', 'waits')),
    condition text NOT NULL
);
ALTER TABLE forget_columns REPLICA IDENTITY FULL;
COMMENT ON TABLE forget_columns IS
    'The columns in which forget() searches for the address among other words; features add theirs.';
COMMENT ON COLUMN forget_columns.relation IS 'The table.';
COMMENT ON COLUMN forget_columns.names IS 'The columns.';
COMMENT ON COLUMN forget_columns.way IS
    'row: the row goes; words: the address is replaced, in audit by its keyed hash; null: the column becomes null; named: the '
    'row is an order or a text of operators; waits: it is mail of others that waits. The last two stay and are named.';
COMMENT ON COLUMN forget_columns.condition IS 'Which rows t are searched, in SQL; %1$L is the address, and % is doubled.';
COMMENT ON CONSTRAINT forget_columns_way_check ON forget_columns IS 'The five ways.';

INSERT INTO forget_columns (relation, names, way, condition) VALUES
    -- rows to the person are removed by another statement
    ('queue', '{last_reply,metadata,hold_reason,faults}', 'words', 'mailbox_key(t.recipient) <> %1$L AND mailbox_key(t.sender) <> %1$L'),
    ('queue', '{orcpt}', 'null', 'mailbox_key(t.recipient) <> %1$L AND mailbox_key(t.sender) <> %1$L'),
    -- others' addresses with it, as in VERP: to change them would change mail that waits
    ('queue', '{sender,recipient}', 'waits', 'mailbox_key(t.recipient) <> %1$L AND mailbox_key(t.sender) <> %1$L'),
    ('attempts', '{sender,recipient,command,reply,message_id_header,submitted_by,metadata,returned,client_helo}', 'words', 'mailbox_key(t.recipient) <> %1$L AND mailbox_key(t.sender) <> %1$L'),
    ('reports', '{sender,recipient,sent_to,reason}', 'words', '%1$L NOT IN (mailbox_key(t.recipient),
        mailbox_key(t.sender), mailbox_key(coalesce(t.sent_to, '''')))'),
    ('report_counts', '{sender}', 'row', 'true'),
    ('transcripts', '{dialogue}', 'words', 'NOT EXISTS (SELECT FROM attempts AS a WHERE a.message_id = t.message_id
        AND a.lease_token = t.lease_token AND %1$L IN (mailbox_key(a.recipient), mailbox_key(a.sender)))'),
    ('idempotency_keys', '{key}', 'row', 'true'),
    ('submit_calls', '{problems}', 'words', 'true'),
    ('recipients', '{address}', 'row', 'true'),
    ('traces', '{wanted}', 'row', 'true'),
    ('audit', '{condition,details}', 'words', 'true'),
    ('rules', '{name,condition,reason,quarantine}', 'named', 'true'),
    ('templates', '{sender,from_field,reply_to,subject,body,html,headers}', 'named', 'true'),
    ('users', '{name,senders,metadata}', 'named', 'true'),
    ('workers', '{name,condition}', 'named', 'true');

CREATE TABLE forget_functions (
    name text PRIMARY KEY,
    place integer NOT NULL,
    function text,
    names text
);
COMMENT ON TABLE forget_functions IS
    'Parts of forget() beside the tables of forget_columns, and what it calls for them; features add theirs.';
COMMENT ON COLUMN forget_functions.name IS 'The part, or the first word of several: NAME_DAY or NAME NUMBER.';
COMMENT ON COLUMN forget_functions.place IS 'The order.';
COMMENT ON COLUMN forget_functions.function IS
    'Of the address, the part and dry: it removes the person there, or counts only, and returns numbers by noun. Null: only '
    'columns are searched.';
COMMENT ON COLUMN forget_functions.names IS 'Returns the names of the parts, if there are several.';

INSERT INTO forget_functions (name, place, function, names) VALUES
    ('queue', 2, 'forget_queue', NULL),
    ('attempts', 4, 'forget_attempts', 'forget_days'),
    ('reports', 4, 'forget_reports', 'forget_days'),
    ('transcripts', 4, NULL, 'forget_days');

CREATE FUNCTION forget_days(parent text) RETURNS SETOF text LANGUAGE sql STABLE SET search_path = pgmta, pg_catalog, pg_temp AS $$
    SELECT c.relname FROM pg_inherits AS i JOIN pg_class AS c ON c.oid = i.inhrelid WHERE i.inhparent = parent::regclass
$$;
COMMENT ON FUNCTION forget_days IS 'The days of a table, each a part of forget().';

CREATE FUNCTION forget_parts() RETURNS SETOF text LANGUAGE plpgsql STABLE SECURITY DEFINER
    SET search_path = pgmta, pg_catalog, pg_temp AS $$
DECLARE
    each record;
BEGIN
    FOR each IN SELECT f.name, f.names FROM forget_functions AS f ORDER BY f.place, f.name LOOP
        IF each.names IS NULL THEN
            RETURN NEXT each.name;
        ELSE
            RETURN QUERY EXECUTE format('SELECT n FROM %I($1) AS n ORDER BY n', each.names) USING each.name;
        END IF;
    END LOOP;
    RETURN QUERY SELECT DISTINCT c.relation FROM forget_columns AS c
        WHERE NOT EXISTS (SELECT FROM forget_functions AS f WHERE f.name = c.relation) ORDER BY 1;
END $$;
COMMENT ON FUNCTION forget_parts IS
    'The parts of the database that forget() looks through, in their order: first those that stop new mail to the person.';

CREATE FUNCTION forget(address text, part text, dry_run boolean DEFAULT false) RETURNS jsonb LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pgmta, pg_catalog, pg_temp
    SET standard_conforming_strings = on SET jit = off AS $$
DECLARE
    key CONSTANT text := mailbox_key(address);
    dry CONSTANT boolean := coalesce(dry_run, true);
    relation CONSTANT text := regexp_replace(part, '(_\d{8}| \d+)$', '');
    called forget_functions;
    removed jsonb := '{}';
BEGIN
    -- smtpd takes domains beyond ASCII as their letters too
    IF mailbox_domain(address COLLATE "C") IS NULL AND address !~
            '^[^[:cntrl:]]+@[^@[:space:][:cntrl:]]*[^\u0001-\u007f][^@[:space:][:cntrl:]]*$' COLLATE "C" THEN
        PERFORM submit_refuse('address', 'it is no mailbox', NULL, 'Write LOCAL@DOMAIN.');
    END IF;
    SELECT * INTO called FROM forget_functions AS f WHERE f.name = relation;
    IF part NOT IN (SELECT forget_parts()) THEN
        IF part <> relation AND called.names IS NOT NULL THEN RETURN '{}'; END IF;  -- the table is gone meanwhile
        PERFORM submit_refuse('part', 'there is none of this name', NULL, 'forget_parts() names them.');
    END IF;
    IF NOT dry THEN PERFORM prove_earlier(); END IF;  -- an earlier call, whose commit may be unproven, may have removed all
    IF called.function IS NOT NULL THEN
        EXECUTE format('SELECT %I($1, $2, $3)', called.function) INTO removed USING key, part, dry;
    END IF;
    RETURN removed || forget_rows(key, relation, part, dry) || forget_words(key, relation, part, dry)
        || forget_named(key, relation, 'named', 'stays') || forget_named(key, relation, 'waits', 'waits');
END $$;
COMMENT ON FUNCTION forget IS
    'Removes a person, by address, from one part of the database, and returns what by its number. After all parts of '
    'forget_parts() the address is nowhere but as a keyed hash, in content of mail to others, and in the rows that are '
    'named under stays, which operators wrote, and under waits, which are mail of others. With dry_run it only counts. A '
    'domain in A-labels and the same in letters are two addresses.';

CREATE FUNCTION forget_pattern(key text) RETURNS text LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp
    SET standard_conforming_strings = on AS $$
DECLARE
    mailbox CONSTANT text := substring(key FROM '^(.*)@');
    letters CONSTANT text := '\u00c0-\u1fff\u3040-\ud7ff';
    domain CONSTANT text := replace(regexp_replace(substring(key FROM '[^@]*$'), '([].:[])', '\\\1', 'g'), '\.', '(?:\.|[%=+]2e)');
    ends CONSTANT text := concat('(?![a-z0-9', letters, '-]|\.[a-z0-9])');
    spelled text;
BEGIN
    IF mailbox IS NULL THEN  -- a telephone number, also without its +
        RETURN concat('(?<![0-9])(?:\+|%2b|00)?', ltrim(key, '+'), '(?![0-9])');
    END IF;
    SELECT string_agg(CASE WHEN c ~ '[a-z0-9]' COLLATE "C" THEN c
        ELSE concat(CASE WHEN ascii(c) < 128 THEN '\\?(?:\' ELSE '(?:' END, c, '|', (
            SELECT string_agg('[%=+]' || encode(substr(octets, n, 1), 'hex'), '' ORDER BY n)
            FROM convert_to(c, 'UTF8') AS octets, generate_series(1, octet_length(octets)) AS n), ')') END, '' ORDER BY place)
    INTO spelled FROM regexp_split_to_table(mailbox, '') WITH ORDINALITY AS t (c, place);
    spelled := concat('(?:', spelled, '|"', spelled, '"|\\"', spelled, '\\")');
    -- behind other characters of a local part it is another address; behind =3C it is in brackets
    RETURN concat('(?:(?:(?:(?<![a-z0-9._+', letters, '-])|(?<=[=+][0-9a-f][0-9a-f]))', spelled, '(?:@|[%=+]40)',
        '|(?<![a-z0-9._', letters, '])', spelled, '[=%])', domain, ends,
        '|(?<![a-z0-9.', letters, '-])', domain, '[=!]', spelled, ends, ')');
END $$;
COMMENT ON FUNCTION forget_pattern IS
    'A regular expression, without case, for an address among words: also in quotes, as URLs (RFC 3986), ORCPT (RFC 3461) and '
    'quoted-printable encode it, with = for @ as in VERP, with % for it, and behind its domain as in SRS0 and UUCP. It does '
    'not match in a longer address.';

CREATE FUNCTION forget_plain(words text) RETURNS text LANGUAGE plpgsql IMMUTABLE STRICT SET search_path = pg_catalog, pg_temp
    SET standard_conforming_strings = on AS $$
DECLARE
    spelled text;
    code integer;
    before text;
BEGIN
    FOR round IN 1..3 LOOP  -- for up to three encodings within each other
        before := words;
        EXIT WHEN words !~* '%[2-7]|\\[ux]|&#|&amp;#';
        words := replace(words, '&amp;', '&');
        FOR spelled, code IN
            SELECT DISTINCT m[1], coalesce(m[4]::integer, get_byte(decode(coalesce(m[2], m[3]), 'hex'), 0))
            FROM regexp_matches(words, '((?:%|\\+u00|\\+x)([2-7][0-9a-f])|&#(?:x0*([2-7][0-9a-f])|0*([0-9]{2,3}));)', 'gi') AS m
        LOOP
            words := CASE WHEN code BETWEEN 32 AND 126 THEN replace(words, spelled, chr(code)) ELSE words END;
        END LOOP;
        EXIT WHEN words = before;
    END LOOP;
    RETURN words;
END $$;
COMMENT ON FUNCTION forget_plain IS
    'Words with the characters of ASCII as they are, which URLs, HTML and JSON encode, also within each other.';

-- without SET search_path, so that the function becomes a part of the query
CREATE FUNCTION forget_found(words text, pattern text) RETURNS boolean LANGUAGE sql IMMUTABLE AS $$
    SELECT words ~* (pattern COLLATE "C") OR pgmta.forget_plain(words) ~* (pattern COLLATE "C")
$$;
COMMENT ON FUNCTION forget_found IS 'Whether a pattern of forget_pattern() is among words, also if these are encoded.';

CREATE FUNCTION forget_text(words text, pattern text, instead text) RETURNS text LANGUAGE sql IMMUTABLE
    SET search_path = pgmta, pg_catalog, pg_temp AS $$
    SELECT CASE WHEN forget_plain(rest) ~* (pattern COLLATE "C")
        THEN regexp_replace(forget_plain(rest), pattern COLLATE "C", instead, 'gi') ELSE rest END
    FROM regexp_replace(words, pattern COLLATE "C", instead, 'gi') AS rest
$$;
COMMENT ON FUNCTION forget_text IS
    'Replaces what matches a pattern. Words in which it is found only when they are decoded stay decoded.';

CREATE FUNCTION forget_json(value jsonb, pattern text, instead text) RETURNS jsonb LANGUAGE sql IMMUTABLE
    SET search_path = pgmta, pg_catalog, pg_temp AS $$
    SELECT CASE jsonb_typeof(value)
        WHEN 'string' THEN to_jsonb(forget_text(value #>> '{}', pattern, instead))
        WHEN 'array' THEN (SELECT coalesce(jsonb_agg(forget_json(each, pattern, instead) ORDER BY n), '[]')
            FROM jsonb_array_elements(value) WITH ORDINALITY AS a (each, n))
        WHEN 'object' THEN (SELECT coalesce(jsonb_object_agg(forget_text(name, pattern, instead),
            forget_json(each, pattern, instead)), '{}') FROM jsonb_each(value) AS o (name, each))
        ELSE value
    END
$$;
COMMENT ON FUNCTION forget_json IS 'Replaces what matches a pattern in the texts and keys of a JSON value.';

CREATE FUNCTION forget_search(relation text, ways text[], key text) RETURNS text LANGUAGE sql STABLE
    SET search_path = pgmta, pg_catalog, pg_temp SET standard_conforming_strings = on AS $$
    -- a plain search leaves few rows for the pattern, and few texts encode letters and digits; without CASE the planner may
    -- turn them round
    SELECT string_agg(format('(SELECT CASE WHEN strpos(lower(words COLLATE "C"), %3$L) > 0 '
            'OR words ~* ''(?:%%(?:25)*|\\u00|\\x|#x0*)(?:3[0-9]|[46][1-9a-f]|[57][0-9a])|#[0-9]+;'' '
            'THEN %1$s AND forget_found(words, %4$L) END FROM (SELECT concat_ws('' '', %2$s) OFFSET 0) AS w (words))',
        condition, texts, needle, pattern), ' OR ')
    FROM (
        SELECT format(f.condition, key) AS condition, string_agg(format('t.%I::text', n.name), ', ') AS texts
        FROM forget_columns AS f, unnest(f.names) AS n (name)
        WHERE f.relation = forget_search.relation AND f.way = ANY (ways) GROUP BY f.condition
    ) AS s, forget_pattern(key) AS pattern,
    LATERAL (SELECT run AS needle FROM regexp_split_to_table(split_part(key, '@', 1), '[^a-z0-9]+' COLLATE "C") AS run
        ORDER BY length(run) DESC LIMIT 1) AS n
$$;
COMMENT ON FUNCTION forget_search IS
    'The condition for rows of a table t with the address in columns of these ways; null: there is no such column.';

CREATE FUNCTION forget_rows(key text, relation text, part text, dry boolean) RETURNS jsonb LANGUAGE plpgsql
    SET search_path = pgmta, pg_catalog, pg_temp SET standard_conforming_strings = on AS $$
DECLARE
    found CONSTANT text := forget_search(relation, '{row}', key);
    number bigint;
BEGIN
    IF found IS NULL THEN RETURN '{}'; END IF;
    EXECUTE format(CASE WHEN dry THEN 'SELECT count(*) FROM %I AS t WHERE %s'
        ELSE 'WITH gone AS (DELETE FROM %I AS t WHERE %s RETURNING true) SELECT count(*) FROM gone' END, part, found) INTO number;
    RETURN jsonb_build_object('other rows', number);
END $$;
COMMENT ON FUNCTION forget_rows IS 'The part of forget() for rows that go because of one column, by forget_columns.';

CREATE FUNCTION forget_words(key text, relation text, part text, dry boolean) RETURNS jsonb LANGUAGE plpgsql
    SET search_path = pgmta, pg_catalog, pg_temp SET standard_conforming_strings = on AS $$
DECLARE
    found CONSTANT text := forget_search(relation, '{words,null}', key);
    changes text;
    number bigint;
BEGIN
    IF found IS NULL THEN RETURN '{}'; END IF;
    SELECT string_agg(format(CASE WHEN f.way = 'null' THEN '%1$I = CASE WHEN NOT forget_found(t.%1$I, $1) THEN t.%1$I END'
        WHEN a.atttypid = 'jsonb'::regtype THEN '%1$I = forget_json(t.%1$I, $1, $2)'
        WHEN f.relation = 'audit' THEN '%1$I = forget_text(t.%1$I, $1, $2)'
        -- the replacement may be longer than the address, and a constraint limits the characters
        ELSE '%1$I = left(forget_text(t.%1$I, $1, $2), greatest(length(t.%1$I), 100))' END, n.name), ', ')
    INTO changes FROM forget_columns AS f, unnest(f.names) AS n (name)
    JOIN pg_attribute AS a ON a.attrelid = forget_words.relation::regclass AND a.attname = n.name
    WHERE f.relation = forget_words.relation AND f.way IN ('words', 'null');
    EXECUTE CASE WHEN dry THEN format('SELECT count(*) FROM %I AS t WHERE %s', part, found)
        ELSE format('WITH done AS (UPDATE %I AS t SET %s WHERE %s RETURNING true) SELECT count(*) FROM done', part, changes, found) END
    INTO number USING forget_pattern(key), CASE WHEN relation = 'audit' THEN mailbox_hash(key) ELSE '(forgotten)' END;
    RETURN jsonb_build_object('words of other rows', number);
END $$;
COMMENT ON FUNCTION forget_words IS 'The part of forget() for the address among words of other rows, by forget_columns.';

CREATE FUNCTION forget_named(key text, relation text, way text, title text) RETURNS jsonb LANGUAGE plpgsql
    SET search_path = pgmta, pg_catalog, pg_temp SET standard_conforming_strings = on AS $$
DECLARE
    found CONSTANT text := forget_search(relation, ARRAY[way], key);
    names text[];
BEGIN
    IF found IS NULL THEN RETURN '{}'; END IF;
    EXECUTE format('SELECT array_agg(concat_ws('' '', %1$L, %2$s)) FROM (SELECT * FROM %1$I AS t WHERE %3$s LIMIT 100) AS t', relation,
        coalesce((SELECT string_agg(format('t.%I', a.attname), ', ') FROM pg_index AS i JOIN pg_attribute AS a
            ON a.attrelid = i.indrelid AND a.attnum = ANY (i.indkey)
        WHERE i.indrelid = forget_named.relation::regclass AND i.indisprimary), 't.id'), found) INTO names;
    RETURN CASE WHEN names IS NULL THEN '{}' ELSE jsonb_build_object(title, to_jsonb(names)) END;
END $$;
COMMENT ON FUNCTION forget_named IS
    'The part of forget() for rows that stay and have the address: their tables and keys.';

CREATE FUNCTION forget_queue(key text, part text, dry boolean) RETURNS jsonb LANGUAGE plpgsql
    SET search_path = pgmta, pg_catalog, pg_temp AS $$
DECLARE
    flying bigint[];
    waiting bigint[];
BEGIN
    IF dry THEN
        SELECT array_agg(q.id) FILTER (WHERE q.lease_until IS NOT NULL), array_agg(q.id) FILTER (WHERE q.lease_until IS NULL)
        INTO flying, waiting FROM queue AS q
        WHERE mailbox_key(q.recipient) = key OR mailbox_key(q.sender) = key;
    ELSE
        SELECT array_agg(f.id) FILTER (WHERE f.lease_until IS NOT NULL), array_agg(f.id) FILTER (WHERE f.lease_until IS NULL)
        INTO flying, waiting FROM (
            SELECT q.id, q.lease_until FROM queue AS q
            WHERE mailbox_key(q.recipient) = key OR mailbox_key(q.sender) = key ORDER BY q.id FOR UPDATE
        ) AS f;
        UPDATE queue AS q SET status = 'DELETE' WHERE q.id = ANY (flying);
        -- without an entry in the log; a body goes with its last row
        DELETE FROM queue AS q WHERE q.id = ANY (waiting);
    END IF;
    RETURN jsonb_build_object('rows of the queue', coalesce(cardinality(waiting), 0),
        'rows under way', coalesce(cardinality(flying), 0));
END $$;
COMMENT ON FUNCTION forget_queue IS
    'The part of forget() for mail to the person and from it. A row under way ends with its attempt, so its log has to be '
    'looked through once more.';

CREATE FUNCTION forget_attempts(key text, day text, dry boolean) RETURNS jsonb LANGUAGE plpgsql
    SET search_path = pgmta, pg_catalog, pg_temp AS $$
DECLARE
    attempts bigint;
    transcripts bigint;
BEGIN
    EXECUTE format(CASE WHEN dry THEN $sql$
        WITH gone AS MATERIALIZED (
            SELECT a.message_id, a.lease_token FROM %I AS a
            WHERE mailbox_key(a.recipient) = $1 OR mailbox_key(a.sender) = $1)
        SELECT count(*), (SELECT count(*) FROM transcripts AS t
            WHERE t.message_id = ANY (ARRAY(SELECT message_id FROM gone))
                AND (t.message_id, t.lease_token) IN (SELECT message_id, lease_token FROM gone)) FROM gone
        $sql$ ELSE $sql$
        WITH gone AS (
            DELETE FROM %I AS a WHERE mailbox_key(a.recipient) = $1 OR mailbox_key(a.sender) = $1
            RETURNING a.message_id, a.lease_token
        ), said AS (
            DELETE FROM transcripts AS t
            WHERE t.message_id = ANY (ARRAY(SELECT message_id FROM gone))
                AND (t.message_id, t.lease_token) IN (SELECT message_id, lease_token FROM gone)
            RETURNING t.message_id
        )
        SELECT (SELECT count(*) FROM gone), (SELECT count(*) FROM said)
        $sql$ END, day) INTO attempts, transcripts USING key;
    RETURN jsonb_build_object('entries of the log', attempts, 'transcripts', transcripts);
END $$;
COMMENT ON FUNCTION forget_attempts IS
    'The part of forget() for a day of the log, with the transcripts of the same transactions: other recipients of a '
    'transaction share its transcript.';

CREATE FUNCTION forget_reports(key text, day text, dry boolean) RETURNS jsonb LANGUAGE plpgsql
    SET search_path = pgmta, pg_catalog, pg_temp AS $$
DECLARE
    number bigint;
BEGIN
    EXECUTE format(concat('WITH found AS (', CASE WHEN dry THEN 'SELECT FROM' ELSE 'DELETE FROM' END, ' %I AS r
            WHERE $1 IN (mailbox_key(r.recipient), mailbox_key(r.sender), mailbox_key(r.sent_to))',
            CASE WHEN NOT dry THEN ' RETURNING true' END, ') SELECT count(*) FROM found'), day) INTO number USING key;
    RETURN jsonb_build_object('reports', number);
END $$;
COMMENT ON FUNCTION forget_reports IS 'The part of forget() for a day of the DSNs.';

INSERT INTO rights (object, role, privileges) VALUES
    ('FUNCTION mailbox_hash', 'pgmta_operator', 'EXECUTE'),
    ('FUNCTION mailbox_hash', 'pgmta_reader', 'EXECUTE'),  -- who may see that an address was forgotten
    ('FUNCTION mailbox_key', 'PUBLIC', 'EXECUTE'),  -- indexes of features call it
    ('FUNCTION forget_parts', 'pgmta_operator', 'EXECUTE'),
    ('FUNCTION forget', 'pgmta_operator', 'EXECUTE');

-- One person is forgotten: queue, campaigns, logs, transcripts. A keyed hash stays among the suppressions.

CREATE FUNCTION forget_columns() RETURNS TABLE (relation text, name text, way text, condition text) LANGUAGE sql IMMUTABLE AS $$
    SELECT f.relation, unnest(f.names::text[]), f.way, f.condition FROM (VALUES
        -- rows of the person go otherwise
        ('queue', '{last_reply,metadata,hold_reason,faults}', 'words', 'suppression_address(t.recipient) <> %1$L AND suppression_address(t.sender) <> %1$L'),
        ('queue', '{orcpt}', 'null', 'suppression_address(t.recipient) <> %1$L AND suppression_address(t.sender) <> %1$L'),
        -- others' addresses with it, as in VERP: to change them would change mail that waits
        ('queue', '{sender,recipient}', 'named', 'suppression_address(t.recipient) <> %1$L AND suppression_address(t.sender) <> %1$L'),
        ('attempts', '{sender,recipient,command,reply,message_id_header,submitted_by,metadata,returned,client_helo}', 'words', 'suppression_address(t.recipient) <> %1$L AND suppression_address(t.sender) <> %1$L'),
        ('reports', '{sender,recipient,sent_to,reason}', 'words', '%1$L NOT IN (suppression_address(t.recipient),
            suppression_address(t.sender), suppression_address(coalesce(t.sent_to, '''')))'),
        ('report_counts', '{sender}', 'row', 'true'),
        ('campaign_recipients', '{recipient}', 'named', 'suppression_address(t.recipient) <> %1$L
            AND t.state IN (''unsent'', ''queued'', ''deferred'')'),
        ('campaign_recipients', '{recipient}', 'words', 'suppression_address(t.recipient) <> %1$L
            AND t.state NOT IN (''unsent'', ''queued'', ''deferred'')'),
        ('transcripts', '{dialogue}', 'words', 'NOT EXISTS (SELECT FROM attempts AS a WHERE a.message_id = t.message_id
            AND a.lease_token = t.lease_token AND %1$L IN (suppression_address(a.recipient), suppression_address(a.sender)))'),
        ('idempotency_keys', '{key}', 'row', 'true'),
        ('submit_calls', '{problems}', 'words', 'true'),
        ('recipients', '{address}', 'row', 'true'),
        ('traces', '{wanted}', 'row', 'true'),
        ('suppressions', '{source}', 'words', 'true'),
        ('suppressions', '{address}', 'row', 't.address <> %1$L AND t.released_at IS NOT NULL'),
        ('suppressions', '{address}', 'named', 't.address <> %1$L AND t.released_at IS NULL'),
        ('suspensions', '{reason}', 'words', 'true'),
        ('suspensions', '{value,tag}', 'named', 'true'),
        -- of a budget with no time in the future a new one is the same
        ('budgets', '{key}', 'row', 'key LIKE ''route:%%'' AND next_at < now() - make_interval(secs => burst / rate)'),
        ('budgets', '{key}', 'named', 'NOT (key LIKE ''route:%%'' AND next_at < now() - make_interval(secs => burst / rate))'),
        ('budgets', '{note}', 'words', 'true'),
        ('audit', '{condition,details}', 'words', 'true'),
        ('campaigns', '{credential,sender,halted_reason}', 'named', 'true'),
        ('rules', '{name,condition,reason,quarantine}', 'named', 'true'),
        ('templates', '{sender,from_field,reply_to,subject,body,html,headers}', 'named', 'true'),
        ('users', '{name,senders,metadata}', 'named', 'true'),
        ('workers', '{name,condition}', 'named', 'true')
    ) AS f (relation, names, way, condition)
$$;
COMMENT ON FUNCTION forget_columns IS
    'The columns in which forget() searches for the address among other words, in rows t that meet the condition. row: the '
    'row goes; words: the address is replaced, in audit by its keyed hash; null: the column becomes null; named: the row is '
    'an order or a text of operators, or mail of others that waits; it stays and is named.';

CREATE FUNCTION forget_parts() RETURNS SETOF text LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path = pgmta, pg_catalog, pg_temp AS $$
    SELECT part FROM (
        SELECT 1 AS place, 'suppressions' AS part UNION ALL SELECT 2, 'queue'
        UNION ALL SELECT 3, 'campaign ' || c.id FROM campaigns AS c
        UNION ALL SELECT 4, c.relname FROM pg_inherits AS i JOIN pg_class AS c ON c.oid = i.inhrelid
        WHERE i.inhparent IN ('attempts'::regclass, 'reports'::regclass, 'transcripts'::regclass)
        UNION SELECT 5, f.relation FROM forget_columns() AS f
        WHERE f.relation NOT IN ('suppressions', 'queue', 'attempts', 'reports', 'transcripts')
    ) AS p ORDER BY place, part
$$;
COMMENT ON FUNCTION forget_parts IS
    'The parts of the database that forget() looks through, in their order: suppressions first, so that nothing new is fed.';

CREATE FUNCTION forget(address text, part text, dry_run boolean DEFAULT false) RETURNS jsonb LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pgmta, pg_catalog, pg_temp
    SET standard_conforming_strings = on SET jit = off AS $$
DECLARE
    key CONSTANT text := suppression_address(address);
    dry CONSTANT boolean := coalesce(dry_run, true);
    relation CONSTANT text := coalesce(substring(part FROM '^(attempts|reports|transcripts)_'), part);
    removed jsonb := '{}';
BEGIN
    -- smtpd takes domains beyond ASCII as their letters too
    IF mailbox_domain(address COLLATE "C") IS NULL AND address !~
            '^[^[:cntrl:]]+@[^@[:space:][:cntrl:]]*[^\u0001-\u007f][^@[:space:][:cntrl:]]*$' COLLATE "C" THEN
        PERFORM submit_refuse('address', 'it is no mailbox', NULL, 'Write LOCAL@DOMAIN.');
    ELSIF part NOT IN (SELECT forget_parts()) THEN
        IF part LIKE 'campaign %' OR part ~ '_\d{8}$' THEN RETURN '{}'; END IF;  -- it is gone meanwhile
        PERFORM submit_refuse('part', 'there is none of this name', NULL, 'forget_parts() names them.');
    END IF;
    IF NOT dry THEN PERFORM prove_earlier(); END IF;  -- an earlier call may have left nothing to remove
    removed := CASE
        WHEN part = 'suppressions' THEN forget_suppressions(key, dry)
        WHEN part = 'queue' THEN forget_queue(key, dry)
        WHEN part LIKE 'campaign %' THEN forget_recipients(key, substr(part, 10)::bigint, dry)
        WHEN relation = 'attempts' THEN forget_attempts(key, part, dry)
        WHEN relation = 'reports' THEN forget_reports(key, part, dry)
        ELSE '{}'
    END;
    RETURN removed || forget_rows(key, relation, part, dry) || forget_words(key, relation, part, dry)
        || forget_named(key, relation);
END $$;
COMMENT ON FUNCTION forget IS
    'Removes a person, by address, from one part of the database, and returns what by its number. After all parts of '
    'forget_parts() the address is nowhere but as a keyed hash, in content of mail to others, and in the rows that are '
    'returned under stays. With dry_run it only counts. A domain in A-labels and the same in letters are two addresses.';

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
    FOR round IN 1..3 LOOP  -- of encodings within each other
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

-- without a search_path it becomes a part of the query
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
        SELECT format(f.condition, key) AS condition, string_agg(format('t.%I::text', f.name), ', ') AS texts FROM forget_columns() AS f
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
COMMENT ON FUNCTION forget_rows IS 'The part of forget() for rows that go because of one column, by forget_columns().';

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
        -- what is instead may be longer, and a constraint has most characters
        ELSE '%1$I = left(forget_text(t.%1$I, $1, $2), greatest(length(t.%1$I), 100))' END, f.name), ', ')
    INTO changes FROM forget_columns() AS f
    JOIN pg_attribute AS a ON a.attrelid = forget_words.relation::regclass AND a.attname = f.name
    WHERE f.relation = forget_words.relation AND f.way IN ('words', 'null');
    EXECUTE CASE WHEN dry THEN format('SELECT count(*) FROM %I AS t WHERE %s', part, found)
        ELSE format('WITH done AS (UPDATE %I AS t SET %s WHERE %s RETURNING true) SELECT count(*) FROM done', part, changes, found) END
    INTO number USING forget_pattern(key), CASE WHEN relation = 'audit' THEN suppression_hash(key) ELSE '(forgotten)' END;
    RETURN jsonb_build_object('words of other rows', number);
END $$;
COMMENT ON FUNCTION forget_words IS 'The part of forget() for the address among words of other rows, by forget_columns().';

CREATE FUNCTION forget_named(key text, relation text) RETURNS jsonb LANGUAGE plpgsql
    SET search_path = pgmta, pg_catalog, pg_temp SET standard_conforming_strings = on AS $$
DECLARE
    found CONSTANT text := forget_search(relation, '{named}', key);
    names text[];
BEGIN
    IF found IS NULL THEN RETURN '{}'; END IF;
    EXECUTE format('SELECT array_agg(concat_ws('' '', %1$L, %2$s)) FROM (SELECT * FROM %1$I AS t WHERE %3$s LIMIT 100) AS t', relation,
        coalesce((SELECT string_agg(format('t.%I', a.attname), ', ') FROM pg_index AS i JOIN pg_attribute AS a
            ON a.attrelid = i.indrelid AND a.attnum = ANY (i.indkey)
        WHERE i.indrelid = forget_named.relation::regclass AND i.indisprimary), 't.id'), found) INTO names;
    RETURN CASE WHEN names IS NULL THEN '{}' ELSE jsonb_build_object('stays', to_jsonb(names)) END;
END $$;
COMMENT ON FUNCTION forget_named IS
    'The part of forget() for rows that stay and have the address: their tables and keys.';

CREATE FUNCTION forget_suppressions(key text, dry boolean) RETURNS jsonb LANGUAGE plpgsql
    SET search_path = pgmta, pg_catalog, pg_temp AS $$
DECLARE
    number bigint;
BEGIN
    SELECT count(*) INTO number FROM suppressions AS s WHERE s.address = key;
    IF NOT dry THEN
        DELETE FROM suppressions AS s WHERE s.address = key;
        INSERT INTO suppressions AS s (address, tenant, reason) VALUES (suppression_hash(key), '*', 'forgotten')
        ON CONFLICT ON CONSTRAINT suppressions_pkey DO UPDATE SET at = now(), released_at = NULL;
    END IF;
    RETURN jsonb_build_object('suppressions', number);
END $$;
COMMENT ON FUNCTION forget_suppressions IS 'The part of forget() that leaves the keyed hash.';

CREATE FUNCTION forget_queue(key text, dry boolean) RETURNS jsonb LANGUAGE plpgsql
    SET search_path = pgmta, pg_catalog, pg_temp AS $$
DECLARE
    flying bigint[];
    waiting bigint[];
BEGIN
    IF dry THEN
        SELECT array_agg(q.id) FILTER (WHERE q.lease_until IS NOT NULL), array_agg(q.id) FILTER (WHERE q.lease_until IS NULL)
        INTO flying, waiting FROM queue AS q
        WHERE suppression_address(q.recipient) = key OR suppression_address(q.sender) = key;
    ELSE
        SELECT array_agg(f.id) FILTER (WHERE f.lease_until IS NOT NULL), array_agg(f.id) FILTER (WHERE f.lease_until IS NULL)
        INTO flying, waiting FROM (
            SELECT q.id, q.lease_until FROM queue AS q
            WHERE suppression_address(q.recipient) = key OR suppression_address(q.sender) = key ORDER BY q.id FOR UPDATE
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

CREATE FUNCTION forget_recipients(key text, campaign bigint, dry boolean) RETURNS jsonb LANGUAGE plpgsql
    SET search_path = pgmta, pg_catalog, pg_temp AS $$
DECLARE
    number bigint;
BEGIN
    IF dry THEN
        SELECT count(*) INTO number FROM campaign_recipients AS r
        WHERE r.campaign_id = campaign AND suppression_address(r.recipient) = key;
    ELSE
        -- the books stay: only unsent ones become invalid
        UPDATE campaign_recipients AS r SET recipient = '', domain = '', params = '{}',
            state = CASE WHEN r.state IN ('unsent', 'queued', 'deferred') THEN 'invalid' ELSE r.state END,
            error_code = CASE WHEN r.state IN ('unsent', 'queued', 'deferred') THEN 'suppressed' ELSE r.error_code END
        WHERE r.campaign_id = campaign AND suppression_address(r.recipient) = key
            AND NOT (r.state IN ('queued', 'deferred') AND EXISTS (
                SELECT FROM queue AS q WHERE q.message_id = r.message_id));
        GET DIAGNOSTICS number = ROW_COUNT;
    END IF;
    RETURN jsonb_build_object('recipients of campaigns', number);
END $$;
COMMENT ON FUNCTION forget_recipients IS 'The part of forget() for a campaign: its books keep a line without an address.';

CREATE FUNCTION forget_attempts(key text, day text, dry boolean) RETURNS jsonb LANGUAGE plpgsql
    SET search_path = pgmta, pg_catalog, pg_temp AS $$
DECLARE
    attempts bigint;
    transcripts bigint;
BEGIN
    EXECUTE format(CASE WHEN dry THEN $sql$
        WITH gone AS MATERIALIZED (
            SELECT a.message_id, a.lease_token FROM %I AS a
            WHERE suppression_address(a.recipient) = $1 OR suppression_address(a.sender) = $1)
        SELECT count(*), (SELECT count(*) FROM transcripts AS t
            WHERE t.message_id = ANY (ARRAY(SELECT message_id FROM gone))
                AND (t.message_id, t.lease_token) IN (SELECT message_id, lease_token FROM gone)) FROM gone
        $sql$ ELSE $sql$
        WITH gone AS (
            DELETE FROM %I AS a WHERE suppression_address(a.recipient) = $1 OR suppression_address(a.sender) = $1
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
            WHERE $1 IN (suppression_address(r.recipient), suppression_address(r.sender), suppression_address(r.sent_to))',
            CASE WHEN NOT dry THEN ' RETURNING true' END, ') SELECT count(*) FROM found'), day) INTO number USING key;
    RETURN jsonb_build_object('reports', number);
END $$;
COMMENT ON FUNCTION forget_reports IS 'The part of forget() for a day of the DSNs.';

INSERT INTO rights (object, role, privileges) VALUES
    ('FUNCTION forget_parts', 'pgmta_operator', 'EXECUTE'),
    ('FUNCTION forget', 'pgmta_operator', 'EXECUTE');

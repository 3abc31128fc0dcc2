-- Conditions on rows of the queue: what operators, rules and workers may write.

CREATE FUNCTION condition_path() RETURNS text LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT CASE WHEN EXISTS (
        SELECT FROM pg_namespace AS place, LATERAL (
            SELECT nspowner UNION SELECT grantee FROM aclexplode(nspacl) WHERE privilege_type = 'CREATE'
        ) AS makers (maker)
        WHERE nspname = 'public' AND pg_has_role(
            CASE maker WHEN 0 THEN NULL WHEN to_regrole('pg_database_owner') THEN (
                SELECT datdba FROM pg_database WHERE datname = current_database()) ELSE maker END,
            (SELECT nspowner FROM pg_namespace WHERE nspname = 'pgmta'), 'USAGE') IS NOT TRUE
    ) THEN 'pgmta, pg_temp' ELSE 'pgmta, public, pg_temp' END
$$;
COMMENT ON FUNCTION condition_path IS
    'The search_path of conditions: pgmta, public, pg_temp; without public if a role beside the owner of schema pgmta '
    'may create objects there. pgmta/postgres/fit_session.py has the same.';

CREATE FUNCTION condition_analyse(condition text, path text) RETURNS void
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    brackets text;
    probe refcursor;
BEGIN
    PERFORM set_config('search_path', path, true);
    -- In brackets of two kinds: an expression that closes the one leaves the other open. A cursor takes a single
    -- statement. That of EXPLAIN is analysed when it opens, and not planned: to plan would evaluate constants.
    FOREACH brackets IN ARRAY ARRAY[E'(ARRAY[\n%s\n])[1]', E'(\n%s\n)'] LOOP
        OPEN probe FOR EXECUTE 'EXPLAIN SELECT 1 FROM pgmta.queue WHERE ' || format(brackets, condition);
        CLOSE probe;
    END LOOP;
END $$;
COMMENT ON FUNCTION condition_analyse IS
    'Has PostgreSQL analyse a condition in the search_path `path`, with the rights of the caller, and fails as PostgreSQL does.';

CREATE FUNCTION queue_condition(condition text) RETURNS text
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET standard_conforming_strings = on AS $$
BEGIN
    IF coalesce(condition, '') !~ '\S' THEN
        RAISE EXCEPTION 'the condition is empty'
            USING ERRCODE = 'invalid_parameter_value', HINT = '''true'' stands for every row.';
    END IF;
    BEGIN
        PERFORM pgmta.condition_analyse(condition, pgmta.condition_path());
    EXCEPTION WHEN others THEN
        RAISE EXCEPTION 'the condition is refused: %', SQLERRM USING ERRCODE = SQLSTATE;
    END;
    RETURN format(E'(\n%s\n)', condition);
END $$;
COMMENT ON FUNCTION queue_condition IS
    'The condition in brackets, or an error: it must be one boolean expression on columns of queue that can''t end '
    'the statement it is put into. Runs nothing.';

CREATE FUNCTION condition_capitals(condition text) RETURNS void
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET standard_conforming_strings = on AS $$
DECLARE
    capitals text[] := regexp_match(condition, '(?<![\w.''])(?:queue\.)?(sender_domain|domain)\s*'
        '(?:=|<>|!=|(?:[nN][oO][tT]\s+)?[lL][iI][kK][eE]\s|(?:[nN][oO][tT]\s+)?[iI][nN]\s*\((?:[^()'']|''[^'']*'')*?)'
        '\s*(''[^'']*[A-Z][^'']*'')');
BEGIN
    IF capitals IS NOT NULL THEN
        RAISE WARNING '% is in lower case, so % never matches', capitals[1], capitals[2]
            USING HINT = 'Write it in lower case.';
    END IF;
END $$;
COMMENT ON FUNCTION condition_capitals IS 'Warns of a condition that compares a domain with a text in capitals.';

CREATE FUNCTION condition_error(state text) RETURNS text
    LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT 'SQLSTATE ' || state || CASE state
        WHEN '22P02' THEN ' (no value of that type)'
        WHEN '22003' THEN ' (a number out of range)'
        WHEN '22007' THEN ' (no date or time)'
        WHEN '22008' THEN ' (a date or time out of range)'
        WHEN '22012' THEN ' (division by zero)'
        ELSE '' END
$$;
COMMENT ON FUNCTION condition_error IS
    'The words for an error on which a condition fails. They never have values of rows.';

CREATE FUNCTION condition_tokens(condition text) RETURNS TABLE (place bigint, token text, literal boolean, word text)
    LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp SET standard_conforming_strings = on AS $$
    SELECT place, coalesce(hit[1], hit[2], hit[3], hit[4], hit[5]), hit[1] IS NOT NULL,
        -- as PostgreSQL reads it: folded by the rules of ASCII alone
        coalesce(lower(hit[4] COLLATE "C"), replace(substr(hit[2], 2, length(hit[2]) - 2), '""', '"'))
    FROM regexp_matches(condition, '([eE]''(?:[^''\\]|''''|\\.)*''|''(?:[^'']|'''')*'')|("(?:[^"]|"")*")'
        '|((?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)'
        '|([^][ \t\n\r\f\v!"#%&''()*+,./:;<=>?@\\^`{|}~-]+)|(.)', 'g') WITH ORDINALITY AS matches (hit, place)
$$;
COMMENT ON FUNCTION condition_tokens IS
    'The texts, names, numbers and single characters of a condition, as PostgreSQL''s lexer splits it; `word` is the '
    'name. Where the lexer knows more (comments, dollar quotes, texts that go on in another line), condition_fault '
    'refuses the condition.';

CREATE FUNCTION condition_may_call(function oid) RETURNS boolean
    LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp SET standard_conforming_strings = on AS $$
    SELECT CASE
        WHEN prokind <> 'f' OR proretset OR prosecdef THEN false
        WHEN pronamespace <> 'pg_catalog'::regnamespace OR prolang NOT IN (
            SELECT oid FROM pg_language WHERE lanname IN ('internal', 'sql')) THEN false
        WHEN proargtypes::oid[] && ARRAY['internal'::regtype::oid, 'cstring'::regtype::oid] THEN false
        -- an immutable function sees only its arguments; these names are functions that tell more than that
        WHEN provolatile = 'i' THEN proname !~ '^(pg_|lo_|txid_|xml|ts_rewrite|querytree|satisfies_hash_partition|postgresql_fdw_validator)'
        WHEN provolatile = 's' THEN proname ~ ('^(now|(statement|transaction)_timestamp|age|date|date_(add|subtract|part|trunc)'
            '|extract|make_timestamptz|timestamp(tz)?|time(tz)?|timezone|to_(char|date|timestamp|number)|overlaps'
            '|(interval|timestamptz)_(pl|mi)_(interval|timestamptz)'
            '|(date|timestamptz?)_(cmp|eq|ge|gt|le|lt|ne)_(date|timestamptz?)'
            '|anytextcat|textanycat|concat|concat_ws|format|quote_literal|quote_nullable|array_to_string'
            '|jsonb?_build_(array|object)|to_jsonb?|array_to_json|jsonb_path_(exists|match|query_array|query_first)_tz'
            '|convert_(from|to)|to_tsvector|(to|plainto_|phraseto_|websearch_to_)_?tsquery|ts_match_(tq|tt))$')
        ELSE false END
    FROM pg_proc WHERE oid = function
$$;
COMMENT ON FUNCTION condition_may_call IS
    'Whether a stored condition may call a function: one of PostgreSQL that sees its arguments, the clock or '
    'settings of formats, and none that reads tables or files, runs text as SQL or changes a setting.';

CREATE FUNCTION condition_fault(condition text) RETURNS text
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET standard_conforming_strings = on AS $$
DECLARE
    -- the grammar of expressions, of types and of extract
    keywords text[] := string_to_array('all and any array as asymmetric at between both case cast coalesce collate '
        'current_date current_time current_timestamp distinct else end escape false for from greatest ilike in is '
        'isnull leading least like localtime localtimestamp normalize normalized not notnull null nullif or overlaps '
        'overlay placing position similar some substring symmetric then to trailing trim true unknown variadic when '
        'with without nfc nfd nfkc nfkd object scalar value unique keys '
        'bigint bit boolean character dec decimal double float int integer precision real smallint varying zone '
        'century day decade dow doy epoch hour isodow isoyear julian microseconds millennium milliseconds minute month '
        'quarter second timezone_hour timezone_minute week year', ' ');
    -- the functions of ours that a condition may call
    own text[] := ARRAY['queue_malformed', 'queue_sender_domain'];
    columns text[] := ARRAY(SELECT attname FROM pg_attribute
        WHERE attrelid = 'pgmta.queue'::regclass AND attnum > 0 AND NOT attisdropped);
    bare text;
    words text[];
    bad record;
BEGIN
    IF coalesce(condition, '') !~ '\S' THEN RETURN 'the condition is empty'; END IF;
    -- The names are judged before PostgreSQL analyses the condition, which alone can run code, and with the rights of the owner if a
    -- function of the owner calls this: a literal is read by the input function of its type, and that of an array, a row or a range
    -- evaluates the CHECKs of domains.
    SELECT string_agg(CASE WHEN literal THEN '''''' ELSE token END, '' ORDER BY place),
        coalesce(array_agg(t.word) FILTER (WHERE t.word IS NOT NULL), '{}')
    INTO bare, words FROM pgmta.condition_tokens(condition) AS t;
    IF bare ~ '--|/\*|;|\$' THEN
        RETURN 'a condition has no comments, no '';'' and no ''$''';
    ELSIF bare COLLATE "C" ~ '[^ \t\n\r\f\v!-~]' THEN
        RETURN 'a condition has only ASCII characters, except in texts';
    END IF;
    SELECT t.* INTO bad
    FROM (
        SELECT place, token, literal, word, lag(token) OVER w AS before, lag(word) OVER w AS word_before,
            lag(literal) OVER w AS after_literal, lead(token) OVER w AS following
        FROM pgmta.condition_tokens(condition) WHERE token !~ '^[ \t\n\r\f\v]$' WINDOW w AS (ORDER BY place)
    ) AS t
    WHERE CASE
        WHEN literal THEN after_literal
        WHEN token = '.' THEN word_before IS DISTINCT FROM 'pg_catalog'
        -- the token is a number, or a character of an operator
        WHEN word IS NULL THEN token !~ '^(\.?[0-9].*|[][()*/+,:<=>!~@#%^&|?`-])$'
        WHEN octet_length(word) > 63 THEN true  -- PostgreSQL would cut it to another name
        WHEN word = 'pg_catalog' THEN following IS DISTINCT FROM '.'
        WHEN lower(before) = 'collate' THEN NOT EXISTS (
            SELECT FROM pg_collation WHERE collname = word AND collnamespace = 'pg_catalog'::regnamespace)
        WHEN token !~ '^"' AND word = ANY (keywords || own) THEN before = '.'
        -- not by EXISTS, whose plan may judge every function
        ELSE (before IS DISTINCT FROM '.' AND word = ANY (columns)
            OR (SELECT bool_or(pgmta.condition_may_call(oid)) FROM pg_proc WHERE proname = word)
            OR (SELECT bool_or(typtype IN ('b', 'r', 'm')) FROM pg_type
                WHERE typname = word AND typnamespace = 'pg_catalog'::regnamespace
                    AND typname !~ '^_?(reg(?!config$)|pg_|xml|refcursor|aclitem|txid)')) IS NOT TRUE
        END
    ORDER BY place LIMIT 1;
    IF bad.literal THEN
        RETURN 'a text in a condition ends in the line in which it begins';
    ELSIF '.' IN (bad.token, bad.following) THEN
        RETURN format('%s. is not allowed in a condition: columns have no prefix, functions and types only pg_catalog',
            coalesce(bad.word, bad.word_before));
    ELSIF bad.word IN ('select', 'table', 'values') THEN
        RETURN 'a subselect is not allowed in a condition';
    ELSIF bad.word IN ('queue', 'ctid', 'xmin', 'xmax', 'cmin', 'cmax', 'tableoid') THEN
        RETURN 'only the columns of queue may be named, no system columns and no whole rows';
    ELSIF bad.following = '(' THEN
        RETURN format('function %s is not allowed in a condition', bad.word);
    ELSIF bad.word IS NULL AND bad.token IS NOT NULL THEN
        RETURN format('%s is not allowed in a condition', bad.token);
    ELSIF bad.token IS NOT NULL THEN
        RETURN format('%s is not allowed in a condition: it may have the columns of queue, and functions and types of '
            'PostgreSQL that see only these', bad.token);
    END IF;
    -- A session may have types of its own, and schema public objects from a time when others could make them there.
    SELECT name INTO bad FROM (
        SELECT typname, typowner, typnamespace FROM pg_type WHERE typname = ANY (words)
        UNION ALL SELECT proname, proowner, pronamespace FROM pg_proc WHERE proname = ANY (words)
        UNION ALL SELECT oprname, oprowner, oprnamespace FROM pg_operator
            WHERE oprnamespace = to_regnamespace('public') AND strpos(bare, oprname) > 0
    ) AS found (name, owner, place)
    WHERE place = pg_my_temp_schema() OR place = to_regnamespace('public')
        AND NOT pg_has_role(owner, (SELECT nspowner FROM pg_namespace WHERE nspname = 'pgmta'), 'USAGE')
    LIMIT 1;
    IF FOUND THEN
        RETURN format('%s is not allowed in a condition while there is another one of that name in %s', bad.name,
            'public or among the temporary objects');
    END IF;
    -- PostgreSQL searches types of the session however the path is. So it must have none whose texts run code, whatever
    -- its name: no domain, and nothing that contains one.
    IF EXISTS (
        SELECT FROM pg_type AS t WHERE typnamespace = pg_my_temp_schema() AND (typtype IN ('d', 'r', 'm') OR EXISTS (
            SELECT FROM pg_attribute JOIN pg_type AS part
                ON part.oid IN (atttypid, (SELECT typelem FROM pg_type WHERE oid = atttypid))
            WHERE attrelid = t.typrelid AND attnum > 0 AND part.typtype NOT IN ('b', 'e')
                AND part.typnamespace <> 'pg_catalog'::regnamespace))
    ) THEN
        RETURN 'no condition is judged in a session that has temporary domains or ranges, or types that contain others';
    END IF;
    PERFORM pgmta.condition_analyse(condition, 'pg_catalog, pgmta, pg_temp');
    RETURN NULL;
EXCEPTION
    WHEN OTHERS THEN
        -- an error by which the server can't work now says nothing about the condition
        IF SQLSTATE ~ '^(08|25|40|53|55|57|58|XX)' THEN RAISE; END IF;
        RETURN SQLERRM;
END $$;
COMMENT ON FUNCTION condition_fault IS
    'Why a condition may not be stored, or null: it has to be one expression that sees nothing but the columns of '
    'queue. The names in its text are judged first, then PostgreSQL analyses it. It is never planned.';

CREATE FUNCTION queue_test(condition text, ids bigint[]) RETURNS TABLE(id bigint, error text)
    LANGUAGE plpgsql STABLE
    SET search_path = pgmta, pg_temp SET standard_conforming_strings = on
    AS $_$
DECLARE
    matching bigint[];
    blank pgmta.queue;
    one pgmta.queue;
    says boolean;
    state text := '00000';
    half integer := cardinality(ids) / 2;
    single text := format(
        E'SELECT (\n%s\n) FROM (SELECT ($1).*) AS queue',
        regexp_replace(condition, '\m(public|pgmta)\s*\.\s*queue\M', 'queue', 'gi'));
BEGIN
    PERFORM set_config('search_path', pgmta.condition_path(), true);
    IF cardinality(ids) = 0 THEN RETURN; END IF;
    BEGIN
        -- In FILTER the parts of the condition are evaluated as they are written: WHERE orders them.
        EXECUTE format(
            E'SELECT array_agg(id) FILTER (WHERE (\n%s\n)) FROM pgmta.queue WHERE id = ANY ($1)', condition)
            INTO matching USING ids;
    EXCEPTION WHEN OTHERS THEN
        -- an error by which the server can't work now is not about a row
        IF SQLSTATE ~ '^(08|25|40|53|57|58|55P03|XX001|XX002)' THEN RAISE; END IF;
        state := SQLSTATE;
    END;
    IF state ~ '^(0A|2F|3F|42)' OR 0 = ANY (ids) THEN
        -- Casts to jsonpath, tsquery or regconfig blame the text of the statement for a value. A
        -- condition that PostgreSQL refuses on a row without values as well is refused whatever the row.
        blank.id := 0;
        blank.message_id := 0;
        blank.ts := now();
        blank.next_attempt := now();
        blank.attempts := 0;
        blank.priority := 5;
        blank.status := 'QUEUED';
        blank.sender := '';
        blank.sender_domain := '';
        blank.recipient := '';
        blank.domain := '';
        blank.metadata := '{}';
        blank.tenant := '';
        blank.on_failed := 'hold';
        blank.once := false;
        BEGIN
            EXECUTE single INTO says USING blank;
        EXCEPTION WHEN OTHERS THEN
            IF SQLSTATE ~ '^(0A|2F|3F|42|08|25|40|53|57|58|55P03|XX001|XX002)' THEN RAISE; END IF;
        END;
    END IF;
    IF state = '00000' THEN
        RETURN QUERY SELECT hit, NULL::text FROM unnest(matching) AS hit;
        RETURN;
    ELSIF half > 8 THEN
        RETURN QUERY SELECT * FROM pgmta.queue_test(condition, ids[:half]);
        RETURN QUERY SELECT * FROM pgmta.queue_test(condition, ids[half + 1:]);
        RETURN;
    END IF;
    -- Few rows are tried singly, without the table: to plan for the partitions costs most.
    FOR one IN SELECT * FROM pgmta.queue AS q WHERE q.id = ANY (ids) LOOP
        id := one.id;
        error := NULL;
        BEGIN
            EXECUTE single INTO says USING one;
        EXCEPTION WHEN OTHERS THEN
            IF SQLSTATE ~ '^(08|25|40|53|57|58|55P03|XX001|XX002)' THEN RAISE; END IF;
            says := true;
            -- never SQLERRM: it may quote what the condition reads
            error := pgmta.condition_error(SQLSTATE);
        END;
        IF says THEN RETURN NEXT; END IF;
    END LOOP;
END $_$;
COMMENT ON FUNCTION queue_test IS
    'Of these rows of queue those that the condition matches, and those on which it fails, with the error. Where it '
    'fails it tries the halves, and few rows singly. Fails itself where PostgreSQL refuses the condition for a row '
    'without values as well; the id 0 asks for that alone.';

INSERT INTO rights (object, role, privileges) VALUES
    ('FUNCTION condition_path', 'PUBLIC', 'EXECUTE'),
    ('FUNCTION queue_condition', 'pgmta_queued', 'EXECUTE'),
    ('FUNCTION queue_condition', 'pgmta_operator', 'EXECUTE'),
    ('FUNCTION condition_capitals', 'pgmta_queued', 'EXECUTE'),
    ('FUNCTION condition_capitals', 'pgmta_operator', 'EXECUTE'),
    ('FUNCTION condition_error', 'pgmta_queued', 'EXECUTE'),
    ('FUNCTION condition_error', 'pgmta_operator', 'EXECUTE'),
    ('FUNCTION condition_error', 'pgmta_reader', 'EXECUTE'),
    ('FUNCTION condition_analyse', 'pgmta_queued', 'EXECUTE'),
    ('FUNCTION condition_analyse', 'pgmta_operator', 'EXECUTE'),
    ('FUNCTION condition_analyse', 'pgmta_reader', 'EXECUTE'),
    ('FUNCTION condition_tokens', 'pgmta_queued', 'EXECUTE'),
    ('FUNCTION condition_tokens', 'pgmta_operator', 'EXECUTE'),
    ('FUNCTION condition_tokens', 'pgmta_reader', 'EXECUTE'),
    ('FUNCTION condition_may_call', 'pgmta_queued', 'EXECUTE'),
    ('FUNCTION condition_may_call', 'pgmta_operator', 'EXECUTE'),
    ('FUNCTION condition_may_call', 'pgmta_reader', 'EXECUTE'),
    ('FUNCTION condition_fault', 'pgmta_queued', 'EXECUTE'),
    ('FUNCTION condition_fault', 'pgmta_operator', 'EXECUTE'),
    ('FUNCTION condition_fault', 'pgmta_reader', 'EXECUTE'),
    ('FUNCTION queue_test', 'pgmta_queued', 'EXECUTE'),
    ('FUNCTION queue_test', 'pgmta_operator', 'EXECUTE'),
    ('FUNCTION queue_test', 'pgmta_reader', 'EXECUTE');

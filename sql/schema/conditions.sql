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
    ) THEN 'pgmta' ELSE 'pgmta, public' END
$$;
COMMENT ON FUNCTION condition_path IS
    'The search_path of conditions: pgmta, public; without public if a role beside the owner of schema pgmta may '
    'create objects there. pgmta/postgres/locate.py has the same.';

CREATE FUNCTION queue_condition(condition text) RETURNS text
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    brackets text;
    probe refcursor;
BEGIN
    PERFORM set_config('search_path', pgmta.condition_path() || ', pg_temp', true);
    IF coalesce(condition, '') !~ '\S' THEN
        RAISE EXCEPTION 'the condition is empty'
            USING ERRCODE = 'invalid_parameter_value', HINT = '''true'' stands for every row.';
    END IF;
    -- In brackets of two kinds: an expression that closes the one leaves the other open. A cursor
    -- takes a single statement, and opening it reads no row.
    FOREACH brackets IN ARRAY ARRAY[E'(ARRAY[\n%s\n])[1]', E'(\n%s\n)'] LOOP
        BEGIN
            OPEN probe FOR EXECUTE
                'SELECT 1 FROM pgmta.queue WHERE ' || format(brackets, condition);
            CLOSE probe;
        EXCEPTION WHEN others THEN
            RAISE EXCEPTION 'the condition is refused: %', SQLERRM USING ERRCODE = SQLSTATE;
        END;
    END LOOP;
    RETURN format(E'(\n%s\n)', condition);
END $$;
COMMENT ON FUNCTION queue_condition IS
    'The condition in brackets, or an error: it must be one boolean expression on columns of queue that can''t end '
    'the statement it is put into. Runs nothing.';

CREATE FUNCTION condition_capitals(condition text) RETURNS void
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
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

CREATE FUNCTION condition_text_fault(condition text) RETURNS text
    LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp SET standard_conforming_strings = on AS $$
DECLARE
    bare text;
    words text[];
    bad text;
BEGIN
    -- Literals, names in quotation marks, words, and single characters. A word has the characters of PostgreSQL's lexer.
    SELECT string_agg(CASE WHEN hit[1] IS NOT NULL THEN ''''''
                           WHEN hit[2] ~ '^"[a-z_]+"$' THEN hit[2]
                           WHEN hit[2] IS NOT NULL THEN '"?"'
                           ELSE coalesce(hit[3], hit[4]) END, '' ORDER BY place),
        array_agg(lower(coalesce(hit[3], replace(substr(hit[2], 2, length(hit[2]) - 2), '""', '"'))::name::text))
            FILTER (WHERE hit[2] IS NOT NULL OR hit[3] IS NOT NULL)
    INTO bare, words
    FROM regexp_matches(condition, '([eE]''(?:[^''\\]|''''|\\.)*''|''(?:[^'']|'''')*'')|("(?:[^"]|"")*")'
        '|([^][ \t\n\r\f\v!"#%&''()*+,./:;<=>?@\\^`{|}~-]+)|(.)', 'g') WITH ORDINALITY AS matches (hit, place);
    IF bare ~ '--|/\*|;|\$' THEN
        RETURN 'a condition has no comments, no '';'' and no ''$''';
    ELSIF bare ~* '\mu&[''"]' THEN
        RETURN 'a condition has no U& before a quotation mark';
    ELSIF condition ~ '''[ \t\f\v]*[\n\r][ \t\f\v\n\r]*''' THEN
        RETURN 'a text in a condition ends in the line in which it begins';
    END IF;
    SELECT hit[1] INTO bad
    FROM regexp_matches(bare, '([^][ \t\n\r\f\v!#%&''()*+,./:;<=>?@\\^`{|}~-]+)[ \t\n\r\f\v]*\.', 'g') AS matches (hit)
    WHERE hit[1] !~* '^("?(queue|pgmta|pg_catalog)"?|[0-9_]+)$' LIMIT 1;
    IF bad IS NOT NULL THEN
        RETURN format('%s. is not allowed in a condition: it sees queue and pg_catalog', bad);
    END IF;
    SELECT typname INTO bad FROM pg_type
    WHERE typnamespace IN (SELECT to_regnamespace(name) FROM unnest(ARRAY['public', pg_my_temp_schema()::regnamespace::text]) AS name)
        AND NOT pg_has_role(typowner, (SELECT nspowner FROM pg_namespace WHERE nspname = 'pgmta'), 'USAGE')
        AND lower(typname) = ANY (words) LIMIT 1;
    IF bad IS NOT NULL THEN
        RETURN format('%s is not allowed in a condition while there is a type or table of that name in %s', bad,
            'public or among the temporary ones');
    END IF;
    RETURN NULL;
END $$;
COMMENT ON FUNCTION condition_text_fault IS
    'Why the text of a condition may not be analysed by the owner, or null. Analysis reads literals by the input '
    'functions of their types, and those of arrays, rows and ranges evaluate the CHECK of a domain.';

CREATE FUNCTION condition_may_call(function oid) RETURNS boolean
    LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp SET standard_conforming_strings = on AS $$
    SELECT CASE
        WHEN prokind <> 'f' OR proretset OR prosecdef THEN false
        WHEN pronamespace = 'pgmta'::regnamespace THEN proname IN ('queue_malformed', 'queue_sender_domain')
        WHEN pronamespace <> 'pg_catalog'::regnamespace OR prolang NOT IN (
            SELECT oid FROM pg_language WHERE lanname IN ('internal', 'sql')) THEN false
        WHEN proargtypes::oid[] && ARRAY['internal'::regtype::oid, 'cstring'::regtype::oid] THEN false
        -- an immutable function sees its arguments alone; names of functions that say more than that
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
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET standard_conforming_strings = on AS $$
DECLARE
    brackets text;
    place text := format('pgmta.condition_%s', pg_backend_pid());
    tree text;
    bad text;
    probe refcursor;
BEGIN
    PERFORM set_config('search_path', pgmta.condition_path() || ', pg_temp', true);
    IF coalesce(condition, '') !~ '\S' THEN RETURN 'the condition is empty'; END IF;
    bad := pgmta.condition_text_fault(condition);
    IF bad IS NOT NULL THEN RETURN bad; END IF;
    BEGIN
        -- A cursor takes a single statement. That of EXPLAIN is analysed when it opens, and not planned:
        -- to plan would evaluate constants with the rights of the owner.
        FOREACH brackets IN ARRAY ARRAY[E'(ARRAY[\n%s\n])[1]', E'(\n%s\n)'] LOOP
            OPEN probe FOR EXECUTE 'EXPLAIN SELECT 1 FROM pgmta.queue WHERE ' || format(brackets, condition);
            CLOSE probe;
        END LOOP;
        EXECUTE format(E'CREATE VIEW %s AS SELECT 1 AS one FROM pgmta.queue WHERE (\n%s\n)', place, condition);
        SELECT ev_action::text INTO tree FROM pg_catalog.pg_rewrite WHERE ev_class = place::regclass;
        RAISE EXCEPTION 'nothing stays' USING ERRCODE = 'PGM27';
    EXCEPTION
        WHEN SQLSTATE 'PGM27' THEN NULL;
        WHEN OTHERS THEN
            -- what the server can't do now says nothing of the condition
            IF SQLSTATE ~ '^(08|25|40|53|55|57|58|XX)' THEN RAISE; END IF;
            RETURN SQLERRM;
    END;
    SELECT hit[1] INTO bad FROM regexp_matches(tree, '(?<!\\)\{([A-Z_]+)', 'g') AS matches (hit)
    WHERE hit[1] <> ALL ('{QUERY,RTE,RANGETBLENTRY,RTEPERMISSIONINFO,ALIAS,FROMEXPR,RANGETBLREF,TARGETENTRY,VAR,CONST,OPEXPR,
        FUNCEXPR,BOOLEXPR,NULLTEST,BOOLEANTEST,SCALARARRAYOPEXPR,DISTINCTEXPR,NULLIFEXPR,RELABELTYPE,COERCEVIAIO,
        ARRAYCOERCEEXPR,ARRAY,ARRAYEXPR,CASE,CASEEXPR,WHEN,CASEWHEN,CASETESTEXPR,COALESCE,COALESCEEXPR,MINMAX,MINMAXEXPR,
        SQLVALUEFUNCTION,COLLATE,COLLATEEXPR,SUBSCRIPTINGREF,JSONISPREDICATE,JSONFORMAT,NAMEDARGEXPR}'::text[]) LIMIT 1;
    IF bad = 'SUBLINK' THEN
        RETURN 'a subselect is not allowed in a condition';
    ELSIF bad IS NOT NULL THEN
        RETURN format('%s is not allowed in a condition', lower(bad));
    ELSIF tree ~ ':varattno (-|0)' THEN
        RETURN 'only the columns of queue may be named, no system columns and no whole rows';
    END IF;
    SELECT coalesce(proname, oid::text) INTO bad
    FROM (SELECT DISTINCT hit[1]::oid AS oid
          FROM regexp_matches(tree, ':(?:funcid|opfuncid|hashfuncid|negfuncid) (\d+)', 'g') AS matches (hit)) AS used
    LEFT JOIN pg_catalog.pg_proc USING (oid)
    WHERE oid <> 0 AND pgmta.condition_may_call(oid) IS NOT TRUE LIMIT 1;
    IF bad IS NOT NULL THEN
        RETURN format('function %s is not allowed in a condition', bad);
    END IF;
    SELECT oprname INTO bad
    FROM (SELECT DISTINCT hit[1]::oid AS oid FROM regexp_matches(tree, ':opno (\d+)', 'g') AS matches (hit)) AS used
    JOIN pg_catalog.pg_operator USING (oid) WHERE oprnamespace <> 'pg_catalog'::regnamespace LIMIT 1;
    IF bad IS NOT NULL THEN
        RETURN format('operator %s of another schema is not allowed in a condition', bad);
    END IF;
    SELECT typname INTO bad
    FROM (SELECT DISTINCT hit[1]::oid AS oid FROM regexp_matches(tree,
              ':(?:consttype|vartype|resulttype|opresulttype|funcresulttype|array_typeid|element_typeid|casetype|coalescetype'
              '|minmaxtype|refcontainertype|refelemtype|refrestype|type|typeId) (\d+)', 'g') AS matches (hit)) AS used
    JOIN pg_catalog.pg_type USING (oid)
    WHERE typnamespace <> 'pg_catalog'::regnamespace OR typtype NOT IN ('b', 'r', 'm') AND typname <> 'unknown'
        OR typname ~ '^_?(reg(?!config$)|pg_|xml|refcursor|aclitem|txid)' LIMIT 1;
    IF bad IS NOT NULL THEN
        RETURN format('type %s is not allowed in a condition', bad);
    END IF;
    RETURN NULL;
END $$;
COMMENT ON FUNCTION condition_fault IS
    'Why a condition may not be stored, or null: it has to be one expression that sees nothing but the columns of '
    'queue. It judges the parse tree, evaluates nothing and leaves nothing behind.';

CREATE FUNCTION queue_test(condition text, ids bigint[]) RETURNS TABLE(id bigint, error text)
    LANGUAGE plpgsql STABLE
    SET search_path = pgmta, pg_temp
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
    PERFORM set_config('search_path', pgmta.condition_path() || ', pg_temp', true);
    IF cardinality(ids) = 0 THEN RETURN; END IF;
    BEGIN
        -- In FILTER the parts of the condition are evaluated as they are written: WHERE orders them.
        EXECUTE format(
            E'SELECT array_agg(id) FILTER (WHERE (\n%s\n)) FROM pgmta.queue WHERE id = ANY ($1)', condition)
            INTO matching USING ids;
    EXCEPTION WHEN OTHERS THEN
        -- what the server can't do now is about no row
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
    ('FUNCTION condition_fault', 'pgmta_queued', 'EXECUTE'),
    ('FUNCTION condition_fault', 'pgmta_operator', 'EXECUTE'),
    ('FUNCTION condition_fault', 'pgmta_reader', 'EXECUTE'),
    ('FUNCTION queue_test', 'pgmta_queued', 'EXECUTE'),
    ('FUNCTION queue_test', 'pgmta_operator', 'EXECUTE'),
    ('FUNCTION queue_test', 'pgmta_reader', 'EXECUTE');

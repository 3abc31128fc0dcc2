-- The conditions that roles store are judged by their parse tree: docs/decisions/0048-judged-conditions.md.

CREATE FUNCTION condition_fault(condition text) RETURNS text
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    brackets text;
    place text := format('pgmta.condition_%s', pg_backend_pid());
    tree text;
    bad text;
    probe refcursor;
BEGIN
    PERFORM set_config('search_path', pgmta.condition_path() || ', pg_temp', true);
    IF coalesce(condition, '') !~ '\S' THEN RETURN 'the condition is empty'; END IF;
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
COMMENT ON FUNCTION condition_fault(text) IS
    'Why a condition may not be stored, or null: it has to be one expression that sees nothing but the columns of '
    'queue. It judges the parse tree, evaluates nothing and leaves nothing behind.';

CREATE FUNCTION condition_may_call(function oid) RETURNS boolean
    LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT CASE
        WHEN prokind <> 'f' OR proretset OR prosecdef THEN false
        WHEN pronamespace = 'pgmta'::regnamespace THEN proname IN ('queue_malformed', 'queue_sender_domain')
        WHEN pronamespace <> 'pg_catalog'::regnamespace OR prolang NOT IN (
            SELECT oid FROM pg_language WHERE lanname IN ('internal', 'sql')) THEN false
        WHEN proargtypes::oid[] && ARRAY['internal'::regtype::oid, 'cstring'::regtype::oid] THEN false
        -- an immutable function sees its arguments alone; names of functions that say more than that
        WHEN provolatile = 'i' THEN proname !~ '^(pg_|lo_|txid_|xml|ts_rewrite|querytree)'
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
COMMENT ON FUNCTION condition_may_call(oid) IS
    'Whether a stored condition may call a function: one of PostgreSQL that sees its arguments, the clock or settings '
    'of formats, and none that reads tables or files, runs text as SQL or changes a setting.';
REVOKE EXECUTE ON FUNCTION condition_fault(text), condition_may_call(oid) FROM PUBLIC;

CREATE OR REPLACE FUNCTION rules_valid() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    fault text;
    capitals text[];
BEGIN
    PERFORM pgmta.queue_condition(NEW.condition);
    fault := pgmta.condition_fault(NEW.condition);
    IF fault IS NOT NULL THEN
        RAISE EXCEPTION 'the condition of rule % is refused: %', NEW.name, fault USING
            ERRCODE = 'insufficient_privilege', COLUMN = 'condition',
            HINT = 'queued evaluates it. It may use the columns of queue and functions of PostgreSQL that see only these.';
    END IF;
    capitals := regexp_match(NEW.condition, '(?<![\w.''])(?:queue\.)?(sender_domain|domain)\s*'
        '(?:=|<>|!=|(?:[nN][oO][tT]\s+)?[lL][iI][kK][eE]\s|(?:[nN][oO][tT]\s+)?[iI][nN]\s*\((?:[^()'']|''[^'']*'')*?)'
        '\s*(''[^'']*[A-Z][^'']*'')');
    IF capitals IS NOT NULL THEN
        RAISE WARNING '% is in lower case, so % never matches', capitals[1], capitals[2]
            USING HINT = 'Write it in lower case.';
    END IF;
    RETURN NEW;
END $$;

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
COMMENT ON FUNCTION condition_error(text) IS
    'The words for an error on which a condition fails. They never have values of rows.';

CREATE OR REPLACE FUNCTION queue_test(condition text, ids bigint[]) RETURNS TABLE(id bigint, error text)
    LANGUAGE plpgsql STABLE
    SET search_path TO 'pgmta', 'pg_temp'
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
        -- Casts to jsonpath, tsquery or regconfig blame the text of the statement for a value. What is
        -- refused on a row without values as well is refused whatever the row.
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
    -- Few rows are tried singly, each as a row of its own: to plan for the partitions costs most.
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

CREATE FUNCTION leaf_rows(leaf regclass, exact boolean, OUT rows bigint, OUT oldest timestamptz)
    LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF leaf = 'pgmta.attempts_default'::regclass THEN
        SELECT count(*), min(ended_at) INTO rows, oldest FROM pgmta.attempts_default;
    ELSIF leaf NOT IN (SELECT relid FROM pg_partition_tree('pgmta.queue')) THEN
        RAISE EXCEPTION '% is no partition of queue', leaf USING ERRCODE = 'invalid_parameter_value';
    ELSIF exact THEN
        EXECUTE format('SELECT count(*), min(ts) FROM %s', leaf) INTO rows, oldest;
    ELSE
        EXECUTE format('SELECT ts FROM %s ORDER BY id LIMIT 1', leaf) INTO oldest;
    END IF;
END $$;
COMMENT ON FUNCTION leaf_rows(regclass, boolean) IS
    'The oldest row of a partition of queue by the lowest id; if exact also the number of rows, which reads all. '
    'For attempts_default both. Roles have no right to the partitions themselves.';
REVOKE EXECUTE ON FUNCTION leaf_rows(regclass, boolean) FROM PUBLIC;

DO $$
DECLARE
    rule record;
    fault text;
BEGIN
    FOR rule IN SELECT name, condition FROM rules ORDER BY name LOOP
        fault := condition_fault(rule.condition);
        IF fault IS NOT NULL THEN
            RAISE WARNING 'rule % will be passed over: %', rule.name, fault USING
                HINT = format('queuectl rule remove %s, and add it with another condition.', rule.name);
        END IF;
    END LOOP;
END $$;

ALTER FUNCTION grants() RENAME TO grants_0025;
COMMENT ON FUNCTION grants_0025() IS 'Part of grants().';
CREATE FUNCTION grants() RETURNS text[] LANGUAGE plpgsql
    SET search_path = pgmta, pg_catalog, pg_temp AS $$
BEGIN
    PERFORM grant_to('EXECUTE ON FUNCTION condition_fault(text)', 'pgmta_queued', 'pgmta_operator', 'pgmta_reader');
    PERFORM grant_to('EXECUTE ON FUNCTION condition_error(text)', 'pgmta_queued', 'pgmta_operator', 'pgmta_reader');
    PERFORM grant_to('EXECUTE ON FUNCTION leaf_rows(regclass, boolean)', 'pgmta_operator', 'pgmta_reader');
    RETURN grants_0025();
END $$;
REVOKE EXECUTE ON FUNCTION grants(), grants_0025(), condition_error(text) FROM PUBLIC;
COMMENT ON FUNCTION grants() IS
    'Gives the roles pgmta_smtpd, pgmta_queued, pgmta_operator, pgmta_reader and pgmta_submit their '
    'rights; to be called by the owner of the tables. Returns the roles that do not exist.';
DO $$ BEGIN PERFORM grants(); END $$;

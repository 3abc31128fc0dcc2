-- These read the table; only the functions below call them. A plan outlives the size that the table had then, so that
-- it looks up accounts by their index in each case.
CREATE OR REPLACE FUNCTION lifecycle_bound.account_rows(ids text[])
RETURNS TABLE (id text, email text, login text, status text, language text, words jsonb)
LANGUAGE plpgsql STABLE ROWS 10 SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS @quote@
BEGIN
    @guard@
    -- the one with an id: the key of a partitioned table may have further columns
    RETURN QUERY SELECT a.id::text, a.email::text, a.login::text, a.status, a.language, a.words
    FROM (SELECT v.*, count(*) OVER (PARTITION BY v.id) AS number FROM @view@ AS v
        WHERE v.id = ANY ($1::@id_type@[])) AS a WHERE a.number = 1;
END @quote@;
CREATE OR REPLACE FUNCTION lifecycle_bound.account_named(name text) RETURNS text[]
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS @quote@
BEGIN
    @guard@
    RETURN ARRAY(SELECT a.id::text FROM @view@ AS a WHERE @named@);
END @quote@;
CREATE OR REPLACE FUNCTION lifecycle_bound.account_lock(id text) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS @quote@
BEGIN
    @guard@
    RETURN (SELECT a.status FROM @view@ AS a WHERE a.id = $1::@id_type@ LIMIT 1 FOR NO KEY UPDATE);
END @quote@;
CREATE OR REPLACE FUNCTION lifecycle_bound.account_activate(id text, email text) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS @quote@
BEGIN
    @guard@
    RETURN @place@.pgmta_activate($1, $2, '{}');
END @quote@;

-- These take the place of functions for accounts of schema lifecycle. They have no search_path of their own, so that they
-- notice whether that of their caller was changed. So names, types and operators have their schema.
CREATE OR REPLACE FUNCTION lifecycle.account_rows(numbers bigint[]) RETURNS TABLE (
    number bigint, id text, email text, login text, status text, language text, words jsonb)
LANGUAGE plpgsql STABLE ROWS 10 SET enable_seqscan = off AS @quote@
@path@
BEGIN
    @refusal@
    RETURN QUERY SELECT h.number, h.id, a.email, a.login, lifecycle.holder_status(a.status, h.fresh), a.language, a.words
    FROM lifecycle_bound.account_rows(
            ARRAY(SELECT l.id FROM lifecycle.holders AS l WHERE l.number OPERATOR(pg_catalog.=) ANY ($1))) AS a
        JOIN lifecycle.holders AS h ON h.id OPERATOR(pg_catalog.=) a.id;
    @unchanged@
END @quote@;
CREATE OR REPLACE FUNCTION lifecycle.account_named(name text) RETURNS bigint[] LANGUAGE plpgsql VOLATILE AS @quote@
DECLARE
    @path_only@
    ids pg_catalog.text[];
BEGIN
    @refusal@
    ids := lifecycle_bound.account_named($1);
    @unchanged@
    -- one that was deleted meanwhile has no number
    RETURN (SELECT pg_catalog.array_agg(n ORDER BY n) FROM pg_catalog.unnest(ids) AS i, lifecycle.account_number(i) AS n
        WHERE n IS NOT NULL);
END @quote@;
CREATE OR REPLACE FUNCTION lifecycle.account_number(id text) RETURNS bigint LANGUAGE plpgsql VOLATILE AS @quote@
DECLARE
    @path_only@
    found pg_catalog.int8 := (SELECT h.number FROM lifecycle.holders AS h WHERE h.id OPERATOR(pg_catalog.=) $1);
    written pg_catalog.text;
BEGIN
    IF found IS NOT NULL THEN RETURN found; END IF;
    @refusal@
    BEGIN
        PERFORM $1::@id_type@;
    EXCEPTION WHEN invalid_text_representation OR numeric_value_out_of_range THEN
        RETURN NULL;
    END;
    -- as the table writes it, so that an account has one holder
    written := (SELECT a.id FROM lifecycle_bound.account_rows(ARRAY[$1]) AS a);
    @unchanged@
    INSERT INTO lifecycle.holders (id) SELECT written WHERE written IS NOT NULL ON CONFLICT DO NOTHING;
    RETURN (SELECT h.number FROM lifecycle.holders AS h WHERE h.id OPERATOR(pg_catalog.=) written);
END @quote@;
CREATE OR REPLACE FUNCTION lifecycle.account_id(number bigint) RETURNS jsonb STABLE
RETURN (SELECT to_jsonb(h.id@id_in_json@) FROM lifecycle.holders AS h WHERE h.number = account_id.number);
CREATE OR REPLACE FUNCTION lifecycle.account_status(number bigint) RETURNS text LANGUAGE plpgsql STABLE AS @quote@
BEGIN
    @later@
    RETURN (SELECT a.status FROM lifecycle.account_rows(ARRAY[$1]) AS a);
END @quote@;
CREATE OR REPLACE FUNCTION lifecycle.account_lock(number bigint) RETURNS text LANGUAGE plpgsql VOLATILE AS @quote@
DECLARE
    @path_only@
    status pg_catalog.text;
BEGIN
    @later@
    status := lifecycle_bound.account_lock(
        (SELECT h.id FROM lifecycle.holders AS h WHERE h.number OPERATOR(pg_catalog.=) $1));
    @unchanged@
    -- a statement of its own, which sees what the lock waited for
    RETURN lifecycle.holder_status(
        status, (SELECT h.fresh FROM lifecycle.holders AS h WHERE h.number OPERATOR(pg_catalog.=) $1));
END @quote@;
CREATE OR REPLACE FUNCTION lifecycle.account_activate(number bigint) RETURNS boolean LANGUAGE plpgsql VOLATILE AS @quote@
DECLARE
    @path_only@
    result pg_catalog.bool;
BEGIN
    @refusal@
    result := (SELECT lifecycle_bound.account_activate(a.id, a.email) FROM lifecycle.account_rows(ARRAY[$1]) AS a);
    @unchanged@
    RETURN result IS TRUE;
END @quote@;

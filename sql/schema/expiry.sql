-- Expiry: templates are kept for a time, and go in batches.

CREATE FUNCTION templates_expire(age interval, batch integer) RETURNS integer LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pgmta, pg_catalog, pg_temp SET jit = off AS $$
DECLARE
    old bigint[];
    -- the tables that refer to templates, such as one of a feature
    users text := (
        SELECT string_agg(format(' AND NOT EXISTS (SELECT FROM %s AS u WHERE u.%I = t.id)', c.conrelid::regclass, a.attname), '')
        FROM pg_constraint AS c JOIN pg_attribute AS a ON a.attrelid = c.conrelid AND a.attnum = c.conkey[1]
        WHERE c.confrelid = 'templates'::regclass AND c.contype = 'f');
    writer text := coalesce(current_setting('pgmta.writer', true), '');
BEGIN
    -- the last version of a name stays; one that was replaced just now may be in an open transaction
    EXECUTE concat('SELECT ARRAY(
        SELECT t.id FROM templates AS t
        JOIN LATERAL (SELECT n.created_at FROM templates AS n
            WHERE n.tenant = t.tenant AND n.name = t.name AND n.version > t.version ORDER BY n.version LIMIT 1
        ) AS next ON next.created_at < now() - $1
        WHERE true', users, ' ORDER BY t.id LIMIT $2)') INTO old USING age, batch;
    IF old = '{}' THEN RETURN 0; END IF;
    old := ARRAY(SELECT id FROM unnest(old) AS id EXCEPT SELECT m.template_id FROM messages AS m WHERE m.template_id = ANY (old));
    PERFORM set_config('pgmta.writer', 'expiry', true);
    DELETE FROM templates AS t WHERE t.id = ANY (old);
    PERFORM set_config('pgmta.writer', writer, true);
    RETURN cardinality(old);
END $$;
COMMENT ON FUNCTION templates_expire IS
    'Removes versions of templates that were replaced so long ago and that neither mail nor a row of another table has; returns '
    'how many.';

INSERT INTO rights (object, role, privileges) VALUES
    ('FUNCTION templates_expire', 'pgmta_queued', 'EXECUTE');

-- Hints and comments name their pages, which are below docs/mail and docs/programs now.

DO $$
DECLARE
    page text;
    place text;
    command text;
BEGIN
    FOR page, place IN VALUES
        ('docs/answers.md', 'docs/mail/answers.md'),
        ('docs/composed.md', 'docs/programs/composed.md'),
        ('docs/dkim.md', 'docs/mail/dkim.md'),
        ('docs/sql.md', 'docs/programs/sql.md'),
        ('docs/templates.md', 'docs/programs/templates.md')
    LOOP
        FOR command IN
            SELECT replace(pg_get_functiondef(oid), page, place) FROM pg_proc
            WHERE pronamespace = 'pgmta'::regnamespace AND strpos(prosrc, page) > 0
            UNION ALL
            SELECT format('COMMENT ON FUNCTION %s IS %L', objoid::regprocedure, replace(description, page, place))
            FROM pg_description JOIN pg_proc ON pg_proc.oid = objoid
            WHERE classoid = 'pg_proc'::regclass AND pronamespace = 'pgmta'::regnamespace
                AND strpos(description, page) > 0
            UNION ALL
            SELECT format('COMMENT ON COLUMN %s.%I IS %L', objoid::regclass, attname, replace(description, page, place))
            FROM pg_description
                JOIN pg_class ON pg_class.oid = objoid
                JOIN pg_attribute ON attrelid = objoid AND attnum = objsubid
            WHERE classoid = 'pg_class'::regclass AND relnamespace = 'pgmta'::regnamespace
                AND strpos(description, page) > 0
        LOOP
            EXECUTE command;
        END LOOP;
    END LOOP;
END $$;

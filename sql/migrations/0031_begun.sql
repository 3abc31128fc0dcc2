-- Which rows with `once` a dead worker had begun to send: the others are free again (docs/decisions/0053-begun.md).

ALTER TABLE queue ADD COLUMN begun bigint;
COMMENT ON COLUMN queue.begun IS
    'For a row with once: the lease_token under which its last SMTP transaction began. Null: none began.';

-- a worker of the version before says nothing of a transaction that it begins
UPDATE queue SET begun = lease_token WHERE once AND lease_token IS NOT NULL;

ALTER FUNCTION grants() RENAME TO grants_0030;
COMMENT ON FUNCTION grants_0030() IS 'Part of grants().';
CREATE FUNCTION grants() RETURNS text[] LANGUAGE plpgsql
    SET search_path = pgmta, pg_catalog, pg_temp AS $$
BEGIN
    PERFORM grant_to('UPDATE (begun) ON queue', 'pgmta_queued');
    RETURN grants_0030();
END $$;
REVOKE EXECUTE ON FUNCTION grants(), grants_0030() FROM PUBLIC;
COMMENT ON FUNCTION grants() IS
    'Gives the roles pgmta_smtpd, pgmta_queued, pgmta_operator, pgmta_reader and pgmta_submit their '
    'rights; to be called by the owner of the tables. Returns the roles that do not exist.';
DO $$ BEGIN PERFORM grants(); END $$;

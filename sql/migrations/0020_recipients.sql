-- Recipients of relay domains: docs/decisions/0039-limits.md.

CREATE TABLE recipients (
    address text COLLATE "C" PRIMARY KEY CONSTRAINT recipients_address CHECK (
        address = lower(address COLLATE "C") AND octet_length(address) <= 254
        AND address ~ '^[^[:cntrl:]]*@[^@[:space:][:cntrl:]]+$'),
    created_at timestamptz NOT NULL DEFAULT now()
);
COMMENT ON TABLE recipients IS
    'Recipients of relay domains that smtpd takes mail for, if relay.recipients of smtpd.yaml has table: true.';
COMMENT ON COLUMN recipients.address IS
    'Address, or @domain for all of a domain; in lower case, the domain in A-labels.';
COMMENT ON COLUMN recipients.created_at IS 'When the row was added.';
COMMENT ON CONSTRAINT recipients_address ON recipients IS 'An address or @domain, without upper case.';

CREATE FUNCTION recipients_known(addresses text[]) RETURNS text[] LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
    SELECT coalesce(array_agg(address), '{}') FROM pgmta.recipients WHERE address = ANY (addresses)
$$;
COMMENT ON FUNCTION recipients_known(text[]) IS
    'Those of the addresses that are in the table recipients. smtpd may ask, and cannot list them.';
REVOKE EXECUTE ON FUNCTION recipients_known(text[]) FROM PUBLIC;

ALTER FUNCTION grants() RENAME TO grants_0019;
COMMENT ON FUNCTION grants_0019() IS 'Part of grants().';
CREATE FUNCTION grants() RETURNS text[] LANGUAGE plpgsql
    SET search_path = pgmta, pg_catalog, pg_temp AS $$
BEGIN
    PERFORM grant_to('EXECUTE ON FUNCTION recipients_known(text[])', 'pgmta_smtpd');
    PERFORM grant_to('SELECT ON recipients', 'pgmta_operator', 'pgmta_reader');
    PERFORM grant_to('INSERT (address), DELETE ON recipients', 'pgmta_operator');
    RETURN grants_0019();
END $$;
REVOKE EXECUTE ON FUNCTION grants(), grants_0019() FROM PUBLIC;
COMMENT ON FUNCTION grants() IS
    'Gives the roles pgmta_smtpd, pgmta_queued, pgmta_operator, pgmta_reader and pgmta_submit their '
    'rights; to be called by the owner of the tables. Returns the roles that do not exist.';
DO $$ BEGIN PERFORM grants(); END $$;

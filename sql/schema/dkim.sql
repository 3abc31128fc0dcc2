-- Keys that sign mail.

CREATE TABLE dkim_keys (
    domain text COLLATE "C" NOT NULL CONSTRAINT dkim_keys_domain CHECK (domain = lower(domain COLLATE "C")
        AND octet_length(domain) <= 253 AND domain ~ '^[a-z0-9_-]+(\.[a-z0-9_-]+)*$'),
    selector text COLLATE "C" NOT NULL CONSTRAINT dkim_keys_selector CHECK (
        octet_length(selector) <= 200 AND selector ~ '^[a-z0-9_-]+(\.[a-z0-9_-]+)*$'),
    type text NOT NULL CONSTRAINT dkim_keys_type CHECK (type IN ('rsa', 'ed25519')),
    private_key text NOT NULL CONSTRAINT dkim_keys_private_key CHECK (
        octet_length(private_key) <= 65536 AND private_key LIKE '-----BEGIN %PRIVATE KEY-----%'),
    public_key text NOT NULL CONSTRAINT dkim_keys_public_key CHECK (public_key ~ '^[A-Za-z0-9+/]+=*$'),
    active_from timestamptz NOT NULL DEFAULT now(),
    created_at timestamptz NOT NULL DEFAULT now(),
    unpublished boolean NOT NULL DEFAULT false,
    PRIMARY KEY (domain, selector)
);
COMMENT ON TABLE dkim_keys IS
    'Keys that sign mail (DKIM, RFC 6376), if signing.table of queued.yaml is true. Only pgmta_queued reads '
    'private_key.';
COMMENT ON COLUMN dkim_keys.domain IS 'Domain of the signature (d=), in lower case and A-labels.';
COMMENT ON COLUMN dkim_keys.selector IS 'DKIM selector (s=).';
COMMENT ON COLUMN dkim_keys.type IS 'rsa or ed25519.';
COMMENT ON COLUMN dkim_keys.private_key IS 'Private key in PEM, without password.';
COMMENT ON COLUMN dkim_keys.public_key IS 'Public part as the tag p= of its record in DNS has it.';
COMMENT ON COLUMN dkim_keys.active_from IS
    'Time from which it signs. Of the keys of a domain and type, the last one that is active does.';
COMMENT ON COLUMN dkim_keys.created_at IS 'When the row was added.';
COMMENT ON COLUMN dkim_keys.unpublished IS 'It signs nothing before `queuectl dkim test` has seen its record in DNS.';
COMMENT ON CONSTRAINT dkim_keys_domain ON dkim_keys IS 'A domain name in lower case.';
COMMENT ON CONSTRAINT dkim_keys_private_key ON dkim_keys IS 'PEM.';
COMMENT ON CONSTRAINT dkim_keys_public_key ON dkim_keys IS 'Base64.';
COMMENT ON CONSTRAINT dkim_keys_selector ON dkim_keys IS 'Labels in lower case.';
COMMENT ON CONSTRAINT dkim_keys_type ON dkim_keys IS 'RFC 8301 and RFC 8463.';

CREATE TABLE dkim_keys_version (
    version bigint NOT NULL,
    one boolean DEFAULT true PRIMARY KEY CHECK (one)
);
COMMENT ON TABLE dkim_keys_version IS 'Changes with every change of dkim_keys. queued looks every second.';
COMMENT ON COLUMN dkim_keys_version.version IS 'Another number after each change.';
COMMENT ON COLUMN dkim_keys_version.one IS 'There is one row.';
COMMENT ON CONSTRAINT dkim_keys_version_one_check ON dkim_keys_version IS 'One row.';
INSERT INTO dkim_keys_version VALUES (nextval('versions'));

CREATE FUNCTION dkim_keys_changed() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    UPDATE pgmta.dkim_keys_version SET version = nextval('pgmta.versions');
    RETURN NULL;
END $$;
COMMENT ON FUNCTION dkim_keys_changed IS 'Counts changes of dkim_keys.';

CREATE TRIGGER dkim_keys_changed AFTER INSERT OR UPDATE OR DELETE OR TRUNCATE ON dkim_keys
    FOR EACH STATEMENT EXECUTE FUNCTION dkim_keys_changed();
COMMENT ON TRIGGER dkim_keys_changed ON dkim_keys IS 'Every queued sees it within a second.';

INSERT INTO rights (object, role, privileges) VALUES
    ('dkim_keys', 'pgmta_queued', 'SELECT'),
    -- all columns but the private key
    ('dkim_keys', 'pgmta_operator',
        'SELECT (domain, selector, type, public_key, active_from, created_at, unpublished), INSERT (domain, '
        'selector, type, private_key, public_key, active_from, unpublished), UPDATE (active_from, unpublished), '
        'DELETE'),
    ('dkim_keys', 'pgmta_reader',
        'SELECT (domain, selector, type, public_key, active_from, created_at, unpublished)'),
    ('dkim_keys_version', 'pgmta_queued', 'SELECT'),
    ('dkim_keys_version', 'pgmta_operator', 'SELECT'),
    ('dkim_keys_version', 'pgmta_reader', 'SELECT');

-- Suppressions: addresses that get no mail of campaigns, by tenant and scope.

CREATE TABLE suppressions (
    address text COLLATE "C" NOT NULL CONSTRAINT suppressions_address CHECK (
        address = lower(address COLLATE "C") AND octet_length(address) <= 254
        AND address ~ '^([^[:cntrl:]]+@[^@[:space:][:cntrl:]]+|hmac:[0-9a-f]{64})$'),
    tenant text COLLATE "C" NOT NULL DEFAULT '' CONSTRAINT suppressions_tenant CHECK (
        octet_length(tenant) <= 64 AND tenant ~ '^([*]|[A-Za-z0-9][A-Za-z0-9._@+-]*)?$'),
    scope text COLLATE "C" NOT NULL DEFAULT '' CONSTRAINT suppressions_scope CHECK (
        scope ~ '^([A-Za-z0-9][A-Za-z0-9._-]{0,63})?$'),
    reason text COLLATE "C" NOT NULL CONSTRAINT suppressions_reason CHECK (
        reason IN ('unsubscribed', 'complained', 'bounced', 'forgotten', 'operator')),
    source text NOT NULL DEFAULT '' CONSTRAINT suppressions_source CHECK (length(source) <= 200),
    at timestamptz NOT NULL DEFAULT now(),
    until timestamptz,
    released_at timestamptz,
    PRIMARY KEY (address, tenant, scope)
);
COMMENT ON TABLE suppressions IS
    'Addresses that get no mail of campaigns. A row stays after its release, so that an older fact cannot bring it back.';
COMMENT ON COLUMN suppressions.address IS
    'suppression_address() of the mailbox; or hmac: and its keyed hash, if the person had to be forgotten.';
COMMENT ON COLUMN suppressions.tenant IS 'Whose mail it is about; empty: mail without a tenant; *: all tenants.';
COMMENT ON COLUMN suppressions.scope IS 'The kind of mail, as campaigns.scope; empty: all kinds.';
COMMENT ON COLUMN suppressions.reason IS 'unsubscribed, complained, bounced, forgotten or operator.';
COMMENT ON COLUMN suppressions.source IS 'Where the fact came from, such as campaign 12, verp, or words of an operator.';
COMMENT ON COLUMN suppressions.at IS 'When it happened: of two facts the newer one wins.';
COMMENT ON COLUMN suppressions.until IS 'When it ends by itself; null: never.';
COMMENT ON COLUMN suppressions.released_at IS 'When an operator released it; null: it holds.';
COMMENT ON CONSTRAINT suppressions_address ON suppressions IS 'A mailbox without upper case, or a keyed hash.';
COMMENT ON CONSTRAINT suppressions_reason ON suppressions IS 'The five reasons.';
COMMENT ON CONSTRAINT suppressions_scope ON suppressions IS 'Up to 64 letters, digits and . _ -, or empty.';
COMMENT ON CONSTRAINT suppressions_source ON suppressions IS 'Up to 200 characters.';
COMMENT ON CONSTRAINT suppressions_tenant ON suppressions IS 'As submit() takes it, or *.';

CREATE TABLE suppression_secret (
    inner_pad bytea NOT NULL,
    outer_pad bytea NOT NULL,
    one boolean DEFAULT true PRIMARY KEY CHECK (one)
);
COMMENT ON TABLE suppression_secret IS
    'The key of the hashes in suppressions. No role may read it. Who loses it forgets who had to be forgotten.';
COMMENT ON COLUMN suppression_secret.inner_pad IS 'The key XOR 0x36 in each of 64 octets (RFC 2104).';
COMMENT ON COLUMN suppression_secret.outer_pad IS 'The key XOR 0x5c in each of 64 octets.';
COMMENT ON COLUMN suppression_secret.one IS 'There is one row.';
COMMENT ON CONSTRAINT suppression_secret_one_check ON suppression_secret IS 'One row.';
-- the random octets are PostgreSQL's strong ones
WITH secret AS MATERIALIZED (
    SELECT sha256(uuid_send(gen_random_uuid()) || uuid_send(gen_random_uuid()) || uuid_send(gen_random_uuid()))
        || decode(repeat('00', 32), 'hex') AS octets
)
INSERT INTO suppression_secret
SELECT string_agg(decode(lpad(to_hex(get_byte(octets, n) # 54), 2, '0'), 'hex'), ''::bytea ORDER BY n),
    string_agg(decode(lpad(to_hex(get_byte(octets, n) # 92), 2, '0'), 'hex'), ''::bytea ORDER BY n)
FROM secret, generate_series(0, 63) AS n;

CREATE FUNCTION suppression_address(address text) RETURNS text IMMUTABLE PARALLEL SAFE
RETURN lower(CASE WHEN strpos(address, '"') <> 1 THEN address
    -- a dot-string in quotes, with or without backslashes
    WHEN regexp_replace(substring(address FROM '^"(.*)"@[^@]*$'), '\\(.)', '\1', 'g') COLLATE "C"
        ~ '^[^][()<>:;@\\,." [:cntrl:]]+(\.[^][()<>:;@\\,." [:cntrl:]]+)*$'
    THEN regexp_replace(substring(address FROM '^"(.*)"@[^@]*$'), '\\(.)', '\1', 'g') || substring(address FROM '@[^@]*$')
    ELSE address END COLLATE "C");
COMMENT ON FUNCTION suppression_address IS
    'The text by which addresses are compared: in lower case of ASCII, without needless quotes. A domain beyond ASCII '
    'has to be written in A-labels.';

CREATE FUNCTION suppression_hash(address text) RETURNS text LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path = pgmta, pg_catalog, pg_temp AS $$
    SELECT 'hmac:' || encode(sha256(s.outer_pad || sha256(s.inner_pad
        || convert_to(suppression_address(suppression_hash.address), 'UTF8'))), 'hex')
    FROM suppression_secret AS s
$$;
COMMENT ON FUNCTION suppression_hash IS
    'hmac: and HMAC-SHA256 (RFC 2104) of an address, as suppressions keeps those that had to be forgotten.';

-- One look-up of the index for each address, whatever the statistics say.
CREATE FUNCTION suppressed(tenant text, scope text, addresses text[]) RETURNS boolean[] LANGUAGE plpgsql STABLE
    SECURITY DEFINER SET search_path = pgmta, pg_catalog, pg_temp SET jit = off SET plan_cache_mode = force_generic_plan
    SET enable_seqscan = off SET enable_bitmapscan = off AS $$
DECLARE
    tenants CONSTANT text[] := ARRAY[coalesce(tenant, ''), '*'];
    scopes CONSTANT text[] := ARRAY[coalesce(scope, ''), ''];
    inner_pad bytea;
    outer_pad bytea;
BEGIN
    PERFORM FROM suppressions AS s WHERE s.address >= 'hmac:' AND s.address < 'hmac;' LIMIT 1;
    IF FOUND THEN
        SELECT s.inner_pad, s.outer_pad INTO inner_pad, outer_pad FROM suppression_secret AS s;
    END IF;
    RETURN ARRAY(
        SELECT coalesce((
            SELECT true FROM suppressions AS s
            WHERE s.address = k.key AND s.tenant = ANY (tenants) AND s.scope = ANY (scopes)
                AND s.released_at IS NULL AND (s.until IS NULL OR s.until > now())
            LIMIT 1
        ), CASE WHEN inner_pad IS NOT NULL THEN (
            SELECT true FROM suppressions AS s
            WHERE s.address = 'hmac:' || encode(sha256(outer_pad || sha256(inner_pad || convert_to(k.key, 'UTF8'))), 'hex')
                AND s.tenant = ANY (tenants) AND s.scope = ANY (scopes)
                AND s.released_at IS NULL AND (s.until IS NULL OR s.until > now())
            LIMIT 1
        ) END, false)
        FROM unnest(addresses) WITH ORDINALITY AS a (address, place),
            LATERAL (SELECT suppression_address(a.address) AS key OFFSET 0) AS k
        ORDER BY a.place);
END $$;
COMMENT ON FUNCTION suppressed IS
    'Whether each of these addresses gets no mail of this tenant and scope, in their order.';

INSERT INTO rights (object, role, privileges) VALUES
    ('suppressions', 'pgmta_operator', 'SELECT'),
    ('suppressions', 'pgmta_reader', 'SELECT'),
    ('FUNCTION suppressed', 'pgmta_queued', 'EXECUTE'),
    ('FUNCTION suppressed', 'pgmta_operator', 'EXECUTE');

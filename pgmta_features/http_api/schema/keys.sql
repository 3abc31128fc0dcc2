-- Keys of the HTTP API. The identity of one in the database is key:NAME, which acting() returns.

CREATE TABLE api_keys (
    name text COLLATE "C" PRIMARY KEY CONSTRAINT api_keys_name CHECK (
        name ~ '^[a-z0-9][a-z0-9._-]*$' COLLATE "C" AND octet_length(name) <= 59),
    scopes text[] NOT NULL CONSTRAINT api_keys_scopes CHECK (cardinality(scopes) > 0),
    tenant text COLLATE "C" NOT NULL DEFAULT '' CONSTRAINT api_keys_tenant CHECK (
        octet_length(tenant) <= 64 AND tenant ~ '^([A-Za-z0-9][A-Za-z0-9._@+-]*|[*])?$' COLLATE "C"),
    senders text[] NOT NULL DEFAULT '{}',
    credentials text[] NOT NULL DEFAULT '{}',
    priority_first smallint NOT NULL DEFAULT 5,
    priority_last smallint NOT NULL DEFAULT 5,
    networks cidr[],
    sees text NOT NULL DEFAULT 'own' CONSTRAINT api_keys_sees CHECK (
        sees IN ('own', 'tenant', 'all') AND NOT (sees = 'tenant' AND tenant = '*')),
    expires_at timestamptz,
    revoked_at timestamptz,
    created_at timestamptz NOT NULL DEFAULT now(),
    created_by text NOT NULL DEFAULT acting(),
    CONSTRAINT api_keys_priorities CHECK (
        0 <= priority_first AND priority_first <= priority_last AND priority_last <= 9)
);
COMMENT ON TABLE api_keys IS 'Keys of the HTTP API. A revoked one stays, so that nobody else gets its name and sees its mail.';
COMMENT ON COLUMN api_keys.name IS 'Its name. messages.submitted_by and the like have key:NAME.';
COMMENT ON COLUMN api_keys.scopes IS 'What it may do: send, messages and others (docs/programs/http.md).';
COMMENT ON COLUMN api_keys.tenant IS
    'Whose mail it handles: that without a tenant (empty), that of one tenant, or * for any, which each request names.';
COMMENT ON COLUMN api_keys.senders IS
    'Addresses and domains (@example.org) that sender and From of its mail have; empty: it sends nothing.';
COMMENT ON COLUMN api_keys.credentials IS
    'Values of metadata.credential, and credentials of campaigns, that it may name; * is any, and empty none.';
COMMENT ON COLUMN api_keys.priority_first IS 'Least number for queue.priority that it may ask for.';
COMMENT ON COLUMN api_keys.priority_last IS 'Greatest number for it.';
COMMENT ON COLUMN api_keys.networks IS 'Networks that it may be used from; null: any.';
COMMENT ON COLUMN api_keys.sees IS 'Whose mail it sees and changes: own (what it submitted), tenant (all of its tenant) or all.';
COMMENT ON COLUMN api_keys.expires_at IS 'When it ends; null: never.';
COMMENT ON COLUMN api_keys.revoked_at IS 'When it was revoked; null: it was not.';
COMMENT ON COLUMN api_keys.created_at IS 'When it was made.';
COMMENT ON COLUMN api_keys.created_by IS 'Who made it.';
COMMENT ON CONSTRAINT api_keys_name ON api_keys IS 'It fits into an identifier behind key:.';
COMMENT ON CONSTRAINT api_keys_scopes ON api_keys IS 'A key without a scope is of no use.';
COMMENT ON CONSTRAINT api_keys_tenant ON api_keys IS 'As messages.tenant, or *.';
COMMENT ON CONSTRAINT api_keys_priorities ON api_keys IS '0 to 9.';
COMMENT ON CONSTRAINT api_keys_sees ON api_keys IS 'All mail of any tenant is called all.';

CREATE TABLE api_secrets (
    id text COLLATE "C" PRIMARY KEY CONSTRAINT api_secrets_id CHECK (id ~ '^[a-z0-9]{12}$' COLLATE "C"),
    key text COLLATE "C" NOT NULL REFERENCES api_keys,
    digest bytea NOT NULL CONSTRAINT api_secrets_digest CHECK (octet_length(digest) = 32),
    created_at timestamptz NOT NULL DEFAULT now(),
    ends_at timestamptz,
    used_at timestamptz,
    used_from inet
);
CREATE INDEX api_secrets_key ON api_secrets (key);
COMMENT ON TABLE api_secrets IS
    'Each key of the HTTP API has one valid secret, two during a rotation. Ended ones are kept a month to show when and from where '
    'they were used.';
COMMENT ON COLUMN api_secrets.id IS 'The part of the token pgmta_ID_SECRET that may be known.';
COMMENT ON COLUMN api_secrets.key IS 'api_keys.name.';
COMMENT ON COLUMN api_secrets.digest IS 'SHA-256 of the secret, which has 256 random bits.';
COMMENT ON COLUMN api_secrets.created_at IS 'When it was made.';
COMMENT ON COLUMN api_secrets.ends_at IS 'When it ends or has ended, because of a rotation or revocation; null: with its key.';
COMMENT ON COLUMN api_secrets.used_at IS 'When it was last used, to the minute; null: it was not.';
COMMENT ON COLUMN api_secrets.used_from IS 'Address of the client that used it then.';
COMMENT ON CONSTRAINT api_secrets_id ON api_secrets IS 'Letters and digits, so that the token has one place where it is split.';
COMMENT ON CONSTRAINT api_secrets_digest ON api_secrets IS 'A SHA-256.';
COMMENT ON INDEX api_secrets_key IS 'The secrets of a key.';

CREATE FUNCTION api_keys_look(ids text[]) RETURNS TABLE (
    id text, digest bytea, name text, scopes text[], tenant text, senders text[], networks text[], sees text,
    credentials text[], priority_first integer, priority_last integer, expires_at timestamptz, seconds double precision,
    holds boolean
) LANGUAGE sql STABLE SECURITY DEFINER ROWS 10 SET search_path = pgmta, pg_catalog, pg_temp AS $$
    SELECT s.id, s.digest, k.name, k.scopes, k.tenant, k.senders, k.networks::text[], k.sees,
        k.credentials, k.priority_first::integer, k.priority_last::integer, least(k.expires_at, s.ends_at),
        extract(epoch FROM least(k.expires_at, s.ends_at) - now())::double precision,
        k.revoked_at IS NULL AND coalesce(s.ends_at > now(), true)
    FROM api_secrets AS s JOIN api_keys AS k ON k.name = s.key
    WHERE s.id = ANY (ids)
$$;
COMMENT ON FUNCTION api_keys_look IS
    'The keys of some secrets, with the seconds until each ends (null: never). So the API can list no keys. One that was revoked, or '
    'ended by a rotation, does not hold: the log names its key.';

CREATE FUNCTION api_key_holds(who text) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    RETURN EXISTS (
        SELECT FROM api_keys AS k
        WHERE k.name = substr(who, 5) AND starts_with(who, 'key:') AND k.revoked_at IS NULL
            AND coalesce(k.expires_at > clock_timestamp(), true));
END $$;
COMMENT ON FUNCTION api_key_holds IS 'Whether an identity is that of a key that was neither revoked nor has expired.';

CREATE FUNCTION api_key_used(secret_id text, client inet) RETURNS void LANGUAGE sql SECURITY DEFINER
    SET search_path = pgmta, pg_catalog, pg_temp AS $$
    UPDATE api_secrets SET used_at = now(), used_from = client WHERE id = (
        SELECT s.id FROM api_secrets AS s
        WHERE s.id = secret_id AND (s.used_at IS NULL OR s.used_at < now() - interval '55 seconds')
        FOR NO KEY UPDATE SKIP LOCKED)
$$;
COMMENT ON FUNCTION api_key_used IS 'Notes that a secret was used, at most once a minute over all processes.';

CREATE FUNCTION api_subscriptions_end() RETURNS bigint LANGUAGE sql SECURITY DEFINER
    SET search_path = pgmta, pg_catalog, pg_temp AS $$
    SELECT count(*) FILTER (WHERE events_unsubscribe(s.name)) FROM event_subscriptions AS s
    WHERE s.kind = 'reader' AND s.name LIKE 'key:%' AND NOT EXISTS (
        SELECT FROM api_keys AS k
        WHERE 'key:' || k.name = s.name AND k.revoked_at IS NULL AND coalesce(k.expires_at > now(), true)
            AND 'events' = ANY (k.scopes))
$$;
COMMENT ON FUNCTION api_subscriptions_end IS
    'Ends the subscriptions to events of keys that were revoked, have expired or lost their scope, and returns how many. Repeat '
    'it after lock_not_available.';

INSERT INTO forget_columns (relation, names, way, condition) VALUES ('api_keys', '{senders,credentials}', 'named', 'true');

INSERT INTO rights (object, role, privileges) VALUES
    ('api_keys', 'pgmta_operator', 'SELECT, INSERT, '
        'UPDATE (scopes, tenant, senders, credentials, priority_first, priority_last, networks, sees, expires_at, revoked_at)'),
    ('api_keys', 'pgmta_reader', 'SELECT'),
    ('api_secrets', 'pgmta_operator',
        'SELECT (id, key, created_at, ends_at, used_at, used_from), INSERT (id, key, digest), UPDATE (ends_at), DELETE'),
    ('api_secrets', 'pgmta_reader', 'SELECT (id, key, created_at, ends_at, used_at, used_from)'),
    ('FUNCTION api_keys_look', 'pgmta_api', 'EXECUTE'),
    ('FUNCTION api_subscriptions_end', 'pgmta_queued', 'EXECUTE'),
    ('FUNCTION api_key_used', 'pgmta_api', 'EXECUTE');

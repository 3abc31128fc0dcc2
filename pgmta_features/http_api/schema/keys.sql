-- Keys of the HTTP API. The identity of one in the database is key:NAME, which acting() returns.

CREATE TABLE api_keys (
    name text COLLATE "C" PRIMARY KEY CONSTRAINT api_keys_name CHECK (
        name ~ '^[a-z0-9][a-z0-9._-]*$' COLLATE "C" AND octet_length(name) <= 59),
    scopes text[] NOT NULL CONSTRAINT api_keys_scopes CHECK (cardinality(scopes) > 0),
    tenant text COLLATE "C" NOT NULL DEFAULT '' CONSTRAINT api_keys_tenant CHECK (
        octet_length(tenant) <= 64 AND tenant ~ '^([A-Za-z0-9][A-Za-z0-9._@+-]*|[*])?$' COLLATE "C"),
    senders text[] NOT NULL DEFAULT '{}',
    networks cidr[],
    sees text NOT NULL DEFAULT 'own' CONSTRAINT api_keys_sees CHECK (
        sees IN ('own', 'tenant', 'all') AND NOT (sees = 'tenant' AND tenant = '*')),
    expires_at timestamptz,
    revoked_at timestamptz,
    created_at timestamptz NOT NULL DEFAULT now(),
    created_by text NOT NULL DEFAULT acting()
);
COMMENT ON TABLE api_keys IS 'Keys of the HTTP API. A revoked one stays, so that nobody else gets its name and sees its mail.';
COMMENT ON COLUMN api_keys.name IS 'Its name. messages.submitted_by and the like have key:NAME.';
COMMENT ON COLUMN api_keys.scopes IS 'What it may do: send, messages and others (docs/programs/http.md).';
COMMENT ON COLUMN api_keys.tenant IS
    'Whose mail it handles: that without a tenant (empty), that of one tenant, or * for any, which each request names.';
COMMENT ON COLUMN api_keys.senders IS
    'Addresses and domains (@example.org) that sender and From of its mail have; empty: it sends nothing.';
COMMENT ON COLUMN api_keys.networks IS 'Networks that it may be used from; null: any.';
COMMENT ON COLUMN api_keys.sees IS 'Whose mail it sees and changes: own (what it submitted), tenant (all of its tenant) or all.';
COMMENT ON COLUMN api_keys.expires_at IS 'When it ends; null: never.';
COMMENT ON COLUMN api_keys.revoked_at IS 'When it was revoked; null: it was not.';
COMMENT ON COLUMN api_keys.created_at IS 'When it was made.';
COMMENT ON COLUMN api_keys.created_by IS 'Who made it.';
COMMENT ON CONSTRAINT api_keys_name ON api_keys IS 'It fits into an identifier behind key:.';
COMMENT ON CONSTRAINT api_keys_scopes ON api_keys IS 'A key without a scope is of no use.';
COMMENT ON CONSTRAINT api_keys_tenant ON api_keys IS 'As messages.tenant, or *.';
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
COMMENT ON TABLE api_secrets IS 'Secrets of keys of the HTTP API: one of each, two during a rotation, none of a revoked one.';
COMMENT ON COLUMN api_secrets.id IS 'The part of the token pgmta_ID_SECRET that may be known.';
COMMENT ON COLUMN api_secrets.key IS 'api_keys.name.';
COMMENT ON COLUMN api_secrets.digest IS 'SHA-256 of the secret, which has 256 random bits.';
COMMENT ON COLUMN api_secrets.created_at IS 'When it was made.';
COMMENT ON COLUMN api_secrets.ends_at IS 'When it ends, because of a rotation; null: with its key.';
COMMENT ON COLUMN api_secrets.used_at IS 'When it was last used, to the minute; null: it was not.';
COMMENT ON COLUMN api_secrets.used_from IS 'Address of the client that used it then.';
COMMENT ON CONSTRAINT api_secrets_id ON api_secrets IS 'Letters and digits, so that the token has one place where it is split.';
COMMENT ON CONSTRAINT api_secrets_digest ON api_secrets IS 'A SHA-256.';
COMMENT ON INDEX api_secrets_key IS 'The secrets of a key.';

CREATE FUNCTION api_key_note(what text, name text, details jsonb DEFAULT NULL) RETURNS void LANGUAGE sql
    SET search_path = pgmta, pg_catalog, pg_temp AS $$
    INSERT INTO audit (who, action, condition, details, rows, finished_at)
    VALUES (acting(), what, format('key %s', name), details, 1, clock_timestamp())
$$;
COMMENT ON FUNCTION api_key_note IS 'Notes a change of a key in audit.';

CREATE FUNCTION api_key_new(
    name text, scopes text[], tenant text, senders text[], networks cidr[], sees text, expires_at timestamptz,
    secret_id text, secret_digest bytea
) RETURNS text LANGUAGE plpgsql SECURITY DEFINER SET search_path = pgmta, pg_catalog, pg_temp AS $$
DECLARE
    known api_keys;
BEGIN
    INSERT INTO api_keys (name, scopes, tenant, senders, networks, sees, expires_at)
    VALUES (api_key_new.name, api_key_new.scopes, api_key_new.tenant, api_key_new.senders, api_key_new.networks,
        api_key_new.sees, api_key_new.expires_at)
    ON CONFLICT ON CONSTRAINT api_keys_pkey DO NOTHING;
    IF NOT FOUND THEN
        SELECT k.* INTO known FROM api_keys AS k WHERE k.name = api_key_new.name;
        RETURN CASE WHEN known.revoked_at IS NULL THEN 'taken' ELSE 'revoked' END;
    END IF;
    INSERT INTO api_secrets (id, key, digest) VALUES (secret_id, api_key_new.name, secret_digest);
    PERFORM api_key_note('apikey new', api_key_new.name, jsonb_strip_nulls(jsonb_build_object('scopes', scopes, 'tenant', tenant,
        'senders', senders, 'networks', networks, 'sees', sees, 'expires_at', expires_at)));
    RETURN 'made';
END $$;
COMMENT ON FUNCTION api_key_new IS
    'Makes a key with a secret, of which the database gets the digest alone. Returns made; taken, or revoked: another key has '
    'or had the name.';

CREATE FUNCTION api_key_set(
    name text, scopes text[], tenant text, senders text[], networks cidr[], sees text, expires_at timestamptz
) RETURNS boolean LANGUAGE plpgsql SECURITY DEFINER SET search_path = pgmta, pg_catalog, pg_temp AS $$
BEGIN
    UPDATE api_keys AS k SET scopes = api_key_set.scopes, tenant = api_key_set.tenant, senders = api_key_set.senders,
        networks = api_key_set.networks, sees = api_key_set.sees, expires_at = api_key_set.expires_at
    WHERE k.name = api_key_set.name AND k.revoked_at IS NULL;
    IF NOT FOUND THEN RETURN false; END IF;
    PERFORM api_key_note('apikey set', api_key_set.name, jsonb_strip_nulls(jsonb_build_object('scopes', scopes, 'tenant', tenant,
        'senders', senders, 'networks', networks, 'sees', sees, 'expires_at', expires_at)));
    RETURN true;
END $$;
COMMENT ON FUNCTION api_key_set IS 'Gives a key other settings, all of them; false: there is none that is not revoked.';

CREATE FUNCTION api_key_rotate(name text, overlap interval, secret_id text, secret_digest bytea) RETURNS timestamptz
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pgmta, pg_catalog, pg_temp AS $$
DECLARE
    ends timestamptz := now() + overlap;
BEGIN
    PERFORM FROM api_keys AS k WHERE k.name = api_key_rotate.name AND k.revoked_at IS NULL FOR UPDATE;
    IF NOT FOUND THEN RETURN NULL; END IF;
    -- at most two: the one before goes on for a while, and others end now
    DELETE FROM api_secrets AS s WHERE s.key = api_key_rotate.name AND (overlap <= interval '0' OR s.id <> (
        SELECT n.id FROM api_secrets AS n WHERE n.key = api_key_rotate.name ORDER BY n.created_at DESC, n.ends_at DESC NULLS FIRST LIMIT 1));
    UPDATE api_secrets AS s SET ends_at = least(s.ends_at, ends) WHERE s.key = api_key_rotate.name;
    INSERT INTO api_secrets (id, key, digest) VALUES (secret_id, api_key_rotate.name, secret_digest);
    PERFORM api_key_note('apikey rotate', api_key_rotate.name, jsonb_build_object('ends_at', ends));
    RETURN ends;
END $$;
COMMENT ON FUNCTION api_key_rotate IS
    'Gives a key a new secret. The one before works for the time of the overlap. Returns until when, and null if there is no '
    'such key that is not revoked.';

CREATE FUNCTION api_key_revoke(name text) RETURNS boolean LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pgmta, pg_catalog, pg_temp AS $$
BEGIN
    UPDATE api_keys AS k SET revoked_at = now() WHERE k.name = api_key_revoke.name AND k.revoked_at IS NULL;
    IF NOT FOUND THEN RETURN false; END IF;
    DELETE FROM api_secrets AS s WHERE s.key = api_key_revoke.name;
    PERFORM api_key_note('apikey revoke', api_key_revoke.name);
    RETURN true;
END $$;
COMMENT ON FUNCTION api_key_revoke IS
    'Ends a key for ever: each process refuses it within a second. Returns false if there is none, or it was revoked before.';

CREATE FUNCTION api_keys_look(ids text[]) RETURNS TABLE (
    id text, digest bytea, name text, scopes text[], tenant text, senders text[], networks text[], sees text,
    expires_at timestamptz, seconds double precision
) LANGUAGE sql STABLE SECURITY DEFINER ROWS 10 SET search_path = pgmta, pg_catalog, pg_temp AS $$
    SELECT s.id, s.digest, k.name, k.scopes, k.tenant, k.senders, k.networks::text[], k.sees, least(k.expires_at, s.ends_at),
        extract(epoch FROM least(k.expires_at, s.ends_at) - clock_timestamp())::double precision
    FROM api_secrets AS s JOIN api_keys AS k ON k.name = s.key
    WHERE s.id = ANY (ids) AND k.revoked_at IS NULL
$$;
COMMENT ON FUNCTION api_keys_look IS
    'The keys of some secrets, with the seconds until each ends (null: never). So the API can list no keys.';

CREATE FUNCTION api_key_used(secret_id text, client inet) RETURNS void LANGUAGE sql SECURITY DEFINER
    SET search_path = pgmta, pg_catalog, pg_temp AS $$
    UPDATE api_secrets SET used_at = now(), used_from = client WHERE id = (
        SELECT s.id FROM api_secrets AS s
        WHERE s.id = secret_id AND (s.used_at IS NULL OR s.used_at < now() - interval '55 seconds')
        FOR NO KEY UPDATE SKIP LOCKED)
$$;
COMMENT ON FUNCTION api_key_used IS 'Notes that a secret was used, at most once a minute over all processes.';

INSERT INTO rights (object, role, privileges) VALUES
    ('api_keys', 'pgmta_operator', 'SELECT'),
    ('api_keys', 'pgmta_reader', 'SELECT'),
    ('api_secrets', 'pgmta_operator', 'SELECT (id, key, created_at, ends_at, used_at, used_from)'),
    ('api_secrets', 'pgmta_reader', 'SELECT (id, key, created_at, ends_at, used_at, used_from)'),
    ('FUNCTION api_key_new', 'pgmta_operator', 'EXECUTE'),
    ('FUNCTION api_key_set', 'pgmta_operator', 'EXECUTE'),
    ('FUNCTION api_key_rotate', 'pgmta_operator', 'EXECUTE'),
    ('FUNCTION api_key_revoke', 'pgmta_operator', 'EXECUTE'),
    ('FUNCTION api_keys_look', 'pgmta_api', 'EXECUTE'),
    ('FUNCTION api_key_used', 'pgmta_api', 'EXECUTE');

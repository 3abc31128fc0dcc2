-- Users of smtpd, their logins, and recipients of relay domains.

CREATE TABLE users (
    name text COLLATE "C" PRIMARY KEY CONSTRAINT users_name CHECK (
        name <> '' AND length(name) <= 255 AND name !~ '[A-Z[:cntrl:]]|^key:'),
    password text NOT NULL CONSTRAINT users_password CHECK (password LIKE '$argon2id$%'),
    scram text CONSTRAINT users_scram CHECK (
        scram ~ '^SCRAM-SHA-256\$\d+:[A-Za-z0-9+/=]+\$[A-Za-z0-9+/=]+:[A-Za-z0-9+/=]+$'),
    disabled boolean NOT NULL DEFAULT false,
    senders text[],
    networks cidr[],
    tenant text NOT NULL DEFAULT '' CONSTRAINT users_tenant CHECK (
        octet_length(tenant) <= 64 AND tenant ~ '^([A-Za-z0-9][A-Za-z0-9._@+-]*)?$' COLLATE "C"),
    metadata jsonb NOT NULL DEFAULT '{}' CONSTRAINT users_metadata CHECK (
        jsonb_typeof(metadata) = 'object' AND NOT metadata ?| '{_scope,_exempt}'),
    priority_first smallint NOT NULL DEFAULT 5,
    priority_last smallint NOT NULL DEFAULT 5,
    version bigint NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    changed_at timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT users_priorities CHECK (
        0 <= priority_first AND priority_first <= priority_last AND priority_last <= 9)
);
COMMENT ON TABLE users IS 'Users who may log in to smtpd (RFC 4954).';
COMMENT ON COLUMN users.name IS 'Login name, in lower case.';
COMMENT ON COLUMN users.password IS 'Hash of the password by argon2id, in the PHC string format.';
COMMENT ON COLUMN users.scram IS
    'Keys for SCRAM-SHA-256 (RFC 7677), as PostgreSQL writes them; null: the user has no SCRAM.';
COMMENT ON COLUMN users.disabled IS 'The user may not log in. smtpd ends open sessions at their next MAIL.';
COMMENT ON COLUMN users.senders IS
    'Addresses and domains (@example.org) that the user may send from; null or empty: the name alone, if it is an '
    'address; {any}: any address, also for signatures (docs/mail/dkim.md).';
COMMENT ON COLUMN users.networks IS 'Networks that the user may log in from; null: any.';
COMMENT ON COLUMN users.tenant IS 'Goes to messages.tenant.';
COMMENT ON COLUMN users.metadata IS 'Texts by key that go to queue.metadata.';
COMMENT ON COLUMN users.priority_first IS 'Least number for queue.priority that the user may ask for.';
COMMENT ON COLUMN users.priority_last IS 'Greatest number for it.';
COMMENT ON COLUMN users.version IS 'Another number after each change of the row.';
COMMENT ON COLUMN users.created_at IS 'When the user was added.';
COMMENT ON COLUMN users.changed_at IS 'When the row was changed last.';
COMMENT ON CONSTRAINT users_metadata ON users IS 'Texts by key, of which none decides which suppressions count.';
COMMENT ON CONSTRAINT users_name ON users IS
    'At most 255 characters, without upper case and control characters. Those of keys of the API begin with key:';
COMMENT ON CONSTRAINT users_password ON users IS 'No password in clear text.';
COMMENT ON CONSTRAINT users_priorities ON users IS '0 to 9.';
COMMENT ON CONSTRAINT users_scram ON users IS 'Iterations, salt, stored key and server key.';
COMMENT ON CONSTRAINT users_tenant ON users IS 'As submit() takes it.';

CREATE TABLE users_version (
    version bigint NOT NULL,
    secret bytea NOT NULL,
    one boolean DEFAULT true PRIMARY KEY CHECK (one)
);
COMMENT ON TABLE users_version IS
    'Changes with every change of users. smtpd looks twice per second, if users log in or send.';
COMMENT ON COLUMN users_version.version IS 'Another number after each change.';
COMMENT ON COLUMN users_version.secret IS
    'Key for what all processes of smtpd derive from a login name alike: salts of unknown users, units of failures.';
COMMENT ON COLUMN users_version.one IS 'There is one row.';
COMMENT ON CONSTRAINT users_version_one_check ON users_version IS 'One row.';
-- gen_random_uuid() has PostgreSQL's strong random octets
INSERT INTO users_version VALUES (nextval('versions'), sha256(uuid_send(gen_random_uuid()) || uuid_send(gen_random_uuid())
    || uuid_send(gen_random_uuid())));

CREATE TABLE user_networks (
    name text COLLATE "C" NOT NULL,
    network cidr NOT NULL,
    first_login timestamptz NOT NULL DEFAULT now(),
    last_login timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (name, network)
);
COMMENT ON TABLE user_networks IS
    'Networks that a user logged in from, of the table users or of a hook. Failures from elsewhere do not lock the '
    'user out there.';
COMMENT ON COLUMN user_networks.name IS 'users.name, or the login name of a user of a hook, in lower case.';
COMMENT ON COLUMN user_networks.network IS 'Network of the client: IPv4 /24, IPv6 /48.';
COMMENT ON COLUMN user_networks.first_login IS 'First login from there.';
COMMENT ON COLUMN user_networks.last_login IS 'Last login from there, to the day.';

CREATE UNLOGGED TABLE login_failures (
    unit text COLLATE "C" PRIMARY KEY,
    failures bigint NOT NULL,
    last_failure timestamptz NOT NULL,
    forgotten_at timestamptz NOT NULL,
    locked_until timestamptz
) WITH (fillfactor = 50);
COMMENT ON TABLE login_failures IS
    'Failed logins over all processes of smtpd. Each process writes once per second, some units at most.';
COMMENT ON COLUMN login_failures.unit IS
    'address, network, user or own (a user from an own network), then the address, network or a key of the name.';
COMMENT ON COLUMN login_failures.failures IS 'Their number since the unit was forgotten last.';
COMMENT ON COLUMN login_failures.last_failure IS 'Time of the last one.';
COMMENT ON COLUMN login_failures.forgotten_at IS
    'When all of them are forgotten. Each failure adds a time; smtpd refuses logins while it is far ahead.';
COMMENT ON COLUMN login_failures.locked_until IS
    'Until when smtpd refuses logins of the unit with 454; null or past: it does not.';

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

CREATE FUNCTION users_touched() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    NEW.version := nextval('pgmta.versions');
    NEW.changed_at := now();
    RETURN NEW;
END $$;
COMMENT ON FUNCTION users_touched IS 'Gives a changed user another version.';

CREATE TRIGGER users_touched BEFORE INSERT OR UPDATE ON users FOR EACH ROW EXECUTE FUNCTION users_touched();
COMMENT ON TRIGGER users_touched ON users IS 'A password that smtpd remembers belongs to one version.';

CREATE FUNCTION users_changed() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    UPDATE pgmta.users_version SET version = nextval('pgmta.versions');
    RETURN NULL;
END $$;
COMMENT ON FUNCTION users_changed IS 'Counts changes of users.';

CREATE TRIGGER users_changed AFTER INSERT OR UPDATE OR DELETE OR TRUNCATE ON users
    FOR EACH STATEMENT EXECUTE FUNCTION users_changed();
COMMENT ON TRIGGER users_changed ON users IS 'Every smtpd sees it within a second.';

CREATE FUNCTION users_forgotten() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    DELETE FROM pgmta.user_networks WHERE name = OLD.name;
    RETURN NULL;
END $$;
COMMENT ON FUNCTION users_forgotten IS 'Removes the networks of a user who is gone.';

CREATE TRIGGER users_forgotten AFTER DELETE ON users FOR EACH ROW EXECUTE FUNCTION users_forgotten();
COMMENT ON TRIGGER users_forgotten ON users IS 'Another user may get the name.';

CREATE FUNCTION login_verifier(wanted text) RETURNS TABLE (
    changes bigint, version bigint, password text, scram text, disabled boolean, senders text[],
    networks cidr[], tenant text, metadata text, priority_first integer, priority_last integer,
    own_networks cidr[]
) LANGUAGE sql STABLE SECURITY DEFINER ROWS 1 SET search_path = pg_catalog, pg_temp AS $$
    SELECT v.version, u.version, u.password, u.scram, u.disabled, u.senders, u.networks, u.tenant,
        u.metadata::text, u.priority_first::integer, u.priority_last::integer,
        ARRAY(SELECT n.network FROM pgmta.user_networks AS n
            WHERE n.name = wanted AND n.last_login > now() - interval '90 days')
    FROM pgmta.users_version AS v LEFT JOIN pgmta.users AS u ON u.name = wanted
$$;
COMMENT ON FUNCTION login_verifier IS
    'One user: all null but changes (users_version.version) and own_networks if there is none of that name. So the '
    'role of smtpd can list no users.';

CREATE FUNCTION login_changes(OUT changes bigint, OUT secret bytea) LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp AS $$
    SELECT version, secret FROM pgmta.users_version
$$;
COMMENT ON FUNCTION login_changes IS 'The version of all users, and the secret of users_version.';

CREATE FUNCTION login_levels(units text[]) RETURNS TABLE (unit text, seconds double precision)
LANGUAGE sql STABLE SECURITY DEFINER ROWS 4 SET search_path = pg_catalog, pg_temp AS $$
    SELECT f.unit, extract(epoch FROM f.forgotten_at - now())::double precision
    FROM pgmta.login_failures AS f WHERE f.unit = ANY (units) AND f.forgotten_at > now()
$$;
COMMENT ON FUNCTION login_levels IS 'Seconds until the failures of each unit are forgotten.';

-- Each failure adds a time, its cost; `most` is twice the period. smtpd refuses a login whose failure would be ahead
-- of the period.
CREATE FUNCTION login_failed(
    units text[], counts bigint[], added double precision[], most double precision
) RETURNS TABLE (unit text, seconds double precision) LANGUAGE sql SECURITY DEFINER ROWS 64
    SET search_path = pg_catalog, pg_temp AS $$
    INSERT INTO pgmta.login_failures AS f (unit, failures, last_failure, forgotten_at, locked_until)
    SELECT g.unit, g.count, now(), now() + least(g.added, most) * interval '1 second',
        now() + (least(g.added, most) + g.added / g.count - most / 2) * interval '1 second'
    FROM unnest(units, counts, added) AS g (unit, count, added) ORDER BY g.unit
    ON CONFLICT (unit) DO UPDATE SET
        failures = CASE WHEN f.forgotten_at > now() THEN f.failures ELSE 0 END + excluded.failures,
        last_failure = now(),
        forgotten_at = least(greatest(f.forgotten_at, now()) + (excluded.forgotten_at - now()),
            now() + most * interval '1 second'),
        locked_until = least(greatest(f.forgotten_at, now()) + (excluded.forgotten_at - now()),
            now() + most * interval '1 second') + (excluded.locked_until - excluded.forgotten_at)
    RETURNING f.unit, extract(epoch FROM f.forgotten_at - now())::double precision
$$;
COMMENT ON FUNCTION login_failed IS
    'Adds failures of some units, and for each unit seconds until they are forgotten, at most so many ahead. '
    'Returns as login_levels.';

CREATE FUNCTION login_forget() RETURNS bigint LANGUAGE sql SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp AS $$
    DELETE FROM pgmta.user_networks WHERE last_login < now() - interval '90 days';
    WITH gone AS (
        DELETE FROM pgmta.login_failures WHERE unit IN (
            SELECT unit FROM pgmta.login_failures WHERE forgotten_at < now() - interval '1 day'
            ORDER BY unit FOR UPDATE SKIP LOCKED LIMIT 10000)
        RETURNING 1)
    SELECT count(*) FROM gone
$$;
COMMENT ON FUNCTION login_forget IS
    'Removes failures that were forgotten over a day ago, and returns how many. Removes networks of logins that '
    'count no more.';

CREATE FUNCTION login_seen(names text[], nets cidr[]) RETURNS void LANGUAGE sql SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp AS $$
    INSERT INTO pgmta.user_networks AS n (name, network)
    SELECT DISTINCT s.name, s.network FROM unnest(names, nets) AS s (name, network) ORDER BY 1, 2
    ON CONFLICT (name, network) DO UPDATE SET last_login = now()
        WHERE n.last_login < now() - interval '1 day';
    -- only the last ones are kept: a user has few networks, unless they travel
    DELETE FROM pgmta.user_networks AS n USING (
        SELECT m.name, m.network, row_number() OVER (PARTITION BY m.name ORDER BY m.last_login DESC) AS place
        FROM pgmta.user_networks AS m WHERE m.name = ANY (names)
    ) AS p WHERE p.place > 32 AND n.name = p.name AND n.network = p.network
$$;
COMMENT ON FUNCTION login_seen IS
    'Notes from which network each of some users has logged in, once per day; keeps the last 32 of each.';

-- smtpd asks for one user at a time, so that it can name no others
CREATE FUNCTION login_unbound(most integer) RETURNS SETOF text STABLE LANGUAGE sql SECURITY DEFINER
    SET search_path = pgmta, pg_catalog, pg_temp AS $$
    SELECT name FROM users WHERE senders @> '{any}' AND NOT disabled ORDER BY name LIMIT most
$$;
COMMENT ON FUNCTION login_unbound IS 'Users who may send from any address, whom `smtpd check` names.';

CREATE FUNCTION recipients_known(addresses text[]) RETURNS text[] LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
    SELECT coalesce(array_agg(address), '{}') FROM pgmta.recipients WHERE address = ANY (addresses)
$$;
COMMENT ON FUNCTION recipients_known IS
    'Those of the addresses that are in the table recipients. smtpd may ask, and cannot list them.';

INSERT INTO rights (object, role, privileges) VALUES
    ('users', 'pgmta_operator',
        'SELECT (name, disabled, senders, networks, tenant, metadata, priority_first, priority_last, version, '
        'created_at, changed_at), INSERT (name, password, scram, disabled, senders, networks, tenant, metadata, '
        'priority_first, priority_last), UPDATE (password, scram, disabled, senders, networks, tenant, metadata, '
        'priority_first, priority_last), DELETE'),
    ('users', 'pgmta_reader',
        'SELECT (name, disabled, senders, networks, tenant, metadata, priority_first, priority_last, version, '
        'created_at, changed_at)'),
    ('users_version', 'pgmta_operator', 'SELECT (version, secret)'),
    ('users_version', 'pgmta_reader', 'SELECT (version)'),
    ('user_networks', 'pgmta_operator', 'SELECT, DELETE'),
    ('user_networks', 'pgmta_reader', 'SELECT'),
    -- for an operator who lets a user in at once whom failures locked out
    ('login_failures', 'pgmta_operator', 'SELECT, DELETE'),
    ('login_failures', 'pgmta_reader', 'SELECT'),
    ('recipients', 'pgmta_operator', 'SELECT, INSERT (address), DELETE'),
    ('recipients', 'pgmta_reader', 'SELECT'),
    ('FUNCTION login_verifier', 'pgmta_smtpd', 'EXECUTE'),
    ('FUNCTION login_changes', 'pgmta_smtpd', 'EXECUTE'),
    ('FUNCTION login_levels', 'pgmta_smtpd', 'EXECUTE'),
    ('FUNCTION login_failed', 'pgmta_smtpd', 'EXECUTE'),
    ('FUNCTION login_forget', 'pgmta_smtpd', 'EXECUTE'),
    ('FUNCTION login_seen', 'pgmta_smtpd', 'EXECUTE'),
    ('FUNCTION login_unbound', 'pgmta_smtpd', 'EXECUTE'),
    ('FUNCTION recipients_known', 'pgmta_smtpd', 'EXECUTE');

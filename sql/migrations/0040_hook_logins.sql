-- Users of hooks' authenticators get in from their own networks too: they are in no table.

ALTER TABLE user_networks DROP CONSTRAINT user_networks_name_fkey;
COMMENT ON TABLE user_networks IS
    'Networks that a user logged in from, of the table users or of a hook. Failures from elsewhere do not lock the '
    'user out there.';
COMMENT ON COLUMN user_networks.name IS 'users.name, or the login name of a user of a hook, in lower case.';

CREATE FUNCTION users_forgotten() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    DELETE FROM pgmta.user_networks WHERE name = OLD.name;
    RETURN NULL;
END $$;
COMMENT ON FUNCTION users_forgotten() IS 'Removes the networks of a user who is gone.';
CREATE TRIGGER users_forgotten AFTER DELETE ON users FOR EACH ROW EXECUTE FUNCTION users_forgotten();
COMMENT ON TRIGGER users_forgotten ON users IS 'Another user may get the name.';
REVOKE EXECUTE ON FUNCTION users_forgotten() FROM PUBLIC;

CREATE OR REPLACE FUNCTION login_verifier(wanted text) RETURNS TABLE (
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
COMMENT ON FUNCTION login_verifier(text) IS
    'One user: all null but changes (users_version.version) and own_networks if there is none of that name. So the '
    'role of smtpd can list no users.';

CREATE OR REPLACE FUNCTION login_forget() RETURNS bigint LANGUAGE sql SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp AS $$
    DELETE FROM pgmta.user_networks WHERE last_login < now() - interval '90 days';
    WITH gone AS (
        DELETE FROM pgmta.login_failures WHERE unit IN (
            SELECT unit FROM pgmta.login_failures WHERE forgotten_at < now() - interval '1 day'
            ORDER BY unit FOR UPDATE SKIP LOCKED LIMIT 10000)
        RETURNING 1)
    SELECT count(*) FROM gone
$$;
COMMENT ON FUNCTION login_forget() IS
    'Removes failures that were forgotten over a day ago, and returns how many. Removes networks of logins that '
    'count no more.';

CREATE OR REPLACE FUNCTION login_seen(names text[], nets cidr[]) RETURNS void LANGUAGE sql SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp AS $$
    INSERT INTO pgmta.user_networks AS n (name, network)
    SELECT DISTINCT s.name, s.network FROM unnest(names, nets) AS s (name, network) ORDER BY 1, 2
    ON CONFLICT (name, network) DO UPDATE SET last_login = now()
        WHERE n.last_login < now() - interval '1 day';
    -- a user has few networks; one who travels has the last ones
    DELETE FROM pgmta.user_networks AS n USING (
        SELECT m.name, m.network, row_number() OVER (PARTITION BY m.name ORDER BY m.last_login DESC) AS place
        FROM pgmta.user_networks AS m WHERE m.name = ANY (names)
    ) AS p WHERE p.place > 32 AND n.name = p.name AND n.network = p.network
$$;

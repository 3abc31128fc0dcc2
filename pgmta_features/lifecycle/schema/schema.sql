-- The schema lifecycle: accounts and tokens of an application, and the mail about them.

CREATE SCHEMA lifecycle;
COMMENT ON SCHEMA lifecycle IS 'Accounts, tokens and collectors of pgmta. `queuectl lifecycle` installs and removes it.';
REVOKE ALL ON SCHEMA lifecycle FROM PUBLIC;
CREATE SCHEMA lifecycle_bound;
COMMENT ON SCHEMA lifecycle_bound IS
    'Functions of the role pgmta_binding, which run code of an application. Nobody but the owner may use the schema: that '
    'code could alter them otherwise.';
ALTER DEFAULT PRIVILEGES IN SCHEMA lifecycle REVOKE ALL ON TABLES FROM PUBLIC;
SET LOCAL search_path = lifecycle;
SET LOCAL check_function_bodies = off;  -- functions may name later ones

CREATE TABLE installation (
    one boolean DEFAULT true PRIMARY KEY CONSTRAINT installation_one CHECK (one),
    version integer NOT NULL DEFAULT 1,
    installed_at timestamptz NOT NULL DEFAULT now(),
    installed_by text NOT NULL DEFAULT SESSION_USER,
    bound jsonb
);
COMMENT ON TABLE installation IS 'What is installed, in one row.';
COMMENT ON COLUMN installation.one IS 'Always true: there is one row.';
COMMENT ON COLUMN installation.version IS 'Version of the schema lifecycle.';
COMMENT ON COLUMN installation.installed_at IS 'When it was installed.';
COMMENT ON COLUMN installation.installed_by IS 'The login that installed it.';
COMMENT ON COLUMN installation.bound IS
    'The options of `queuectl lifecycle bind`, with all names; null: accounts has the accounts.';
COMMENT ON CONSTRAINT installation_one ON installation IS 'One row.';
INSERT INTO installation DEFAULT VALUES;

CREATE TYPE account_status AS ENUM ('provisioned', 'active', 'suspended');
COMMENT ON TYPE account_status IS 'A new account is provisioned, its owner activates it, and operators suspend it.';

CREATE FUNCTION epoch() RETURNS bigint STABLE PARALLEL SAFE RETURN floor(extract(epoch FROM now()))::bigint;
COMMENT ON FUNCTION epoch IS 'Seconds since 1970 at the begin of the transaction.';

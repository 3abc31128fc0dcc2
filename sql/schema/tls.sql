-- TLS of other hosts: MTA-STS policies, hosts with broken TLS, results for reports.

CREATE TABLE sts_policies (
    domain text COLLATE "C" PRIMARY KEY,
    id text NOT NULL,
    mode text NOT NULL CHECK (mode IN ('enforce', 'testing', 'none')),
    mx text[] NOT NULL,
    max_age integer NOT NULL,
    fetched_at timestamptz NOT NULL DEFAULT now(),
    expires_at timestamptz NOT NULL,
    next_fetch timestamptz NOT NULL,
    used_on date NOT NULL DEFAULT CURRENT_DATE
);
COMMENT ON TABLE sts_policies IS
    'MTA-STS policies of recipient domains (RFC 8461). A policy counts until it expires, whatever its domain says '
    'since, unless a newer one was fetched.';
COMMENT ON COLUMN sts_policies.domain IS 'Recipient domain, in A-labels.';
COMMENT ON COLUMN sts_policies.id IS 'Id in the TXT record for which the policy was fetched.';
COMMENT ON COLUMN sts_policies.mode IS 'enforce, testing or none.';
COMMENT ON COLUMN sts_policies.mx IS 'Names that a host may have; *. stands for one label.';
COMMENT ON COLUMN sts_policies.max_age IS 'Seconds that the policy counts after a fetch.';
COMMENT ON COLUMN sts_policies.fetched_at IS 'Time of the last fetch that succeeded.';
COMMENT ON COLUMN sts_policies.expires_at IS 'The policy counts until then.';
COMMENT ON COLUMN sts_policies.next_fetch IS 'When a queued fetches it again, if it was used since 30 days.';
COMMENT ON COLUMN sts_policies.used_on IS 'Last day on which mail went to the domain.';
COMMENT ON CONSTRAINT sts_policies_mode_check ON sts_policies IS 'RFC 8461, section 3.2.';

CREATE INDEX sts_policies_next_fetch ON sts_policies (next_fetch);
COMMENT ON INDEX sts_policies_next_fetch IS 'Policies that are fetched again.';

CREATE TABLE broken_tls (
    host text COLLATE "C" PRIMARY KEY,
    until timestamptz NOT NULL,
    reason text NOT NULL,
    minimum text COLLATE "C" NOT NULL DEFAULT ''
);
COMMENT ON TABLE broken_tls IS
    'Hosts whose TLS handshake failed twice: mail that may leave in plain text does so for a while.';
COMMENT ON COLUMN broken_tls.host IS 'Host name and port.';
COMMENT ON COLUMN broken_tls.until IS 'TLS is tried again then (delivery.tls.remember in queued.yaml).';
COMMENT ON COLUMN broken_tls.reason IS 'The last failure.';
COMMENT ON COLUMN broken_tls.minimum IS
    'The lowest version of TLS with which it failed (delivery.tls.minimum); the row counts with no other.';

CREATE TABLE tls_reports (
    day date NOT NULL,
    domain text COLLATE "C" NOT NULL,
    policy_type text COLLATE "C" NOT NULL CHECK (policy_type IN ('tlsa', 'sts', 'no-policy-found')),
    policy text COLLATE "C" NOT NULL,
    result text COLLATE "C" NOT NULL,
    host text COLLATE "C" NOT NULL,
    address text COLLATE "C" NOT NULL,
    reason text COLLATE "C" NOT NULL,
    sessions bigint NOT NULL,
    PRIMARY KEY (day, domain, policy_type, policy, result, host, address, reason)
);
COMMENT ON TABLE tls_reports IS 'Results of TLS sessions by day, for reports to the domains (RFC 8460).';
COMMENT ON COLUMN tls_reports.day IS 'Day of the sessions, in UTC.';
COMMENT ON COLUMN tls_reports.domain IS 'Policy domain: the recipient domain, or the host for TLSA records.';
COMMENT ON COLUMN tls_reports.policy_type IS 'tlsa, sts or no-policy-found.';
COMMENT ON COLUMN tls_reports.policy IS 'Id of the MTA-STS policy, or its TLSA records; empty without a policy.';
COMMENT ON COLUMN tls_reports.result IS 'successful, or a result type of RFC 8460, section 4.3.';
COMMENT ON COLUMN tls_reports.host IS 'Host name of the next hop; empty if none was reached, or for a success.';
COMMENT ON COLUMN tls_reports.address IS 'Its IP address; empty likewise.';
COMMENT ON COLUMN tls_reports.reason IS 'The failure in words; empty for a success.';
COMMENT ON COLUMN tls_reports.sessions IS 'Number of sessions.';
COMMENT ON CONSTRAINT tls_reports_policy_type_check ON tls_reports IS 'RFC 8460, section 4.2.';

INSERT INTO rights (object, role, privileges) VALUES
    ('sts_policies', 'pgmta_queued', 'SELECT, INSERT, UPDATE, DELETE'),
    ('sts_policies', 'pgmta_operator', 'SELECT, DELETE'),
    ('sts_policies', 'pgmta_reader', 'SELECT'),
    ('broken_tls', 'pgmta_queued', 'SELECT, INSERT, UPDATE, DELETE'),
    -- for an operator who has repaired the TLS of a host, and wants it tried at once
    ('broken_tls', 'pgmta_operator', 'SELECT, DELETE'),
    ('broken_tls', 'pgmta_reader', 'SELECT'),
    ('tls_reports', 'pgmta_queued', 'SELECT, INSERT, UPDATE, DELETE'),
    ('tls_reports', 'pgmta_operator', 'SELECT'),
    ('tls_reports', 'pgmta_reader', 'SELECT');

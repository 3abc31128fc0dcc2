#!/bin/sh
# Runs once, in the new database of compose.yaml: an owner for `queuectl database migrate`, and a login for each
# daemon, with the rights of its group alone (docs/operate/rights.md).
set -eu
psql -v ON_ERROR_STOP=1 -U "$POSTGRES_USER" -d "$POSTGRES_DB" \
    -v owner="$OWNER_PASSWORD" -v smtpd="$SMTPD_PASSWORD" -v queued="$QUEUED_PASSWORD" \
    -v web="$WEB_PASSWORD" -v api="$API_PASSWORD" -v operator="$OPERATOR_PASSWORD" <<'SQL'
CREATE ROLE pgmta_smtpd;
CREATE ROLE pgmta_queued;
CREATE ROLE pgmta_web;
CREATE ROLE pgmta_api;
CREATE ROLE pgmta_operator;
CREATE ROLE pgmta_reader;
CREATE ROLE pgmta_submit;
CREATE ROLE owner LOGIN PASSWORD :'owner';
CREATE ROLE smtpd LOGIN PASSWORD :'smtpd' IN ROLE pgmta_smtpd;
CREATE ROLE queued LOGIN PASSWORD :'queued' IN ROLE pgmta_queued;
CREATE ROLE web LOGIN PASSWORD :'web' IN ROLE pgmta_web;
CREATE ROLE api LOGIN PASSWORD :'api' IN ROLE pgmta_api;
CREATE ROLE operator LOGIN PASSWORD :'operator' IN ROLE pgmta_operator;
-- it cancels statements of the daemons during a migration
GRANT pg_signal_backend TO owner;
REVOKE CONNECT, TEMPORARY ON DATABASE pgmta FROM PUBLIC;
GRANT CONNECT ON DATABASE pgmta TO smtpd, queued, web, api, operator;
ALTER DATABASE pgmta OWNER TO owner;
SQL

-- Once, on the primary, as the superuser:
--   psql -h 192.0.2.11,192.0.2.12,192.0.2.13 -d 'user=postgres dbname=postgres target_session_attrs=read-write' \
--       -v owner=… -v smtpd=… -v queued=… -v operator=… -f roles.sql
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
CREATE ROLE operator LOGIN PASSWORD :'operator' IN ROLE pgmta_operator;
GRANT pg_monitor TO operator;
-- it cancels statements of the daemons during a migration
GRANT pg_signal_backend TO owner;
CREATE DATABASE pgmta OWNER owner;
REVOKE CONNECT, TEMPORARY ON DATABASE pgmta FROM PUBLIC;
GRANT CONNECT ON DATABASE pgmta TO smtpd, queued, operator;

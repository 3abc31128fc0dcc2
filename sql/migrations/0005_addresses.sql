-- Addresses that would not stay one argument of one command: docs/decisions/0017-wire.md.

-- Control characters end a command line or steer a terminal; C1, bidi marks and line separators do
-- the latter. The CHECK has the expression itself: a function would be looked up by every statement.
-- In a database that is not in UTF8, octets over 127 mean something else; there it refuses C0 and DEL,
-- and delivery holds the rest.
DO $$
DECLARE
    malformed text := format(
        '(sender || recipient || domain) COLLATE "C" ~ %L',
        CASE getdatabaseencoding() WHEN 'UTF8' THEN
            '[\u0001-\u001F\u007F-\u009F\u061C\u200E\u200F\u2028-\u202E\u2066-\u2069]'
        ELSE '[\u0001-\u001F\u007F]' END);
BEGIN
    EXECUTE format(
        'CREATE FUNCTION queue_malformed(sender text, recipient text, domain text) RETURNS boolean
             LANGUAGE sql IMMUTABLE PARALLEL SAFE AS %L', 'SELECT ' || malformed);
    EXECUTE format(
        'ALTER TABLE queue ADD CONSTRAINT queue_addresses
             CHECK (status IN (''SENDING'', ''HOLD'', ''DELETE'') OR NOT (%s)) NOT VALID', malformed);
END $$;
GRANT EXECUTE ON FUNCTION queue_malformed(text, text, text) TO PUBLIC;  -- it reads nothing
COMMENT ON FUNCTION queue_malformed(text, text, text) IS
    'Whether an address holds a control character, bidi mark or line separator. Such a row can be on '
    'hold or be deleted, and nothing else.';
COMMENT ON CONSTRAINT queue_addresses ON queue IS
    'No control characters in addresses of rows that wait for delivery. Not validated: rows from before '
    'it are on hold. Nor looked at in a claim; delivery looks again.';

-- A CHECK that is not valid yet counts for every UPDATE: one old row would fail the claim of a batch.
UPDATE queue SET status = 'HOLD', held_by = 'postern migrate',
    hold_reason = 'an address holds control characters: the row can only be deleted'
WHERE status NOT IN ('HOLD', 'DELETE') AND queue_malformed(sender, recipient, domain);

CREATE OR REPLACE FUNCTION queue_hold_stamp() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NEW.status NOT IN ('HOLD', 'DELETE')
            AND public.queue_malformed(NEW.sender, NEW.recipient, NEW.domain) THEN
        -- stays, so that the others that the statement releases are released
        NEW.status := 'HOLD';
        NEW.held_at := now();
        NEW.held_by := coalesce(OLD.held_by, session_user);
        NEW.hold_reason := 'an address holds control characters: the row can only be deleted';
        NEW.hold_until := NULL;
    ELSIF NEW.status = 'HOLD' THEN
        NEW.held_at := now();
        NEW.held_by := coalesce(NEW.held_by, session_user);
        NEW.hold_reason := coalesce(NEW.hold_reason, 'no reason given');
    ELSIF OLD.status = 'HOLD' THEN
        NEW.held_at := NULL;
        NEW.held_by := NULL;
        NEW.hold_reason := NULL;
        NEW.hold_until := NULL;
        NEW.next_attempt := least(NEW.next_attempt, now());
    END IF;
    RETURN NEW;
END $$;
COMMENT ON FUNCTION queue_hold_stamp() IS
    'Says of every hold who, when and why, also of one by a plain UPDATE, and takes it off again. A row '
    'with a malformed address stays on hold.';
CREATE OR REPLACE TRIGGER queue_hold_stamp BEFORE UPDATE OF status ON queue FOR EACH ROW
    WHEN ((OLD.status = 'HOLD') <> (NEW.status = 'HOLD') OR OLD.status = 'DELETE'
        OR OLD.status = 'SENDING' AND NEW.status <> 'SENDING')
    EXECUTE FUNCTION queue_hold_stamp();
COMMENT ON TRIGGER queue_hold_stamp ON queue IS 'Every hold has a reason.';

CREATE OR REPLACE FUNCTION queue_release(condition text) RETURNS bigint LANGUAGE sql AS $$
    SELECT public.queue_change('release', condition, 'status = ''QUEUED''',
        'status = ''HOLD'' AND NOT public.queue_malformed(sender, recipient, domain)', '{}')
$$;
COMMENT ON FUNCTION queue_release(text) IS
    'Puts held rows that match condition back, due at once; those with a malformed address stay. '
    'Returns the number of rows.';

-- smtpd puts mail for the postmaster on hold at once, where nobody has said where it goes.
CREATE OR REPLACE FUNCTION postern_grants() RETURNS text[] LANGUAGE plpgsql
    SET search_path = public, pg_catalog, pg_temp AS $$
BEGIN
    IF current_setting('server_version_num')::integer >= 170000 AND to_regrole('postern_queued') IS NOT NULL THEN
        EXECUTE 'GRANT MAINTAIN ON message_chunks TO postern_queued';
    END IF;
    IF to_regrole('postern_smtpd') IS NOT NULL THEN
        EXECUTE 'GRANT INSERT (status, hold_reason, held_by, held_at) ON queue TO postern_smtpd';
    END IF;
    RETURN postern_grants_basic();
END $$;
DO $$ BEGIN PERFORM postern_grants(); END $$;

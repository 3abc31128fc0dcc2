-- Links that unsubscribe: who may ask for them, and whom they name.

CREATE OR REPLACE FUNCTION submit_scope(scope text, tenant text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF scope = '' THEN PERFORM submit_refuse('unsubscribe', 'it is empty', NULL, 'Leave it out, or name a scope.'); END IF;
    PERFORM suppression_scope_check(scope, tenant, 'unsubscribe');
END $$;

CREATE TABLE link_recipients (function text PRIMARY KEY, taker text);
COMMENT ON TABLE link_recipients IS 'Functions that know the recipients whom signed links name; features add theirs.';
COMMENT ON COLUMN link_recipients.function IS
    'Of the two numbers and the day of a link: it returns address, tenant, scope and mail of the recipient, or no row. An '
    'address that is empty or null is nobody''s, as in a test message.';
COMMENT ON COLUMN link_recipients.taker IS
    'A function of these two numbers and a reason, unsubscribed or complained, which hears that somebody used a link to a '
    'recipient of `function`; null: nothing.';

CREATE FUNCTION link_recipient(list bigint, number bigint, day date)
RETURNS TABLE (address text, tenant text, scope text, mail text, taker text) LANGUAGE plpgsql STABLE
    SET search_path = pgmta, pg_catalog, pg_temp AS $$
DECLARE
    each record;
BEGIN
    FOR each IN SELECT l.function, l.taker FROM link_recipients AS l LOOP
        RETURN QUERY EXECUTE format('SELECT r.address, r.tenant, r.scope, r.mail, $4 FROM %I($1, $2, $3) AS r', each.function)
        USING list, number, day, each.taker;
    END LOOP;
END $$;
COMMENT ON FUNCTION link_recipient IS
    'The recipient whom a signed link names, the mail that it is about, and link_recipients.taker.';

CREATE FUNCTION link_used(list bigint, number bigint, taker text, reason text) RETURNS void LANGUAGE plpgsql
    SET search_path = pgmta, pg_catalog, pg_temp AS $$
BEGIN
    -- after the suppression: all who write outcomes lock suppressions first
    IF taker IS NOT NULL THEN EXECUTE format('SELECT %I($1, $2, $3)', taker) USING list, number, reason; END IF;
END $$;
COMMENT ON FUNCTION link_used IS 'Tells the feature whose link it was that somebody unsubscribed or complained.';

CREATE FUNCTION mail_recipient(list bigint, number bigint, day date)
RETURNS TABLE (address text, tenant text, scope text, mail text) LANGUAGE plpgsql STABLE ROWS 1
    SET search_path = pgmta, pg_catalog, pg_temp SET enable_seqscan = off AS $$
DECLARE
    message bigint;
    entry record;
BEGIN
    IF list >= 0 OR list < -9223372036854775807 THEN RETURN; END IF;
    message := -list;
    SELECT row_address(q.recipient, q.domain) AS recipient, q.tenant, q.metadata INTO entry FROM queue AS q
    WHERE q.message_id = message AND q.id = number;
    IF NOT FOUND THEN
        SELECT row_address(a.recipient, a.domain) AS recipient, a.tenant, a.metadata INTO entry FROM attempts AS a
        -- an entry is of the clock of a worker
        WHERE a.message_id = message AND a.row_id = number AND a.ended_at >= (day - 1)::timestamp AT TIME ZONE 'UTC'
        ORDER BY a.ended_at DESC LIMIT 1;
    END IF;
    IF FOUND THEN
        RETURN QUERY SELECT entry.recipient, entry.tenant, mail_scope(entry.metadata),
            'message ' || message;
    -- the log has all days since then, and somebody was forgotten; else a promotion may have lost the mail
    ELSIF EXISTS (SELECT FROM suppressions AS s WHERE s.address >= 'hmac:' AND s.address < 'hmac;')
        AND (SELECT min(d.name) <= 'attempts_' || to_char(day, 'YYYYMMDD') FROM forget_days('attempts') AS d (name)
            WHERE d.name ~ '_[0-9]{8}$') THEN
        RETURN QUERY SELECT '', '', '', '';
    END IF;
END $$;
COMMENT ON FUNCTION mail_recipient IS
    'The recipient whom a link names in mail that is of no campaign: the first number is minus the message id, the second one '
    'the id of the row, which is in the queue or in the log. An empty address is that of a person who had to be forgotten.';
INSERT INTO link_recipients (function) VALUES ('mail_recipient');

CREATE FUNCTION unsubscribe(list bigint, number bigint, day date) RETURNS boolean LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pgmta, pg_catalog, pg_temp AS $$
DECLARE
    named record;
BEGIN
    SELECT * INTO named FROM link_recipient(list, unsubscribe.number, day);
    IF NOT FOUND THEN RETURN false; END IF;
    IF named.address <> '' THEN
        PERFORM suppressions_put(ARRAY[named.address], ARRAY[named.tenant], ARRAY[named.scope], ARRAY['unsubscribed'],
            ARRAY['unsubscribe link of ' || named.mail]);
        PERFORM link_used(list, unsubscribe.number, named.taker, 'unsubscribed');
    ELSE
        PERFORM prove_earlier();
    END IF;
    RETURN true;
END $$;
COMMENT ON FUNCTION unsubscribe IS
    'Suppresses the address whom a link names, for its tenant and scope. Returns false if there is no such recipient. The '
    'caller has verified a token that names numbers and day.';

CREATE FUNCTION link_complaint(list bigint, number bigint, day date) RETURNS boolean LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pgmta, pg_catalog, pg_temp AS $$
DECLARE
    named record;
BEGIN
    SELECT * INTO named FROM link_recipient(list, link_complaint.number, day) AS r WHERE r.address <> '';
    IF NOT FOUND THEN RETURN false; END IF;
    PERFORM suppressions_put(ARRAY[named.address], ARRAY[named.tenant], ARRAY[''], ARRAY['complained'], ARRAY[named.mail]);
    PERFORM link_used(list, link_complaint.number, named.taker, 'complained');
    RETURN true;
END $$;
COMMENT ON FUNCTION link_complaint IS
    'Suppresses the address whom a link names, for all scopes of its tenant, because its owner complained. Returns false if '
    'there is no such recipient. The caller has verified a token that names numbers and day.';

INSERT INTO rights (object, role, privileges) VALUES
    ('FUNCTION link_complaint', 'pgmta_queued', 'EXECUTE'),
    ('FUNCTION unsubscribe', 'pgmta_web', 'EXECUTE');

-- Actions: what a token is for, what its mail is, and what it does when it comes back.

CREATE TABLE actions (
    name text PRIMARY KEY,
    template text NOT NULL,
    priority smallint NOT NULL DEFAULT 4,
    expiry interval NOT NULL DEFAULT '15 minutes',
    expiry_from text NOT NULL DEFAULT 'insert',
    confirmed_by text NOT NULL DEFAULT 'account',
    statuses text[] NOT NULL DEFAULT '{active}',
    code boolean NOT NULL DEFAULT false,
    proof boolean NOT NULL DEFAULT false,
    calls text,
    asker text,
    every interval NOT NULL DEFAULT '1 minute',
    url text,
    returns_to text,
    seconds bigint NOT NULL GENERATED ALWAYS AS (ceil(extract(epoch FROM expiry))::bigint) STORED,
    sent_within bigint GENERATED ALWAYS AS (CASE expiry_from WHEN 'delivery' THEN 432000 END) STORED,
    titles jsonb
);
COMMENT ON TABLE actions IS 'What tokens are for. The owner of the schema writes these rows.';
COMMENT ON COLUMN actions.name IS 'As tokens.action, and in the path of its page.';
COMMENT ON COLUMN actions.template IS 'Template of its mail. That of a language has the name with .de or .pt-br behind it.';
COMMENT ON COLUMN actions.priority IS 'Of its mail. Tokens of a lower number are collected first.';
COMMENT ON COLUMN actions.expiry IS 'For how long a token can be consumed.';
COMMENT ON COLUMN actions.expiry_from IS
    'Since when that time counts: insert, or delivery of its mail, which is given up five days after the insert.';
COMMENT ON COLUMN actions.confirmed_by IS
    'Whose mailbox gets the mail: account, email (the address given to ask()), or both, which confirm one request.';
COMMENT ON COLUMN actions.statuses IS 'Statuses of an account with which tokens are mailed and consumed.';
COMMENT ON COLUMN actions.code IS 'Whether five digits are typed in beside the link.';
COMMENT ON COLUMN actions.proof IS 'Whether a consumption returns a proof for proof_take(), and ends the others of its account.';
COMMENT ON COLUMN actions.calls IS
    'Function `schema.name` of the application, (account text, email text, data jsonb) returning boolean; null: none. '
    'It runs in the transaction that consumes the token.';
COMMENT ON COLUMN actions.asker IS 'Role whose members may ask(); null: all who may call it.';
COMMENT ON COLUMN actions.every IS 'An account, and a mailbox given to ask(), get at most one token each in this time.';
COMMENT ON COLUMN actions.url IS 'Page of the application that takes ?token=; null: the page of queued web.';
COMMENT ON COLUMN actions.returns_to IS
    'Where queued web sends browsers afterwards, with a proof if there is one; null: a page of its own, and none for a proof.';
COMMENT ON COLUMN actions.seconds IS 'The expiry in seconds.';
COMMENT ON COLUMN actions.sent_within IS
    'For so many seconds its mail is tried, before the expiry begins; null: the expiry bounds it.';
COMMENT ON COLUMN actions.titles IS 'Heading of the page of queued web, by language: {"en": "Delete your account"}.';

-- before the trigger, which would ask for their templates
INSERT INTO actions (name, template, priority, statuses, code, proof) VALUES
    ('activation', 'activation', 4, '{provisioned}', false, false),
    ('password_recovery', 'recovery', 1, '{active}', true, true);

CREATE FUNCTION action_words(template text, tenant text DEFAULT NULL) RETURNS jsonb LANGUAGE sql STABLE
    SET search_path = pgmta, pg_catalog, pg_temp AS $$
    SELECT t.words FROM templates AS t
    WHERE t.name = action_words.template AND (action_words.tenant IS NULL OR t.tenant IN (action_words.tenant, ''))
    ORDER BY t.tenant DESC, t.version DESC LIMIT 1
$$;
COMMENT ON FUNCTION action_words IS
    'The words of the newest version of a template, of a tenant or of any; null if there is none.';

CREATE FUNCTION action_refuse(name text, column_name text, why text, hint text DEFAULT NULL) RETURNS void LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    why := format('action %s%s: %s', coalesce(to_json(left(name, 100))::text, 'null'),
        ', column ' || nullif(column_name, ''), why);
    IF hint IS NULL THEN  -- an option of RAISE can't be null
        RAISE EXCEPTION '%', why USING
            ERRCODE = 'invalid_parameter_value', SCHEMA = 'lifecycle', TABLE = 'actions', COLUMN = column_name;
    END IF;
    RAISE EXCEPTION '%', why USING
        ERRCODE = 'invalid_parameter_value', SCHEMA = 'lifecycle', TABLE = 'actions', COLUMN = column_name, HINT = hint;
END $$;
COMMENT ON FUNCTION action_refuse IS 'Raises the error of a row of actions, or of a question about one: column_name is empty.';

CREATE FUNCTION action_unknown(name text) RETURNS void LANGUAGE plpgsql SET search_path = lifecycle, pg_catalog, pg_temp AS $$
DECLARE
    known text[] := ARRAY(SELECT a.name FROM actions AS a ORDER BY a.name);
BEGIN
    RAISE EXCEPTION 'there is no action %', coalesce(to_json(left(name, 100))::text, 'null') USING
        ERRCODE = 'invalid_parameter_value', SCHEMA = 'lifecycle', TABLE = 'actions',
        HINT = coalesce('Did you mean ' || pgmta.nearest_word(name, known) || '?',
            'There is ' || array_to_string(known, ', ') || '.');
END $$;
COMMENT ON FUNCTION action_unknown IS 'Raises the error of an action that is not there, which names the nearest one.';

CREATE FUNCTION actions_checked() RETURNS trigger LANGUAGE plpgsql SET search_path = lifecycle, pg_catalog, pg_temp
    SET standard_conforming_strings = on AS $$
DECLARE
    words jsonb := action_words(NEW.template);
    fault text;
    known text[];
    bad record;
BEGIN
    -- no CHECK of the table, which would name no column
    SELECT g.place, g.word, g.words INTO bad FROM (
        VALUES ('confirmed_by', NEW.confirmed_by, '{account,email,both}'::text[]),
            ('expiry_from', NEW.expiry_from, '{insert,delivery}')
        UNION ALL SELECT 'statuses', coalesce(s, 'null'), '{provisioned,active,suspended}' FROM unnest(NEW.statuses) AS s
        UNION ALL SELECT 'titles', t.key, '{de,en,es,fr}'  -- the languages of the pages of queued web
            FROM jsonb_each(CASE jsonb_typeof(NEW.titles) WHEN 'object' THEN NEW.titles END) AS t
    ) AS g (place, word, words) WHERE g.word <> ALL (g.words) LIMIT 1;
    IF FOUND THEN
        PERFORM action_refuse(NEW.name, bad.place,
            format('%s is none of %s', to_json(left(bad.word, 100)), array_to_string(bad.words, ', ')),
            'Did you mean ' || pgmta.nearest_word(bad.word, bad.words) || '?');
    END IF;
    SELECT g.place, g.why INTO bad FROM (VALUES
        ('name', NEW.name !~ '^[a-z][a-z0-9_]{0,62}$' COLLATE "C",
            'it is not up to 63 of the characters a-z, 0-9 and _, of which the first is a letter'),
        ('priority', NEW.priority NOT BETWEEN 0 AND 9, format('%s is not from 0 to 9', NEW.priority)),
        ('expiry', NEW.expiry NOT BETWEEN '1 second' AND '366 days', format('%s is not from a second to a year', NEW.expiry)),
        ('every', NEW.every < '0', format('%s is less than 0', NEW.every)),
        ('statuses', NEW.statuses = '{}', 'it is empty'),
        -- triggers make these tokens, for new accounts and without an address
        ('statuses', NEW.name = 'activation' AND NEW.statuses <> '{provisioned}', 'activation has {provisioned}'),
        ('confirmed_by', NEW.name = 'activation' AND NEW.confirmed_by <> 'account', 'activation has account'),
        ('titles', jsonb_typeof(NEW.titles) <> 'object', 'it is no object such as {"en": "Join the team"}'),
        -- a proof says who has the mailbox of an account
        ('proof', NEW.proof AND NEW.confirmed_by <> 'account', 'a proof needs confirmed_by account')
    ) AS g (place, wrong, why) WHERE g.wrong LIMIT 1;
    IF FOUND THEN PERFORM action_refuse(NEW.name, bad.place, bad.why); END IF;
    IF TG_OP = 'UPDATE' AND OLD.name <> NEW.name THEN
        PERFORM action_refuse(OLD.name, 'name', 'it stays', 'Insert another action, and delete this one.');
    END IF;
    IF words IS NULL THEN
        known := ARRAY(SELECT DISTINCT t.name FROM pgmta.templates AS t ORDER BY t.name);
        PERFORM action_refuse(NEW.name, 'template', format('there is no template %s', coalesce(to_json(left(NEW.template, 100))::text, 'null')),
            CASE WHEN known = '{}' THEN 'There is no template yet: `queuectl template put` stores one.'
                ELSE coalesce('Did you mean ' || pgmta.nearest_word(NEW.template, known) || '?',
                    'There is ' || array_to_string(known[:10], ', ') || '.') END);
    ELSIF NOT words ?| '{link,token}' THEN
        PERFORM action_refuse(NEW.name, 'template', format('%s has neither {{link}} nor {{token}}', to_json(NEW.template)));
    ELSIF words ? 'code' AND NOT NEW.code THEN
        PERFORM action_refuse(NEW.name, 'code', format('%s has the word {{code}}', to_json(NEW.template)), 'Set code to true.');
    ELSIF words ? 'new_email' AND NEW.confirmed_by = 'account' THEN
        PERFORM action_refuse(NEW.name, 'confirmed_by', format('%s has the word {{new_email}}', to_json(NEW.template)),
            'Set confirmed_by to email or both.');
    ELSIF NEW.code AND NOT words ? 'code' THEN
        PERFORM action_refuse(NEW.name, 'code', format('%s has no {{code}}', to_json(NEW.template)), 'Set code to false.');
    END IF;
    IF NEW.calls IS NOT NULL THEN
        fault := (SELECT f.fault FROM calls_found(NEW.calls, NEW.name) AS f);
        IF fault IS NOT NULL THEN PERFORM action_refuse(NEW.name, 'calls', fault); END IF;
    END IF;
    IF to_regrole(quote_ident(NEW.asker)) IS NULL AND NEW.asker IS NOT NULL THEN
        PERFORM action_refuse(NEW.name, 'asker', format('there is no role %s', to_json(left(NEW.asker, 100))),
            'Did you mean ' || pgmta.nearest_word(NEW.asker, ARRAY(SELECT r.rolname::text FROM pg_roles AS r)) || '?');
    END IF;
    IF NEW.url !~ '^https?://[^/?#@[:space:][:cntrl:]]+(/[^?#[:space:][:cntrl:]]*)?$' THEN
        PERFORM action_refuse(NEW.name, 'url', 'it is no URL with http or https without query and fragment');
    END IF;
    -- as parse_return_url() in Python: queued web names its origin in a header, and a proof may be added
    IF NEW.returns_to !~ '^(https://[^/?@:]+|https?://(localhost|127\.0\.0\.1|\[::1\]))(:[1-9][0-9]{0,4})?([/?].*)?$'
            OR NEW.returns_to ~ '[^!-~]|[#"''<>\\;,]' COLLATE "C" THEN
        PERFORM action_refuse(NEW.name, 'returns_to', 'it is no URL such as https://shop.example/done',
            'It has https, except on localhost, and neither a login nor a fragment.');
    END IF;
    -- the first row has none until the owner names it
    IF NEW.proof AND NEW.returns_to IS NULL AND NEW.url IS NULL AND NEW.name <> 'password_recovery' THEN
        PERFORM action_refuse(NEW.name, 'proof', 'no page of the application gets the proof', 'Set returns_to or url.');
    END IF;
    fault := (SELECT t.key FROM jsonb_each(CASE jsonb_typeof(NEW.titles) WHEN 'object' THEN NEW.titles END) AS t
        WHERE jsonb_typeof(t.value) <> 'string' LIMIT 1);
    IF fault IS NOT NULL THEN
        PERFORM action_refuse(NEW.name, 'titles', format('the title of %s is no text', to_json(fault)));
    END IF;
    RETURN NEW;
END $$;
COMMENT ON FUNCTION actions_checked IS 'Raises the error of a row with which no token could be mailed or consumed.';
CREATE TRIGGER actions_checked BEFORE INSERT OR UPDATE ON actions FOR EACH ROW EXECUTE FUNCTION actions_checked();
COMMENT ON TRIGGER actions_checked ON actions IS 'A bad row is not stored.';

CREATE FUNCTION actions_deleted() RETURNS trigger LANGUAGE plpgsql SET search_path = lifecycle, pg_catalog, pg_temp AS $$
DECLARE
    mails bigint[];
BEGIN
    -- This statement waits for a collector that has locked such a token; the next one sees its mail.
    DELETE FROM waiting_tokens AS w WHERE w.action = OLD.name;
    SELECT array_agg(t.message_id ORDER BY t.message_id) INTO mails FROM tokens AS t
    WHERE t.action = OLD.name AND t.consumed_at IS NULL AND t.message_id IS NOT NULL;
    PERFORM pgmta.withdraw(mails, 'its action was deleted');
    RETURN NULL;
END $$;
COMMENT ON FUNCTION actions_deleted IS
    'Withdraws mail of a deleted action. A token that is committed later gets none, because collectors ask for those of actions.';
CREATE TRIGGER actions_deleted AFTER DELETE ON actions FOR EACH ROW EXECUTE FUNCTION actions_deleted();
COMMENT ON TRIGGER actions_deleted ON actions IS 'Its tokens can no longer be consumed.';

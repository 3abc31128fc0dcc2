-- Recipients come into campaigns: the lock of an import, recipients by SQL, and a test mail.

CREATE TABLE campaign_lists (
    campaign_id bigint NOT NULL REFERENCES campaigns ON DELETE CASCADE,
    number integer NOT NULL,
    name text NOT NULL,
    first integer NOT NULL,
    last integer NOT NULL,
    imported_at timestamptz NOT NULL DEFAULT now(),
    imported_by text NOT NULL DEFAULT acting(),
    PRIMARY KEY (campaign_id, number)
);
COMMENT ON TABLE campaign_lists IS 'The lists from which recipients of campaigns came.';
COMMENT ON COLUMN campaign_lists.campaign_id IS 'campaigns.id.';
COMMENT ON COLUMN campaign_lists.number IS 'From 1, in the order of the imports.';
COMMENT ON COLUMN campaign_lists.name IS 'The file, the query, the campaign of a copy, or campaign_add().';
COMMENT ON COLUMN campaign_lists.first IS 'The first campaign_recipients.number.';
COMMENT ON COLUMN campaign_lists.last IS 'The last one.';
COMMENT ON COLUMN campaign_lists.imported_at IS 'When.';
COMMENT ON COLUMN campaign_lists.imported_by IS 'The login that imported it.';
INSERT INTO forget_columns (relation, names, way, condition) VALUES ('campaign_lists', '{name}', 'words', 'true');

CREATE FUNCTION campaign_list(campaign bigint, name text, first integer) RETURNS integer LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pgmta, pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    last CONSTANT integer := (SELECT max(r.number) FROM campaign_recipients AS r WHERE r.campaign_id = campaign);
    before campaign_lists;
BEGIN
    IF last IS NULL OR last < first THEN RETURN NULL; END IF;
    SELECT l.* INTO before FROM campaign_lists AS l WHERE l.campaign_id = campaign ORDER BY l.number DESC LIMIT 1;
    IF name = 'campaign_add()' AND before.name = name AND before.last = first - 1 AND before.imported_by = acting()::text THEN
        -- a program may add one recipient after the other
        UPDATE campaign_lists AS l SET last = last WHERE l.campaign_id = campaign AND l.number = before.number;
        RETURN before.number;
    END IF;
    INSERT INTO campaign_lists (campaign_id, number, name, first, last)
    VALUES (campaign, coalesce(before.number, 0) + 1, left(name, 500), first, last);
    RETURN coalesce(before.number, 0) + 1;
END $$;
COMMENT ON FUNCTION campaign_list IS
    'Notes the recipients from this number on as a list, and returns its number; null if there are none.';

CREATE FUNCTION campaign_import(campaign bigint) RETURNS integer LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pgmta, pg_catalog, pg_temp AS $$
BEGIN
    -- meanwhile the campaign may be stopped, and not deleted
    PERFORM FROM campaigns AS c WHERE c.id = campaign FOR KEY SHARE;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'there is no campaign %', campaign USING ERRCODE = 'no_data_found',
            HINT = 'The view campaign_statistics has them.';
    END IF;
    PERFORM pg_advisory_xact_lock_shared('campaign_templates'::regclass::oid::integer, (campaign & 2147483647)::integer);
    -- numbers of recipients that were taken out are not used again: a job has passed them
    RETURN greatest((SELECT max(r.number) FROM campaign_recipients AS r WHERE r.campaign_id = campaign),
        (SELECT max(j.last) FROM campaign_jobs AS j WHERE j.campaign_id = campaign),
        (SELECT max(l.last) FROM campaign_lists AS l WHERE l.campaign_id = campaign), 0);
END $$;
COMMENT ON FUNCTION campaign_import IS
    'Keeps a campaign and its template until the end of the transaction, which adds recipients, and returns the highest number '
    'that one of them had.';

-- without SET it becomes a part of its caller's query; its names are looked up once, here
CREATE FUNCTION campaign_words(params jsonb, words jsonb) RETURNS TABLE (found jsonb, problem text) STABLE LANGUAGE sql
BEGIN ATOMIC
    SELECT coalesce(jsonb_object_agg(name, text), '{}'),
        min(concat(name, ': ', fault) COLLATE "C") FILTER (WHERE fault IS NOT NULL)
    FROM jsonb_each(words - '{recipient,unsubscribe}'::text[]) AS wanted (name, places),
        LATERAL (SELECT CASE WHEN jsonb_typeof(params) = 'object' THEN params -> name END AS value) AS given,
        LATERAL (SELECT coalesce(value #>> '{}', '') AS text) AS written,
        LATERAL (SELECT CASE WHEN value IS NULL THEN 'a word is missing'
            WHEN jsonb_typeof(value) NOT IN ('string', 'number', 'boolean', 'null') THEN 'a word is no text, number or boolean'
            ELSE submit_word(text, places) END AS fault) AS judged;
END;
COMMENT ON FUNCTION campaign_words IS
    'The values that a template has words for, and why they don''t fit; null if they do. A null is an empty text.';

CREATE FUNCTION campaign_by_sms(
    campaign bigint, numbers bigint DEFAULT 0, mailboxes bigint DEFAULT 0, first boolean DEFAULT NULL)
RETURNS boolean LANGUAGE sql STABLE SET search_path = pgmta, pg_catalog, pg_temp
RETURN coalesce((SELECT r.domain = 'sms' FROM campaign_recipients AS r WHERE r.campaign_id = campaign ORDER BY r.number LIMIT 1),
    numbers > mailboxes OR numbers = mailboxes AND first);
COMMENT ON FUNCTION campaign_by_sms IS
    'Whether a campaign goes to telephone numbers: it has one kind, as it has one credential. Of one without recipients most '
    'of its first list decide, or `first`, whether the first of these is a number; null without a list.';

CREATE FUNCTION campaign_other_kind(by_sms boolean) RETURNS text IMMUTABLE PARALLEL SAFE
RETURN CASE WHEN by_sms THEN 'it is a mailbox, and the campaign goes to telephone numbers'
    ELSE 'it is a telephone number, and the campaign goes to mailboxes' END;
COMMENT ON FUNCTION campaign_other_kind IS 'What is wrong with a recipient of the other kind.';

CREATE FUNCTION campaign_add(campaign bigint, recipients text[], params jsonb[] DEFAULT NULL)
RETURNS TABLE (place integer, recipient text, problem text) LANGUAGE plpgsql SECURITY DEFINER
    -- a plan for each call, because lists differ in length
    SET search_path = pgmta, pg_catalog, pg_temp SET plan_cache_mode = force_custom_plan AS $$
#variable_conflict use_column
DECLARE
    base integer := campaign_import(campaign);
    by_sms boolean;
    owner campaigns;
    wanted jsonb;
    zones text[];
BEGIN
    SELECT c.* INTO owner FROM campaigns AS c WHERE c.id = campaign;
    SELECT t.words INTO wanted FROM templates AS t WHERE t.id = owner.template_id;
    IF recipients IS NULL OR array_ndims(recipients) > 1 OR array_ndims(params) > 1 THEN
        PERFORM submit_refuse('recipients', 'it is no list', NULL, 'Give a list: ARRAY[''bob@example.com''].');
    ELSIF params IS NOT NULL AND cardinality(params) <> cardinality(recipients) THEN
        PERFORM submit_refuse('params', 'there are not as many as recipients');
    END IF;
    IF owner.zone_column IS NOT NULL THEN zones := ARRAY(SELECT z FROM campaign_zones() AS z); END IF;
    SELECT campaign_by_sms(campaign, count(*) FILTER (WHERE n.number), count(*) FILTER (WHERE NOT n.number),
        (array_agg(n.number ORDER BY n.place))[1])
    INTO by_sms
    FROM (
        SELECT strpos(r.recipient, '@') = 0 AS number, r.place FROM unnest(recipients) WITH ORDINALITY AS r (recipient, place)
        WHERE r.recipient ~ '^[+]|@' COLLATE "C") AS n;
    RETURN QUERY
        WITH given AS MATERIALIZED (
            SELECT g.place::integer, g.recipient, g.domain, w.found, mailbox_key(g.recipient) AS key,
                CASE WHEN owner.zone_column IS NOT NULL THEN coalesce(z.name, owner.zone) END AS zone,
                CASE WHEN g.domain IS NULL THEN 'it is no mailbox'
                    WHEN (g.domain = 'sms') <> by_sms THEN campaign_other_kind(by_sms)
                    WHEN w.problem IS NOT NULL THEN w.problem
                    WHEN z.name IS NULL AND l.zone <> '' THEN concat(owner.zone_column, ': there is no such time zone')
                    WHEN octet_length(w.found::text) > 65536 THEN 'the words are over 65536 octets' END AS fault
            FROM (
                SELECT *, mailbox_domain(recipient COLLATE "C") AS domain
                FROM unnest(recipients, params) WITH ORDINALITY AS l (recipient, params, place) OFFSET 0
            ) AS g
            CROSS JOIN LATERAL campaign_words(coalesce(g.params, '{}'), wanted) AS w
            CROSS JOIN LATERAL (SELECT lower(btrim(g.params ->> owner.zone_column) COLLATE "C") AS zone OFFSET 0) AS l
            LEFT JOIN unnest(zones) AS z (name) ON lower(z.name COLLATE "C") = l.zone
        ), known AS MATERIALIZED (
            SELECT DISTINCT g.key FROM given AS g JOIN campaign_recipients AS r ON mailbox_key(r.recipient) = g.key
            WHERE r.campaign_id = campaign
        ), judged AS MATERIALIZED (
            SELECT g.place, g.recipient, g.domain, g.found, g.zone, coalesce(g.fault, CASE
                WHEN k.key IS NOT NULL THEN 'the campaign has it already'
                WHEN row_number() OVER (PARTITION BY g.fault IS NULL, g.key ORDER BY g.place) > 1
                    THEN 'it is there twice' END) AS fault
            FROM given AS g LEFT JOIN known AS k ON k.key = g.key
        ), fit AS MATERIALIZED (
            SELECT j.recipient, j.domain, j.found, j.zone, row_number() OVER (ORDER BY j.place) AS n
            FROM judged AS j WHERE j.fault IS NULL
        ), added AS (
            INSERT INTO campaign_recipients (campaign_id, number, recipient, domain, params, state, error_code, zone)
            SELECT campaign, base + f.n, f.recipient, f.domain, f.found, CASE WHEN s.suppressed THEN 'invalid' ELSE 'unsent' END,
                CASE WHEN s.suppressed THEN 'suppressed' END, f.zone
            FROM fit AS f
            JOIN unnest(suppressed(owner.tenant, owner.scope, ARRAY(SELECT o.recipient FROM fit AS o ORDER BY o.n)))
                WITH ORDINALITY AS s (suppressed, n) USING (n)
            ORDER BY f.n
        )
        SELECT j.place, j.recipient, j.fault FROM judged AS j WHERE j.fault IS NOT NULL ORDER BY j.place;
    PERFORM campaign_list(campaign, 'campaign_add()', base + 1);
END $$;
COMMENT ON FUNCTION campaign_add IS
    'Adds recipients to a campaign, with values for the words of its template, and returns those that it left out. What is '
    'suppressed is added as invalid. Keys of `params` without a word are left out, but for campaigns.zone_column.';

CREATE FUNCTION campaign_test(campaign bigint, recipient text, params jsonb DEFAULT '{}') RETURNS bigint LANGUAGE plpgsql
    SECURITY DEFINER SET search_path = pgmta, pg_catalog, pg_temp SET standard_conforming_strings = on AS $$
#variable_conflict use_variable
DECLARE
    owner campaigns;
    template templates;
    message_id bigint := next_message_id();
    hostname text := (SELECT s.hostname FROM submit_settings AS s);
    domain text := mailbox_domain(recipient COLLATE "C");
    fit record;
    composed jsonb;
BEGIN
    PERFORM campaign_import(campaign);
    SELECT c.* INTO owner FROM campaigns AS c WHERE c.id = campaign;
    SELECT t.* INTO template FROM templates AS t WHERE t.id = owner.template_id;
    SELECT * INTO fit FROM campaign_words(params, template.words);
    IF domain IS NULL THEN
        PERFORM submit_refuse('recipient', 'it is no mailbox');
    ELSIF (domain = 'sms') <> campaign_by_sms(campaign) THEN
        PERFORM submit_refuse('recipient', campaign_other_kind(domain <> 'sms'));
    ELSIF fit.problem IS NOT NULL OR octet_length(fit.found::text) > 65536 THEN
        PERFORM submit_refuse('params', coalesce(fit.problem, 'the words are over 65536 octets'));
    END IF;
    composed := jsonb_build_object('to', jsonb_build_array(jsonb_build_array('', recipient)), 'words', fit.found
            || CASE WHEN template.words ? 'recipient' THEN jsonb_build_object('recipient', recipient) ELSE '{}' END)
        -- no recipient has this number, so the link of a test unsubscribes none
        || CASE WHEN owner.scope <> '' OR template.words ? 'unsubscribe'
            THEN jsonb_build_object('unsubscribe', jsonb_build_object('campaign', campaign, 'number', 0)) ELSE '{}' END;
    PERFORM queue_put(ARRAY[campaign_message(owner, message_id, recipient, composed, hostname)],
        ARRAY[new_row(1, recipient, domain,
        campaign_metadata(owner, EXISTS (SELECT FROM budgets AS b WHERE b.key = 'credential:' || owner.credential))
            || '{"_exempt": "test"}')]);
    PERFORM pgmta.notify_channel('pgmta_queue');
    RETURN message_id;
END $$;
COMMENT ON FUNCTION campaign_test IS
    'Puts one mail of a campaign into the queue that counts for no recipient, and returns its id for status(). It goes out as '
    'all mail of the campaign does: with its credential, at its rate. It goes to suppressed addresses too.';

INSERT INTO rights (object, role, privileges) VALUES
    ('FUNCTION campaign_by_sms', 'pgmta_operator', 'EXECUTE'),
    ('FUNCTION campaign_other_kind', 'pgmta_operator', 'EXECUTE'),
    ('campaign_lists', 'pgmta_operator', 'SELECT'),
    ('campaign_lists', 'pgmta_reader', 'SELECT'),
    ('FUNCTION campaign_list', 'pgmta_operator', 'EXECUTE'),
    ('FUNCTION campaign_import', 'pgmta_operator', 'EXECUTE'),
    ('FUNCTION campaign_add', 'pgmta_operator', 'EXECUTE'),
    ('FUNCTION campaign_test', 'pgmta_operator', 'EXECUTE');

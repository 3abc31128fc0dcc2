-- Campaigns are changed: another template, recipients taken out, a copy.

CREATE FUNCTION campaign_keep_unfed(campaign campaigns) RETURNS boolean LANGUAGE plpgsql
    SET search_path = pgmta, pg_catalog, pg_temp AS $$
DECLARE
    mine boolean;
BEGIN
    -- Who takes a job makes this row, and who feeds has locked it. Jobs are not locked here: who feeds waits for them.
    INSERT INTO credential_use (credential, campaign_id) VALUES (campaign.credential, campaign.id)
    ON CONFLICT ON CONSTRAINT credential_use_pkey DO NOTHING;
    mine := FOUND;
    PERFORM FROM credential_use AS u WHERE u.credential = campaign.credential FOR UPDATE;
    -- freed just now
    IF NOT FOUND THEN RETURN campaign_keep_unfed(campaign); END IF;
    RETURN mine;
END $$;
COMMENT ON FUNCTION campaign_keep_unfed IS
    'Waits for the end of a feed of a campaign, which the caller has locked, and keeps others from it until the commit. If it '
    'returns true, the caller has to end that by campaign_let_feed().';

CREATE FUNCTION campaign_let_feed(campaign campaigns, mine boolean) RETURNS void LANGUAGE sql
    SET search_path = pgmta, pg_catalog, pg_temp
    AS $$ DELETE FROM credential_use AS u WHERE mine AND u.credential = campaign.credential $$;
COMMENT ON FUNCTION campaign_let_feed IS 'Gives back, with the commit, a credential that campaign_keep_unfed() took.';

CREATE FUNCTION campaign_exchange(campaign bigint, template text, version integer DEFAULT NULL, reason text DEFAULT NULL)
RETURNS bigint LANGUAGE plpgsql SECURITY DEFINER SET search_path = pgmta, pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    owner campaigns := campaign_lock(campaign);
    found templates := campaign_template(template, version, owner.tenant);
    lacking record;
    mine boolean;
BEGIN
    -- no list that was checked for the other template comes meanwhile
    PERFORM pg_advisory_xact_lock('campaign_templates'::regclass::oid::integer, (campaign & 2147483647)::integer);
    IF found.id = owner.template_id THEN
        PERFORM submit_refuse('template', 'the campaign has this version of it', NULL, '`queuectl template list` has all.');
    ELSIF reason IS NULL AND EXISTS (SELECT FROM campaign_jobs AS j WHERE j.campaign_id = campaign) THEN
        PERFORM submit_refuse('reason', 'the campaign was started, so there has to be one', NULL, 'Give it in a line.');
    ELSIF length(reason) NOT BETWEEN 1 AND 500 OR reason ~ '[[:cntrl:]]' THEN
        PERFORM submit_refuse('reason', 'it is no line of up to 500 characters', NULL, 'Give it in a line.');
    ELSIF found.body IS NULL AND campaign_by_sms(campaign) THEN
        PERFORM submit_refuse('template', 'it has no plain text, which is the SMS');
    END IF;
    -- all but forgotten persons: a provider may report a failure of sent mail later, which a retry takes, and a copy has all
    SELECT r.number, w.problem INTO lacking
    FROM campaign_recipients AS r, LATERAL campaign_words(r.params, found.words) AS w
    WHERE r.campaign_id = campaign AND r.recipient <> '' AND w.problem IS NOT NULL
    ORDER BY r.number LIMIT 1;
    IF lacking.number IS NOT NULL THEN
        PERFORM submit_refuse('template', format('%s (recipient %s)', lacking.problem, lacking.number), NULL,
            'A new campaign with a list that has the words can send it.');
    END IF;
    mine := campaign_keep_unfed(owner);
    -- a sender of its own stays
    UPDATE campaigns AS c SET template_id = found.id,
        sender = CASE c.sender WHEN t.sender THEN found.sender ELSE c.sender END
    FROM templates AS t WHERE c.id = campaign AND t.id = c.template_id;
    INSERT INTO campaign_templates (campaign_id, first_message, template_id, reason)
    VALUES (campaign, next_message_id(), found.id, reason);
    PERFORM campaign_let_feed(owner, mine);
    RETURN coalesce((SELECT s.unsent FROM campaign_sums AS s WHERE s.campaign_id = campaign), 0);
END $$;
COMMENT ON FUNCTION campaign_exchange IS
    'Gives a campaign another template, or version of one, for all mail that is not in the queue yet, and returns how many '
    'recipients are unsent. After the start there has to be a reason. It is refused if a recipient lacks one of its words.';

CREATE FUNCTION campaign_remove(
    campaign bigint, recipients text[] DEFAULT NULL, list integer DEFAULT NULL, OUT removed bigint, OUT kept bigint
) LANGUAGE plpgsql SECURITY DEFINER SET search_path = pgmta, pg_catalog, pg_temp
    SET enable_hashjoin = off SET enable_mergejoin = off SET plan_cache_mode = force_custom_plan AS $$
#variable_conflict use_variable
DECLARE
    owner campaigns := campaign_lock(campaign);
    lists integer := (SELECT max(l.number) FROM campaign_lists AS l WHERE l.campaign_id = campaign);
    numbers integer[];
    first integer;
    last integer;
    absent text;
    rows bigint[];
    withdrawn integer[];
    mine boolean;
BEGIN
    IF num_nonnulls(recipients, list) <> 1 THEN
        PERFORM submit_refuse('recipients', 'give either these, or the number of a list');
    ELSIF recipients = '{}' THEN
        PERFORM submit_refuse('recipients', 'give at least one');
    ELSIF list IS NOT NULL THEN
        SELECT l.first, l.last INTO first, last FROM campaign_lists AS l WHERE l.campaign_id = campaign AND l.number = list;
        IF first IS NULL THEN
            PERFORM submit_refuse('list', format('the campaign has no list %s', list), NULL,
                CASE WHEN lists IS NULL THEN 'It has none.'
                ELSE format('It has the lists 1 to %s.', lists) END);
        END IF;
    ELSE
        WITH wanted AS MATERIALIZED (
            SELECT w.address,
                mailbox_key(coalesce(row_address(w.address, mailbox_domain(w.address COLLATE "C")), w.address)) AS key
            FROM unnest(recipients) AS w (address)
        ), found AS MATERIALIZED (
            SELECT r.number, mailbox_key(r.recipient) AS key FROM campaign_recipients AS r
            WHERE r.campaign_id = campaign AND mailbox_key(r.recipient) = ANY (ARRAY(SELECT w.key FROM wanted AS w))
        )
        SELECT array_agg(f.number), min(f.number), max(f.number),
            (SELECT w.address FROM wanted AS w WHERE NOT EXISTS (SELECT FROM found AS f WHERE f.key = w.key) LIMIT 1)
        INTO numbers, first, last, absent FROM found AS f;
        IF absent IS NOT NULL OR numbers IS NULL THEN
            PERFORM submit_refuse('recipients', 'the campaign has no such recipient', to_json(left(absent, 254))::text,
                '`queuectl campaign export` has all.');
        END IF;
    END IF;
    mine := campaign_keep_unfed(owner);
    -- mail in flight ends; a row that is locked is of a worker
    SELECT array_agg(w.id), array_agg(w.number) INTO rows, withdrawn FROM (
        SELECT q.id, r.number FROM campaign_recipients AS r JOIN queue AS q ON q.message_id = r.message_id
        WHERE r.campaign_id = campaign AND r.number BETWEEN first AND last AND (numbers IS NULL OR r.number = ANY (numbers))
            AND r.state IN ('queued', 'deferred') AND q.lease_token IS NULL AND q.status IN ('QUEUED', 'DEFERRED', 'HOLD')
        FOR UPDATE OF q SKIP LOCKED) AS w;
    IF rows IS NOT NULL THEN
        PERFORM rows_log(rows, 'cancelled', acting()::text, 'the recipient was taken out of the campaign');
        DELETE FROM queue AS q WHERE q.id = ANY (rows);
    END IF;
    DELETE FROM campaign_recipients AS r
    WHERE r.campaign_id = campaign AND r.number BETWEEN first AND last AND (numbers IS NULL OR r.number = ANY (numbers))
        -- one who had mail of an earlier attempt is kept, for the facts about it
        AND (r.state IN ('unsent', 'invalid') AND NOT (r.bounced OR r.unsubscribed OR r.complained)
            OR r.state IN ('queued', 'deferred') AND r.number = ANY (withdrawn));
    GET DIAGNOSTICS removed = ROW_COUNT;
    PERFORM campaign_let_feed(owner, mine);
    SELECT count(*) INTO kept FROM campaign_recipients AS r
    WHERE r.campaign_id = campaign AND r.number BETWEEN first AND last AND (numbers IS NULL OR r.number = ANY (numbers));
END $$;
COMMENT ON FUNCTION campaign_remove IS
    'Takes recipients, or all of a list, out of a campaign: those who had no mail, and those whose mail waits, which is '
    'withdrawn first. Returns how many, and how many stay because their mail is in flight, or was sent.';

CREATE FUNCTION campaign_copy(
    campaign bigint, name text, states text[] DEFAULT NULL, recipients boolean DEFAULT true, visible_at timestamptz DEFAULT NULL,
    deadline timestamptz DEFAULT NULL, present timestamptz DEFAULT clock_timestamp()
) RETURNS bigint LANGUAGE plpgsql SECURITY DEFINER SET search_path = pgmta, pg_catalog, pg_temp
    SET plan_cache_mode = force_custom_plan AS $$
#variable_conflict use_variable
DECLARE
    known CONSTANT text[] := '{unsent,queued,deferred,sent,failed,invalid,unknown}';
    strange CONSTANT text := (SELECT s FROM unnest(states) AS s WHERE s <> ALL (known) LIMIT 1);
    given campaigns;
    made bigint;
BEGIN
    IF strange IS NOT NULL THEN
        PERFORM submit_refuse('states', concat('there is no state ', to_json(left(strange, 64))), NULL,
            coalesce('Did you mean ' || nearest_word(strange, known) || '?',
                'There is ' || array_to_string(known, ', ') || '.'));
    END IF;
    PERFORM campaign_import(campaign);
    SELECT c.* INTO given FROM campaigns AS c WHERE c.id = campaign;
    given.name := name;
    given.visible_at := visible_at;
    given.deadline := deadline;
    made := campaign_make(given, present);
    IF recipients THEN
        WITH chosen AS MATERIALIZED (
            SELECT r.recipient, r.domain, r.params, r.zone, row_number() OVER (ORDER BY r.number) AS n
            FROM campaign_recipients AS r
            -- not the line of a forgotten person
            WHERE r.campaign_id = campaign AND r.recipient <> '' AND (states IS NULL OR r.state = ANY (states))
        )
        INSERT INTO campaign_recipients (campaign_id, number, recipient, domain, params, zone, state, error_code)
        SELECT made, c.n, c.recipient, c.domain, c.params, c.zone, CASE WHEN s.suppressed THEN 'invalid' ELSE 'unsent' END,
            CASE WHEN s.suppressed THEN 'suppressed' END
        FROM chosen AS c
        JOIN unnest(suppressed(given.tenant, given.scope, ARRAY(SELECT o.recipient FROM chosen AS o ORDER BY o.n)))
            WITH ORDINALITY AS s (suppressed, n) USING (n)
        ORDER BY c.n;
        PERFORM campaign_list(made, concat('copy of ', (SELECT c.name FROM campaigns AS c WHERE c.id = campaign)), 1);
    END IF;
    RETURN made;
END $$;
COMMENT ON FUNCTION campaign_copy IS
    'Makes a campaign as another one is, with its recipients in these states, or all, and returns its id. Its times are given '
    'anew. Who is suppressed by now is invalid.';

INSERT INTO rights (object, role, privileges) VALUES
    ('FUNCTION campaign_exchange', 'pgmta_operator', 'EXECUTE'),
    ('FUNCTION campaign_remove', 'pgmta_operator', 'EXECUTE'),
    ('FUNCTION campaign_copy', 'pgmta_operator', 'EXECUTE');

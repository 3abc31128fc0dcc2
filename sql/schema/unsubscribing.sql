-- Suppressions and campaigns: mail that waits is withdrawn, and recipients who unsubscribe or bounce.

CREATE INDEX campaign_recipients_waiting ON campaign_recipients (suppression_address(recipient))
    WHERE state IN ('queued', 'deferred');
COMMENT ON INDEX campaign_recipients_waiting IS 'A suppression finds the mail that waits for its address.';

CREATE FUNCTION suppressions_withdraw(addresses text[], tenants text[], scopes text[]) RETURNS integer LANGUAGE plpgsql
    SET search_path = pgmta, pg_catalog, pg_temp SET plan_cache_mode = force_custom_plan AS $$
DECLARE
    found record;
    withdrawn integer := 0;
BEGIN
    FOR found IN
        SELECT DISTINCT r.campaign_id, r.number, r.message_id
        FROM unnest(addresses, tenants, scopes) AS s (address, tenant, scope)
        JOIN campaign_recipients AS r ON suppression_address(r.recipient) = s.address AND r.state IN ('queued', 'deferred')
        JOIN campaigns AS c ON c.id = r.campaign_id AND s.tenant IN (c.tenant, '*') AND s.scope IN (c.scope, '')
        ORDER BY 3
    LOOP
        -- who settles a row may wait for the suppression of this transaction, and so must not be waited for
        withdrawn := withdrawn + withdraw(found.message_id, 'suppressed', 'suppressed', skip_locked => true);
        -- one in flight is settled by its outcome
        UPDATE campaign_recipients AS r SET state = 'invalid', error_code = 'suppressed', message_id = NULL
        WHERE r.campaign_id = found.campaign_id AND r.number = found.number AND r.message_id = found.message_id
            AND r.state IN ('queued', 'deferred')
            AND NOT EXISTS (SELECT FROM queue AS q WHERE q.message_id = found.message_id);
    END LOOP;
    RETURN withdrawn;
END $$;
COMMENT ON FUNCTION suppressions_withdraw IS
    'Withdraws mail of campaigns that waits for suppressed addresses. An attempt whose transaction has not begun does not '
    'begin any more. A row that another transaction has locked is left to campaign_withdraw(), or to its next attempt, which '
    'is refused. Returns the number of rows that left the queue.';

CREATE FUNCTION unsubscribe(campaign bigint, number integer) RETURNS boolean LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pgmta, pg_catalog, pg_temp AS $$
DECLARE
    found record;
BEGIN
    SELECT c.tenant, c.scope, r.recipient INTO found
    FROM campaigns AS c LEFT JOIN campaign_recipients AS r
        ON r.campaign_id = c.id AND r.number = unsubscribe.number
    WHERE c.id = unsubscribe.campaign;
    IF found IS NULL OR (found.recipient IS NULL AND unsubscribe.number > 0) THEN RETURN false; END IF;
    -- number 0 is a test message; a person who had to be forgotten has no address here
    IF found.recipient <> '' THEN
        PERFORM suppressions_put(ARRAY[found.recipient], ARRAY[found.tenant], ARRAY[found.scope], ARRAY['unsubscribed'],
            ARRAY['campaign ' || unsubscribe.campaign]);
    ELSE
        PERFORM prove_earlier();
    END IF;
    RETURN true;
END $$;
COMMENT ON FUNCTION unsubscribe IS
    'Suppresses the address of a campaign''s recipient, for its tenant and scope. Returns false if there is no such '
    'recipient. The caller has verified a token that names both numbers.';

CREATE FUNCTION campaign_bounced() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pgmta, pg_catalog, pg_temp SET enable_hashjoin = on AS $$
BEGIN
    -- one call for all, because it suppresses in an order that all sessions have
    PERFORM suppressions_put(array_agg(r.recipient), array_agg(c.tenant), array_agg(''::text), array_agg('bounced'::text),
        array_agg('campaign ' || c.id))
    FROM after AS r JOIN before AS b USING (campaign_id, number) JOIN campaigns AS c ON c.id = r.campaign_id
    WHERE r.bounced AND NOT b.bounced AND r.recipient <> ''
    HAVING count(*) > 0;
    RETURN NULL;
END $$;
COMMENT ON FUNCTION campaign_bounced IS 'Suppresses addresses that do not exist, for all scopes of their tenants.';
CREATE TRIGGER campaign_bounced AFTER UPDATE ON campaign_recipients REFERENCING OLD TABLE AS before NEW TABLE AS after
    FOR EACH STATEMENT EXECUTE FUNCTION campaign_bounced();
COMMENT ON TRIGGER campaign_bounced ON campaign_recipients IS
    'Whoever marks a hard bounce suppresses, whether it came with the answer or later.';

CREATE FUNCTION returned_facts(message bigint, recipient text, tenant text, metadata jsonb, bounced boolean, complaint boolean)
RETURNS void LANGUAGE plpgsql SET search_path = pgmta, pg_catalog, pg_temp AS $$
DECLARE
    path bigint[] := campaign_path(metadata);
BEGIN
    IF bounced THEN
        UPDATE campaign_recipients AS r SET bounced = true
        WHERE r.campaign_id = path[1] AND r.number = path[2] AND NOT r.bounced AND r.recipient = returned_facts.recipient;
    END IF;
    -- mail by SQL may have anything there, and a refusal would keep what came back
    PERFORM suppressions_put(ARRAY[recipient], ARRAY[tenant], ARRAY[''],
        ARRAY[CASE WHEN complaint THEN 'complained' ELSE 'bounced' END],
        ARRAY[coalesce('campaign ' || path[1], 'message ' || message)])
    WHERE mailbox_domain(recipient COLLATE "C") IS NOT NULL;
END $$;
COMMENT ON FUNCTION returned_facts IS
    'Suppresses the recipient of a message that came back for good, or about which its recipient complained, and marks '
    'a recipient of a campaign. The message was named by a VERP address of ours.';

CREATE FUNCTION campaign_complaint(campaign bigint, number integer) RETURNS boolean LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pgmta, pg_catalog, pg_temp AS $$
BEGIN
    PERFORM suppressions_put(ARRAY[r.recipient], ARRAY[c.tenant], ARRAY[''], ARRAY['complained'], ARRAY['campaign ' || c.id])
    FROM campaigns AS c JOIN campaign_recipients AS r ON r.campaign_id = c.id
    WHERE c.id = campaign AND r.number = campaign_complaint.number AND r.recipient <> '';
    RETURN FOUND;
END $$;
COMMENT ON FUNCTION campaign_complaint IS
    'Suppresses the address of a campaign''s recipient who complained, for all scopes of its tenant. The caller has '
    'verified a token that names both numbers.';

INSERT INTO rights (object, role, privileges) VALUES
    ('FUNCTION campaign_complaint', 'pgmta_queued', 'EXECUTE'),
    ('FUNCTION unsubscribe', 'pgmta_web', 'EXECUTE');

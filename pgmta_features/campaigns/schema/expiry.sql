-- Campaigns and their recipients are kept for a time, and go in batches.

CREATE FUNCTION campaign_over(campaign bigint, age interval) RETURNS boolean LANGUAGE sql STABLE
    SET search_path = pgmta, pg_catalog, pg_temp AS $$
    SELECT c.created_at < now() - age AND coalesce(c.visible_at < now() - age, true) AND NOT EXISTS (
        SELECT FROM campaign_jobs AS j
        WHERE j.campaign_id = c.id AND (j.status <> 'LOGGED' OR j.changed_at >= now() - age))
    FROM campaigns AS c WHERE c.id = campaign
$$;
COMMENT ON FUNCTION campaign_over IS 'Whether nothing has happened in a campaign for that long, and nothing will by itself.';

CREATE FUNCTION recipients_expire(age interval, batch integer) RETURNS integer LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pgmta, pg_catalog, pg_temp SET jit = off AS $$
DECLARE
    campaign bigint;
    removed integer;
BEGIN
    FOR campaign IN
        SELECT c.id FROM campaigns AS c
        -- campaigns whose recipients are gone are left out; by min(), because EXISTS may read the whole table
        WHERE (SELECT min(r.number) FROM campaign_recipients AS r WHERE r.campaign_id = c.id) > 0 AND campaign_over(c.id, age)
        ORDER BY c.id
    LOOP
        DELETE FROM campaign_recipients AS r WHERE r.campaign_id = campaign AND r.number = ANY (ARRAY(
            SELECT o.number FROM campaign_recipients AS o WHERE o.campaign_id = campaign
            ORDER BY o.number LIMIT batch FOR UPDATE SKIP LOCKED));
        GET DIAGNOSTICS removed = ROW_COUNT;
        IF removed > 0 THEN RETURN removed; END IF;
    END LOOP;
    RETURN 0;
END $$;
COMMENT ON FUNCTION recipients_expire IS
    'Removes one batch of recipients of campaigns that are over for so long, and returns how many. The totals stay.';

CREATE FUNCTION campaigns_expire(age interval, batch integer) RETURNS integer LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pgmta, pg_catalog, pg_temp SET jit = off AS $$
DECLARE
    campaigns_gone bigint[];
BEGIN
    campaigns_gone := ARRAY(
        SELECT c.id FROM campaigns AS c
        WHERE campaign_over(c.id, age)
            AND NOT EXISTS (SELECT FROM campaign_recipients AS r WHERE r.campaign_id = c.id)
        ORDER BY c.id LIMIT batch FOR UPDATE SKIP LOCKED);
    DELETE FROM campaign_jobs AS j WHERE j.campaign_id = ANY (campaigns_gone);
    DELETE FROM campaign_counts AS n WHERE n.campaign_id = ANY (campaigns_gone);
    DELETE FROM credential_use AS u WHERE u.campaign_id = ANY (campaigns_gone);
    DELETE FROM campaigns AS c WHERE c.id = ANY (campaigns_gone);
    RETURN cardinality(campaigns_gone);
END $$;
COMMENT ON FUNCTION campaigns_expire IS
    'Removes campaigns whose recipients are gone and that are over for so long; returns how many.';

INSERT INTO rights (object, role, privileges) VALUES
    ('FUNCTION recipients_expire', 'pgmta_queued', 'EXECUTE'),
    ('FUNCTION campaigns_expire', 'pgmta_queued', 'EXECUTE');

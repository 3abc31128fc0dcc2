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
    changes campaign_change[];
BEGIN
    FOR campaign IN
        SELECT c.id FROM campaigns AS c
        -- campaigns whose recipients are gone are left out; by min(), because EXISTS may read the whole table
        WHERE (SELECT min(r.number) FROM campaign_recipients AS r WHERE r.campaign_id = c.id) > 0 AND campaign_over(c.id, age)
        ORDER BY c.id
    LOOP
        WITH gone AS (
            DELETE FROM campaign_recipients AS r WHERE r.campaign_id = campaign AND r.number = ANY (ARRAY(
                SELECT o.number FROM campaign_recipients AS o WHERE o.campaign_id = campaign
                ORDER BY o.number LIMIT batch FOR UPDATE SKIP LOCKED))
            RETURNING r.state, r.bounced, r.unsubscribed, r.complained, coalesce(r.error_code, '') AS error_code,
                coalesce(r.error_sub_type, '') AS error_sub_type
        ), kept AS (
            INSERT INTO campaign_expired_failures AS f (campaign_id, state, error_code, error_sub_type, number)
            SELECT campaign, g.state, g.error_code, g.error_sub_type, count(*) FROM gone AS g
            WHERE g.state IN ('failed', 'invalid', 'unknown', 'deferred') GROUP BY g.state, g.error_code, g.error_sub_type
            ON CONFLICT ON CONSTRAINT campaign_expired_failures_pkey DO UPDATE SET number = f.number + excluded.number
        )
        SELECT array_agg((campaign, s.state, s.bounced, s.unsubscribed, s.complained, s.number)::campaign_change), sum(s.number)
        INTO changes, removed
        FROM (
            SELECT g.state, g.bounced, g.unsubscribed, g.complained, count(*) AS number FROM gone AS g
            GROUP BY g.state, g.bounced, g.unsubscribed, g.complained) AS s;
        IF removed > 0 THEN
            PERFORM campaign_count(changes);  -- the trigger took them off
            RETURN removed;
        END IF;
    END LOOP;
    RETURN 0;
END $$;
COMMENT ON FUNCTION recipients_expire IS
    'Removes one batch of recipients of campaigns that are over for so long, and returns how many. Their sums stay.';

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

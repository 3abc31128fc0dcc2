-- Windows: the hours and days on which mail of a campaign may begin.

CREATE FUNCTION campaign_zone(zone text) RETURNS text LANGUAGE plpgsql STABLE SET search_path = pgmta, pg_catalog, pg_temp AS $$
DECLARE
    -- not all that PostgreSQL takes: FOO5 is five hours behind UTC for it
    known CONSTANT text[] := ARRAY(SELECT n.name FROM campaign_zones() AS n (name));
    found CONSTANT text := (SELECT n FROM unnest(known) AS n WHERE lower(n COLLATE "C") = lower(zone COLLATE "C") LIMIT 1);
    near CONSTANT text := CASE WHEN found IS NULL
        THEN nearest_word(zone, ARRAY(SELECT lower(n COLLATE "C") FROM unnest(known) AS n)) END;
BEGIN
    IF found IS NULL THEN
        PERFORM submit_refuse('zone', concat('there is no time zone ', to_json(left(zone, 64))), NULL, coalesce(
            'Did you mean ' || (SELECT n FROM unnest(known) AS n WHERE lower(n COLLATE "C") = near LIMIT 1) || '?',
            'The view pg_timezone_names has them.'));
    END IF;
    RETURN found;
END $$;
COMMENT ON FUNCTION campaign_zone IS 'The name of a time zone, in any case, as PostgreSQL spells it. It refuses an unknown one.';

CREATE FUNCTION campaign_zones() RETURNS SETOF text LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
    AS $$ SELECT z.name FROM pg_timezone_names AS z WHERE z.name !~ '^(posix|right)/' ORDER BY z.name $$;
COMMENT ON FUNCTION campaign_zones IS 'The names of time zones, which PostgreSQL reads from files each time.';

CREATE FUNCTION campaign_window(
    campaign campaigns, zone text, present timestamptz, OUT opens_at timestamptz, OUT closes_at timestamptz)
LANGUAGE plpgsql STABLE SET search_path = pgmta, pg_catalog, pg_temp AS $$
BEGIN
    IF campaign.opens IS NULL THEN RETURN; END IF;
    -- a week on only one day, and once more if the clock skips its hours there
    SELECT w.opens_at, w.closes_at INTO opens_at, closes_at
    FROM generate_series(-1, 15) AS n, LATERAL (SELECT (present AT TIME ZONE zone)::date + n AS day) AS d,
        LATERAL (SELECT (d.day + campaign.opens) AT TIME ZONE zone AS opens_at,
            (d.day + (campaign.closes < campaign.opens)::integer + campaign.closes) AT TIME ZONE zone AS closes_at) AS w
    WHERE extract(isodow FROM d.day) = ANY (campaign.days) AND w.opens_at < w.closes_at AND w.closes_at > present
    ORDER BY w.opens_at LIMIT 1;
EXCEPTION WHEN invalid_parameter_value THEN  -- an error would keep all other campaigns back
    opens_at := 'infinity';
    closes_at := 'infinity';
END $$;
COMMENT ON FUNCTION campaign_window IS
    'The window of a campaign that is open at a time, or the next one; null if it has none, infinity if the server no longer '
    'knows the time zone. A time that the clock skips is that of an hour later, and one that it has twice is the second one.';

CREATE FUNCTION campaign_refuse_closed(campaign campaigns, zone text, present timestamptz) RETURNS void LANGUAGE plpgsql STABLE
    SET search_path = pgmta, pg_catalog, pg_temp AS $$
DECLARE
    next CONSTANT timestamptz := (campaign_window(campaign, zone, greatest(present, campaign.visible_at))).opens_at;
BEGIN
    IF next >= campaign.deadline THEN
        PERFORM submit_refuse('deadline', concat('the hours of the campaign in ', zone, ' do not begin before it'), NULL, concat(
            'They begin at ', to_char(next, 'YYYY-MM-DD HH24:MI:SSTZHTZM'), '.'));
    END IF;
END $$;
COMMENT ON FUNCTION campaign_refuse_closed IS 'Raises an error if the window of a campaign never opens before its deadline.';

INSERT INTO rights (object, role, privileges) VALUES
    ('FUNCTION campaign_zones', 'pgmta_operator', 'EXECUTE'),
    ('FUNCTION campaign_window', 'pgmta_operator', 'EXECUTE'),
    ('FUNCTION campaign_window', 'pgmta_reader', 'EXECUTE');

-- Budgets of routes: a share of a rate, bursts.

ALTER TABLE budgets ADD burst double precision NOT NULL DEFAULT 1
    CONSTRAINT budgets_burst CHECK (burst >= 1 AND burst <= 1000000);
-- the distance of two times has to be an interval
ALTER TABLE budgets DROP CONSTRAINT budgets_rate;
UPDATE budgets SET rate = greatest(rate, 0.000001);
ALTER TABLE budgets ADD CONSTRAINT budgets_rate CHECK (rate >= 0.000001 AND rate <= 100000);
COMMENT ON CONSTRAINT budgets_rate ON budgets IS 'From 0.000001 to 100,000.';
COMMENT ON COLUMN budgets.key IS 'Name: collector:NAME, credential:NAME, or route:NAME:VALUE of shaping.yaml.';
COMMENT ON COLUMN budgets.burst IS 'So many at once after a pause; 1: none.';
COMMENT ON CONSTRAINT budgets_burst ON budgets IS 'From 1 to 1,000,000.';

DROP FUNCTION budget_reserve(text, integer, interval, boolean);

CREATE FUNCTION budget_reserve(
    key text, wanted integer, ahead interval DEFAULT interval '1 second', together boolean DEFAULT false,
    pace double precision DEFAULT 1,
    OUT first timestamptz, OUT number integer, OUT step interval
) LANGUAGE plpgsql SECURITY DEFINER SET search_path = pgmta, pg_catalog, pg_temp AS $$
DECLARE
    budget budgets;
    present timestamptz;
    this_month date;
BEGIN
    SELECT * INTO budget FROM budgets AS b WHERE b.key = budget_reserve.key FOR UPDATE;
    IF budget.key IS NULL THEN
        RAISE EXCEPTION 'there is no budget %', to_json(left(key, 100)) USING ERRCODE = 'no_data_found',
            HINT = coalesce('There is ' || (SELECT string_agg(b.key, ', ' ORDER BY b.key) FROM budgets AS b) || '.',
                'budget_set() makes one.');
    END IF;
    budget.rate := budget.rate * pace;
    present := clock_timestamp();  -- behind the lock
    this_month := date_trunc('month', present AT TIME ZONE 'UTC');
    IF budget.month <> this_month THEN
        -- a clock that goes back to an earlier month gives no second sum
        budget.month_used := CASE WHEN this_month > budget.month THEN 0 ELSE budget.month_used END;
        budget.month := greatest(this_month, budget.month);
    END IF;
    -- the first time of a burst can be used until `ahead`, for a new connection
    first := greatest(budget.next_at, present + least(ahead - make_interval(secs => (budget.burst - 1) / budget.rate), '0'));
    step := make_interval(secs => 1 / budget.rate);
    number := greatest(least(wanted, budget.month_most - budget.month_used), 0);
    IF number = 0 AND wanted > 0 THEN
        first := greatest(first, (budget.month + interval '1 month') AT TIME ZONE 'UTC');
        RETURN;
    ELSIF first > present + ahead THEN
        number := 0;
        RETURN;
    ELSIF NOT together THEN
        number := least(number, 1 + floor(extract(epoch FROM present + ahead - first) * budget.rate)::integer);
    END IF;
    UPDATE budgets AS b SET next_at = first + make_interval(secs => number / budget.rate),
        month = budget.month, month_used = budget.month_used + number
    WHERE b.key = budget.key;
END $$;
COMMENT ON FUNCTION budget_reserve IS
    'Reserves the next times of a budget, at most `wanted`, none later than `ahead` from now, and returns the first, '
    'their number and their distance. `together` reserves them as one batch at the first time. Times that are over '
    'are lost, but for those that mail may still use as a burst: each one for (burst - 1) / rate. For number 0, `first` is the time to ask again. `pace` is the share of the rate that is used.';

CREATE OR REPLACE FUNCTION budget_set(key text, rate double precision, month_most bigint DEFAULT NULL, note text DEFAULT NULL)
RETURNS boolean LANGUAGE sql SECURITY DEFINER SET search_path = pgmta, pg_catalog, pg_temp AS $$
    WITH changed AS (
        INSERT INTO budgets AS b (key, rate, month_most, note)
        VALUES (budget_set.key, budget_set.rate, budget_set.month_most, budget_set.note)
        ON CONFLICT ON CONSTRAINT budgets_pkey DO UPDATE SET rate = excluded.rate, month_most = excluded.month_most,
            note = coalesce(excluded.note, b.note), changed_at = now(), changed_by = SESSION_USER,
            -- those of a second may be reserved; one at a former rate may be far away
            next_at = CASE WHEN b.rate = excluded.rate THEN b.next_at
                ELSE least(b.next_at, clock_timestamp() + make_interval(secs => 1 + 1 / excluded.rate)) END
        WHERE (b.rate, b.month_most, b.note)
            IS DISTINCT FROM (excluded.rate, excluded.month_most, coalesce(excluded.note, b.note))
        RETURNING true
    )
    SELECT count(*) > 0 FROM changed
$$;

CREATE FUNCTION budget_of_route(key text, rate double precision, burst double precision) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pgmta, pg_catalog, pg_temp AS $$
BEGIN
    IF NOT EXISTS (
        SELECT FROM budgets AS b
        WHERE b.key = budget_of_route.key AND (b.rate, b.burst) = (budget_of_route.rate, budget_of_route.burst)
    ) THEN
        INSERT INTO budgets AS b (key, rate, burst)
        VALUES (budget_of_route.key, budget_of_route.rate, budget_of_route.burst)
        ON CONFLICT ON CONSTRAINT budgets_pkey DO UPDATE SET rate = excluded.rate, burst = excluded.burst,
            changed_at = now(), changed_by = SESSION_USER,
            next_at = least(b.next_at, clock_timestamp() + make_interval(secs => 1 + 1 / excluded.rate));
    END IF;
    RETURN key;
END $$;
COMMENT ON FUNCTION budget_of_route IS
    'Gives the budget of a route what shaping.yaml says, makes it if it is not there, and returns its key.';

CREATE FUNCTION budget_tidy() RETURNS bigint LANGUAGE sql SECURITY DEFINER SET search_path = pgmta, pg_catalog, pg_temp AS $$
    WITH gone AS (
        DELETE FROM budgets WHERE key LIKE 'route:%'
            AND next_at < now() - make_interval(days => 1, secs => burst / rate)
        RETURNING true
    )
    SELECT count(*) FROM gone
$$;
COMMENT ON FUNCTION budget_tidy IS
    'Deletes budgets of routes that no mail has used for a day, which make no difference, and returns how many.';

INSERT INTO rights (object, role, privileges) VALUES
    ('FUNCTION budget_of_route', 'pgmta_queued', 'EXECUTE'),
    ('FUNCTION budget_tidy', 'pgmta_queued', 'EXECUTE');

SELECT grants();

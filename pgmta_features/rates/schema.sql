-- Budgets: at most a number per second and month, reserved by the clock of the database.

CREATE TABLE budgets (
    key text COLLATE "C" PRIMARY KEY CONSTRAINT budgets_key CHECK (key ~ '^[A-Za-z0-9][A-Za-z0-9._:@-]{0,99}$'),
    rate double precision NOT NULL CONSTRAINT budgets_rate CHECK (rate >= 0.000001 AND rate <= 100000),
    next_at timestamptz NOT NULL DEFAULT '-infinity',
    month_most bigint CONSTRAINT budgets_month_most CHECK (month_most >= 0),
    month date NOT NULL DEFAULT '-infinity',
    month_used bigint NOT NULL DEFAULT 0,
    note text CONSTRAINT budgets_note CHECK (length(note) <= 500),
    changed_at timestamptz NOT NULL DEFAULT now(),
    changed_by text NOT NULL DEFAULT acting(),
    burst double precision NOT NULL DEFAULT 1 CONSTRAINT budgets_burst CHECK (burst >= 1 AND burst <= 1000000),
    reserved_at timestamptz NOT NULL DEFAULT '-infinity',
    late double precision NOT NULL DEFAULT 0,
    late_before double precision NOT NULL DEFAULT 0,
    late_since timestamptz NOT NULL DEFAULT '-infinity',
    lost_share real NOT NULL DEFAULT 0,
    lost_at timestamptz,
    lost_why text CONSTRAINT budgets_lost_why CHECK (lost_why IN ('database', 'host', 'next hop')),
    reservations bigint NOT NULL DEFAULT 0,
    generation bigint NOT NULL GENERATED ALWAYS AS (reservations / 256) STORED
) WITH (fillfactor = 10);  -- each reservation updates its row, within its page
-- While a snapshot is held, all versions of a row stay, and a look-up by key visits them all. Each 256th reservation
-- makes new index entries, and a look-up from the highest generation finds the row behind no more versions than that.
CREATE INDEX budgets_newest ON budgets (key, generation);
COMMENT ON TABLE budgets IS 'What may be sent per second and calendar month, over all processes.';
COMMENT ON COLUMN budgets.key IS 'Name: collector:NAME, credential:NAME, or route:NAME:VALUE of shaping.yaml.';
COMMENT ON COLUMN budgets.rate IS 'At most so many per second.';
COMMENT ON COLUMN budgets.burst IS 'So many at once after a pause; 1: none.';
COMMENT ON COLUMN budgets.next_at IS 'The first time that is not reserved.';
COMMENT ON COLUMN budgets.month_most IS 'At most so many per calendar month in UTC; null: any number.';
COMMENT ON COLUMN budgets.month IS 'First day of the month that month_used is about.';
COMMENT ON COLUMN budgets.month_used IS 'Reserved in that month.';
COMMENT ON COLUMN budgets.note IS 'Words of operators.';
COMMENT ON COLUMN budgets.changed_at IS 'When rate or month_most last changed.';
COMMENT ON COLUMN budgets.changed_by IS 'The login that changed them.';
COMMENT ON COLUMN budgets.reserved_at IS 'When a time was last reserved; in the future only if the clock was set back.';
COMMENT ON COLUMN budgets.late IS 'Seconds by which mail may begin after its time, at most, of all times since late_since.';
COMMENT ON COLUMN budgets.late_before IS 'The same, of the times before.';
COMMENT ON COLUMN budgets.late_since IS 'The time from which on `late` counts.';
COMMENT ON COLUMN budgets.lost_share IS 'The share of the last hundred times, or so, that no mail could use.';
COMMENT ON COLUMN budgets.lost_at IS 'When a worker last said that it had lost times.';
COMMENT ON COLUMN budgets.lost_why IS
    'Who was late then: the database, the host of the worker (its processors are busy), or the next hop.';
COMMENT ON INDEX budgets_newest IS 'For the present version of a row, before its dead ones.';
COMMENT ON COLUMN budgets.reservations IS 'How many calls of budget_reserve() changed the row.';
COMMENT ON COLUMN budgets.generation IS 'reservations / 256, by which the present version of the row is found.';
COMMENT ON CONSTRAINT budgets_burst ON budgets IS 'From 1 to 1,000,000.';
COMMENT ON CONSTRAINT budgets_key ON budgets IS '1 to 100 letters, digits and . _ : @ -';
COMMENT ON CONSTRAINT budgets_lost_why ON budgets IS 'database, host or next hop.';
COMMENT ON CONSTRAINT budgets_month_most ON budgets IS 'From 0 on.';
COMMENT ON CONSTRAINT budgets_note ON budgets IS 'Up to 500 characters.';
COMMENT ON CONSTRAINT budgets_rate ON budgets IS 'From 0.000001 to 100,000.';

CREATE FUNCTION budget_batch(rate double precision) RETURNS integer IMMUTABLE PARALLEL SAFE
RETURN greatest(floor(rate * 0.02), 1)::integer;
COMMENT ON FUNCTION budget_batch IS 'The largest batch of a budget with this rate: what 20 ms are worth, at least 1.';

CREATE FUNCTION budget_leeway(rate double precision) RETURNS interval IMMUTABLE PARALLEL SAFE
RETURN CASE WHEN rate < 1 THEN '0' ELSE '20 milliseconds' END::interval;
COMMENT ON FUNCTION budget_leeway IS 'How late a batch of a budget with this rate may begin.';

CREATE FUNCTION budget_times(
    INOUT budget budgets, present timestamptz, wanted integer, soonest interval, ahead interval, together boolean,
    INOUT late double precision, OUT first timestamptz, OUT number integer, OUT step interval
) LANGUAGE plpgsql STABLE SET search_path = pgmta, pg_catalog, pg_temp AS $$
DECLARE
    this_month date := date_trunc('month', present AT TIME ZONE 'UTC');
    span double precision := CASE WHEN budget.rate < 1 THEN 60 ELSE 1 END;
    batch integer := budget_batch(budget.rate);
    wished double precision;
    burst double precision;
    distance double precision;
BEGIN
    IF together THEN
        -- a second has all but the last batch at the distance of their times, and the last one whole
        -- (docs/decisions/rates.md)
        wanted := least(wanted, batch);
        late := CASE WHEN budget.rate < 1 THEN 0 ELSE 1.02 * budget.rate / (budget.rate - batch + 1) - 1 END;
        soonest := -budget_leeway(budget.rate);
    END IF;
    wished := CASE WHEN budget.rate < 1 AND late > 0 THEN least(greatest(late, 0.3 / budget.rate), 1) ELSE least(late, 0.2) END;
    burst := (budget.burst - 1) * (1 + wished / span) / budget.rate;
    IF budget.month <> this_month THEN
        -- a clock that goes back to an earlier month does not give its sum a second time
        budget.month_used := CASE WHEN this_month > budget.month THEN 0 ELSE budget.month_used END;
        budget.month := greatest(this_month, budget.month);
    END IF;
    IF budget.reserved_at > present THEN
        -- the clock was set back: the times are as far away as they were at the last reservation
        budget.next_at := present + (budget.next_at - budget.reserved_at);
        budget.late_since := present + (budget.late_since - budget.reserved_at);
        budget.reserved_at := present;
    END IF;
    late := wished + burst;
    -- the first time of a burst can be used until `ahead`, for a new connection
    first := greatest(budget.next_at, present + least(ahead - make_interval(secs => burst), soonest));
    -- A time that may be used late keeps others away for as long (docs/decisions/rates.md): the largest lateness of all times
    -- within a window before this one counts. Two numbers know it, each of at least such a time.
    IF first > budget.late_since + make_interval(
        secs => span + greatest(budget.late, budget.late_before, wished) + 2 * burst)
    THEN
        budget.late_before := budget.late;
        budget.late := wished;
        budget.late_since := first;
    END IF;
    distance := (1 + greatest(budget.late, budget.late_before, wished) / span) / budget.rate;
    step := make_interval(secs => distance);
    number := greatest(least(wanted, budget.month_most - budget.month_used), 0);
    IF number = 0 AND wanted > 0 THEN
        first := greatest(first, (budget.month + interval '1 month') AT TIME ZONE 'UTC');
        RETURN;
    ELSIF first > present + ahead OR number = 0 THEN
        number := 0;
        RETURN;
    ELSIF NOT together THEN
        -- all times of a burst fit, however the distance is rounded
        number := least(number, 1 + floor(extract(epoch FROM present + ahead - first) / distance + 0.01)::integer);
    END IF;
    budget.late := greatest(budget.late, wished);
    -- a batch never begins a fraction of a microsecond early
    budget.next_at := first + make_interval(secs => CASE WHEN together THEN ceil(number * distance * 1e6) / 1e6
        ELSE number * distance END);
    budget.month_used := budget.month_used + number;
    budget.reserved_at := present;
END $$;
COMMENT ON FUNCTION budget_times IS
    'The next times of a budget at the time `present`, and the budget as it is after their reservation: see budget_reserve().';

CREATE FUNCTION budget_common_times(
    INOUT several budgets[], present timestamptz, wanted integer, soonest interval, near interval, ahead interval,
    INOUT late double precision, OUT first timestamptz, OUT number integer, OUT step interval, OUT next timestamptz
) LANGUAGE plpgsql STABLE SET search_path = pgmta, pg_catalog, pg_temp AS $$
DECLARE
    wished double precision := late;
    moved budgets[] := several;
    times record;
BEGIN
    first := present + soonest;
    number := 0;
    late := 'Infinity';
    step := '0';
    FOR n IN 1..cardinality(several) LOOP
        SELECT * INTO times FROM budget_times(several[n], present, 0, soonest, ahead, false, wished);
        several[n] := times.budget;
        first := greatest(first, times.first);
        late := least(late, times.late);
        step := greatest(step, times.step);
    END LOOP;
    next := first;
    IF wanted = 0 OR first > present + ahead THEN
        RETURN;
    END IF;
    late := 'Infinity';
    step := '0';
    FOR n IN 1..cardinality(several) LOOP
        -- a budget with a burst may give an earlier time, which can still be used at the common one
        SELECT * INTO times FROM budget_times(moved[n], present, 1, first - present, first - present, false, wished);
        IF times.number = 0 THEN  -- its sum of the month is used up
            next := times.first;
            RETURN;
        END IF;
        moved[n] := times.budget;
        late := least(late, extract(epoch FROM times.first - first)::double precision + times.late);
        step := greatest(step, times.step);
        wanted := least(wanted, 1 + moved[n].month_most - moved[n].month_used);
    END LOOP;
    number := least(wanted, 1 + greatest(0, floor(extract(epoch FROM present + near - first) / extract(epoch FROM step))));
    FOR n IN 1..cardinality(several) LOOP
        moved[n].next_at := moved[n].next_at + (number - 1) * step;
        moved[n].month_used := moved[n].month_used + number - 1;
        next := greatest(next, moved[n].next_at);
    END LOOP;
    several := moved;
END $$;
COMMENT ON FUNCTION budget_common_times IS
    'The next times that several budgets have in common, and the budgets as they are after their reservation: see '
    'budget_reserve_common().';

CREATE FUNCTION budget_keep(budget budgets, place tid, used integer, lost integer, why text) RETURNS void
LANGUAGE plpgsql SET search_path = pgmta, pg_catalog, pg_temp AS $$
BEGIN
    IF used + lost > 0 THEN
        budget.lost_share := budget.lost_share
            + (lost::double precision / (used + lost) - budget.lost_share) * (1 - exp(-(used + lost) / 100.0::double precision));
        budget.lost_at := CASE WHEN lost > 0 THEN clock_timestamp() ELSE budget.lost_at END;
        budget.lost_why := CASE WHEN lost > 0 THEN why ELSE budget.lost_why END;
    END IF;
    UPDATE budgets AS b SET next_at = budget.next_at, month = budget.month, month_used = budget.month_used,
        reserved_at = budget.reserved_at, late = budget.late, late_before = budget.late_before,
        late_since = budget.late_since, lost_share = budget.lost_share, lost_at = budget.lost_at, lost_why = budget.lost_why,
        reservations = b.reservations + 1
    WHERE b.ctid = place;  -- the lock keeps it there
END $$;
COMMENT ON FUNCTION budget_keep IS
    'Stores a budget as it is after a reservation, and what became of earlier times. Its row at `place` is locked.';

CREATE FUNCTION budget_reserve(
    key text, wanted integer, ahead interval DEFAULT interval '1 second', together boolean DEFAULT false,
    soonest interval DEFAULT '0', INOUT late double precision DEFAULT 0,
    used integer DEFAULT 0, lost integer DEFAULT 0, why text DEFAULT NULL,
    OUT first timestamptz, OUT number integer, OUT step interval
) LANGUAGE plpgsql SECURITY DEFINER SET search_path = pgmta, pg_catalog, pg_temp
    SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off AS $$
DECLARE
    latest record;
    before budgets;
    budget budgets;
    times record;
BEGIN
    SELECT b AS whole, b.ctid AS place INTO latest FROM budgets AS b WHERE b.key = budget_reserve.key
    ORDER BY b.generation DESC LIMIT 1 FOR UPDATE;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'there is no budget %', to_json(left(key, 100)) USING ERRCODE = 'no_data_found',
            HINT = coalesce('There is ' || (SELECT string_agg(b.key, ', ' ORDER BY b.key) FROM budgets AS b) || '.',
                'budget_set() makes one.');
    END IF;
    before := latest.whole;
    -- the clock is read behind the lock
    SELECT * INTO times FROM budget_times(before, clock_timestamp(), wanted, soonest, ahead, together, late);
    budget := times.budget;
    late := times.late;
    first := times.first;
    number := times.number;
    step := times.step;
    IF number > 0 OR used + lost > 0 OR budget.reserved_at <> before.reserved_at THEN
        PERFORM budget_keep(budget, latest.place, used, lost, why);
    END IF;
END $$;
COMMENT ON FUNCTION budget_reserve IS
    'Reserves the next times of a budget, at most `wanted`, none before `soonest` and none later than `ahead` from now, and '
    'returns the first, their number and their distance. Mail may '
    'begin `late` seconds after its time, which makes the distances longer; the number returned is what counts: at most 0.2, '
    'or 1 with less than one per second, and burst - 1 distances. Times that are over are lost. For number 0, `first` is '
    'the time to ask again. `used` and `lost` are numbers of earlier times that mail used and lost, and `why` it lost them. '
    '`together` reserves one batch, at most budget_batch(), all of which begins at the first time, or up to 20 ms later '
    'with one per second or more: budget_began() says when.';

CREATE FUNCTION budget_next(key text, OUT wait double precision, OUT batch integer) LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pgmta, pg_catalog, pg_temp SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off AS $$
DECLARE
    present timestamptz := clock_timestamp();
BEGIN
    -- a new budget has the time -infinity, from which PostgreSQL 15 subtracts nothing
    SELECT extract(epoch FROM greatest(b.next_at, present) - present), budget_batch(b.rate) INTO wait, batch
    FROM budgets AS b WHERE b.key = budget_next.key ORDER BY b.generation DESC LIMIT 1;
END $$;
COMMENT ON FUNCTION budget_next IS
    'Seconds until the next time of a budget that is not reserved, and the largest batch then. It takes no lock.';

CREATE FUNCTION budget_began(key text, first timestamptz) RETURNS timestamptz LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pgmta, pg_catalog, pg_temp AS $$
DECLARE
    began timestamptz := clock_timestamp();
BEGIN
    UPDATE budgets AS b SET next_at = b.next_at + (began - budget_began.first)
        - budget_leeway(b.rate)
    WHERE b.key = budget_began.key
        AND began > budget_began.first + budget_leeway(b.rate);
    RETURN began;
END $$;
COMMENT ON FUNCTION budget_began IS
    'Says that the batch begins whose time is `first`, in the transaction that reserved it, and returns the time. If that is '
    'later than a batch may be, the times behind it move on.';

CREATE FUNCTION budget_reserve_common(
    keys text[], rates double precision[], bursts double precision[], wanted integer, soonest interval, near interval,
    ahead interval, INOUT late double precision, used integer, lost integer, why text,
    OUT first timestamptz, OUT number integer, OUT step interval, OUT next timestamptz
) LANGUAGE plpgsql SECURITY DEFINER SET search_path = pgmta, pg_catalog, pg_temp
    SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off AS $$
DECLARE
    wish record;
    latest record;
    before budgets[] := '{}';
    places tid[] := '{}';
    times record;
BEGIN
    -- everybody locks them in this order
    FOR wish IN
        SELECT k.key, k.rate, k.burst FROM unnest(keys, rates, bursts) AS k (key, rate, burst) ORDER BY k.key COLLATE "C"
    LOOP
        IF wish.rate IS NOT NULL THEN
            PERFORM budget_of_route(wish.key, wish.rate, wish.burst);
        END IF;
        SELECT b AS whole, b.ctid AS place INTO latest FROM budgets AS b WHERE b.key = wish.key
        ORDER BY b.generation DESC LIMIT 1 FOR UPDATE;
        IF FOUND THEN
            before := before || latest.whole;
            places := places || latest.place;
        END IF;
    END LOOP;
    SELECT * INTO times FROM budget_common_times(before, clock_timestamp(), wanted, soonest, near, ahead, late);
    late := times.late;
    first := times.first;
    number := times.number;
    step := times.step;
    next := times.next;
    FOR n IN 1..cardinality(before) LOOP
        IF number > 0 OR used + lost > 0 OR times.several[n].reserved_at <> before[n].reserved_at THEN
            PERFORM budget_keep(times.several[n], places[n], used, lost, why);
        END IF;
    END LOOP;
END $$;
COMMENT ON FUNCTION budget_reserve_common IS
    'Reserves times that several budgets have in common, as budget_reserve() does those of one, and returns also the time from '
    'which on there are further ones. All but the first are within `near` from now, because the faster budgets lose what is '
    'between them. `rates` and `bursts` are those of routes, null for other budgets, and of these a missing one is no limit.';

CREATE FUNCTION budget_set(key text, rate double precision, month_most bigint DEFAULT NULL, note text DEFAULT NULL)
RETURNS boolean LANGUAGE sql SECURITY DEFINER SET search_path = pgmta, pg_catalog, pg_temp AS $$
    WITH changed AS (
        INSERT INTO budgets AS b (key, rate, month_most, note)
        VALUES (budget_set.key, budget_set.rate, budget_set.month_most, budget_set.note)
        ON CONFLICT ON CONSTRAINT budgets_pkey DO UPDATE SET rate = excluded.rate, month_most = excluded.month_most,
            note = coalesce(excluded.note, b.note), changed_at = now(), changed_by = acting(),
            -- times within a second may be reserved; a time by a former rate may be far away
            next_at = CASE WHEN b.rate = excluded.rate THEN b.next_at
                ELSE least(b.next_at, clock_timestamp() + make_interval(secs => 1 + 1 / excluded.rate)) END
        WHERE (b.rate, b.month_most, b.note)
            IS DISTINCT FROM (excluded.rate, excluded.month_most, coalesce(excluded.note, b.note))
        RETURNING true
    )
    SELECT count(*) > 0 FROM changed
$$;
COMMENT ON FUNCTION budget_set IS
    'Makes a budget or changes its rate, sum and note, and returns whether that changed anything. The month goes on.';

CREATE FUNCTION budget_of_route(key text, rate double precision, burst double precision) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pgmta, pg_catalog, pg_temp
    SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off AS $$
BEGIN
    IF (
        SELECT (b.rate, b.burst) = (budget_of_route.rate, budget_of_route.burst)
        FROM budgets AS b WHERE b.key = budget_of_route.key ORDER BY b.generation DESC LIMIT 1
    ) IS NOT TRUE THEN
        INSERT INTO budgets AS b (key, rate, burst)
        VALUES (budget_of_route.key, budget_of_route.rate, budget_of_route.burst)
        ON CONFLICT ON CONSTRAINT budgets_pkey DO UPDATE SET rate = excluded.rate, burst = excluded.burst,
            changed_at = now(), changed_by = acting(),
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

INSERT INTO forget_columns (relation, names, way, condition) VALUES
    -- a budget without times in the future is the same as a new one
    ('budgets', '{key}', 'row', 'key LIKE ''route:%%'' AND next_at < now() - make_interval(secs => burst / rate)'),
    ('budgets', '{key}', 'named', 'NOT (key LIKE ''route:%%'' AND next_at < now() - make_interval(secs => burst / rate))'),
    ('budgets', '{note}', 'words', 'true');

INSERT INTO rights (object, role, privileges) VALUES
    ('budgets', 'pgmta_operator', 'SELECT'),
    ('budgets', 'pgmta_reader', 'SELECT'),
    ('budgets', 'pgmta_queued', 'SELECT'),
    ('FUNCTION budget_of_route', 'pgmta_queued', 'EXECUTE'),
    ('FUNCTION budget_reserve', 'pgmta_queued', 'EXECUTE'),
    ('FUNCTION budget_reserve_common', 'pgmta_queued', 'EXECUTE'),
    ('FUNCTION budget_set', 'pgmta_queued', 'EXECUTE'),
    ('FUNCTION budget_set', 'pgmta_operator', 'EXECUTE'),
    ('FUNCTION budget_tidy', 'pgmta_queued', 'EXECUTE');

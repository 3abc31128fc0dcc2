-- Until when failed logins keep a unit out, so that operators need not know the limits of smtpd.

ALTER TABLE login_failures ADD COLUMN locked_until timestamptz;
COMMENT ON COLUMN login_failures.locked_until IS
    'Until when smtpd refuses logins of the unit with 454; null or past: it does not.';

-- Each failure adds a time, its cost; `most` is twice the period. smtpd refuses a login whose failure would be ahead
-- of the period.
CREATE OR REPLACE FUNCTION login_failed(
    units text[], counts bigint[], added double precision[], most double precision
) RETURNS TABLE (unit text, seconds double precision) LANGUAGE sql SECURITY DEFINER ROWS 64
    SET search_path = pg_catalog, pg_temp AS $$
    INSERT INTO pgmta.login_failures AS f (unit, failures, last_failure, forgotten_at, locked_until)
    SELECT g.unit, g.count, now(), now() + least(g.added, most) * interval '1 second',
        now() + (least(g.added, most) + g.added / g.count - most / 2) * interval '1 second'
    FROM unnest(units, counts, added) AS g (unit, count, added) ORDER BY g.unit
    ON CONFLICT (unit) DO UPDATE SET
        failures = CASE WHEN f.forgotten_at > now() THEN f.failures ELSE 0 END + excluded.failures,
        last_failure = now(),
        forgotten_at = least(greatest(f.forgotten_at, now()) + (excluded.forgotten_at - now()),
            now() + most * interval '1 second'),
        locked_until = least(greatest(f.forgotten_at, now()) + (excluded.forgotten_at - now()),
            now() + most * interval '1 second') + (excluded.locked_until - excluded.forgotten_at)
    RETURNING f.unit, extract(epoch FROM f.forgotten_at - now())::double precision
$$;

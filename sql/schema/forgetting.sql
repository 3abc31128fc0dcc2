-- One person is forgotten: queue, campaigns, logs, transcripts. A keyed hash stays among the suppressions.

CREATE FUNCTION forget_parts() RETURNS SETOF text LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path = pgmta, pg_catalog, pg_temp AS $$
    SELECT part FROM (
        SELECT 1 AS place, 'suppressions' AS part UNION ALL SELECT 2, 'queue'
        UNION ALL SELECT 3, 'campaign ' || c.id FROM campaigns AS c
        UNION ALL SELECT 4, c.relname FROM pg_inherits AS i JOIN pg_class AS c ON c.oid = i.inhrelid
        WHERE i.inhparent IN ('attempts'::regclass, 'reports'::regclass)
    ) AS p ORDER BY place, part
$$;
COMMENT ON FUNCTION forget_parts IS
    'The parts of the database that forget() looks through, in their order: suppressions first, so that nothing new is fed.';

CREATE FUNCTION forget(address text, part text, dry_run boolean DEFAULT false) RETURNS jsonb LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pgmta, pg_catalog, pg_temp SET jit = off AS $$
DECLARE
    key CONSTANT text := suppression_address(address);
    dry CONSTANT boolean := coalesce(dry_run, true);
    campaign bigint;
BEGIN
    IF mailbox_domain(address COLLATE "C") IS NULL THEN
        PERFORM submit_refuse('address', 'it is no mailbox', NULL, 'Write LOCAL@DOMAIN, the domain in A-labels.');
    ELSIF part NOT IN (SELECT forget_parts()) THEN
        IF part LIKE 'campaign %' OR part ~ '_\d{8}$' THEN RETURN '{}'; END IF;  -- it is gone meanwhile
        PERFORM submit_refuse('part', 'there is none of this name', NULL, 'forget_parts() names them.');
    END IF;
    CASE
        WHEN part = 'suppressions' THEN RETURN forget_suppressions(key, dry);
        WHEN part = 'queue' THEN RETURN forget_queue(key, dry);
        WHEN part LIKE 'campaign %' THEN
            campaign := substr(part, 10)::bigint;
            RETURN forget_recipients(key, campaign, dry);
        WHEN part LIKE 'attempts_%' THEN RETURN forget_attempts(key, part, dry);
        ELSE RETURN forget_reports(key, part, dry);
    END CASE;
END $$;
COMMENT ON FUNCTION forget IS
    'Removes a person, by address, from one part of the database, and returns what by its number. After all parts of '
    'forget_parts() the address is nowhere but as a keyed hash. With dry_run it only counts.';

CREATE FUNCTION forget_suppressions(key text, dry boolean) RETURNS jsonb LANGUAGE plpgsql
    SET search_path = pgmta, pg_catalog, pg_temp AS $$
DECLARE
    number bigint;
BEGIN
    SELECT count(*) INTO number FROM suppressions AS s WHERE s.address = key;
    IF NOT dry THEN
        DELETE FROM suppressions AS s WHERE s.address = key;
        INSERT INTO suppressions AS s (address, tenant, reason) VALUES (suppression_hash(key), '*', 'forgotten')
        ON CONFLICT ON CONSTRAINT suppressions_pkey DO UPDATE SET at = now(), released_at = NULL;
        DELETE FROM report_counts AS r WHERE r.sender = key;
    END IF;
    RETURN jsonb_build_object('suppressions', number);
END $$;
COMMENT ON FUNCTION forget_suppressions IS 'The part of forget() that leaves the keyed hash.';

CREATE FUNCTION forget_queue(key text, dry boolean) RETURNS jsonb LANGUAGE plpgsql
    SET search_path = pgmta, pg_catalog, pg_temp AS $$
DECLARE
    flying bigint[];
    waiting bigint[];
BEGIN
    IF dry THEN
        SELECT array_agg(q.id) FILTER (WHERE q.lease_until IS NOT NULL), array_agg(q.id) FILTER (WHERE q.lease_until IS NULL)
        INTO flying, waiting FROM queue AS q
        WHERE suppression_address(q.recipient) = key OR suppression_address(q.sender) = key;
    ELSE
        SELECT array_agg(f.id) FILTER (WHERE f.lease_until IS NOT NULL), array_agg(f.id) FILTER (WHERE f.lease_until IS NULL)
        INTO flying, waiting FROM (
            SELECT q.id, q.lease_until FROM queue AS q
            WHERE suppression_address(q.recipient) = key OR suppression_address(q.sender) = key ORDER BY q.id FOR UPDATE
        ) AS f;
        UPDATE queue AS q SET status = 'DELETE' WHERE q.id = ANY (flying);
        -- without an entry in the log; a body goes with its last row
        DELETE FROM queue AS q WHERE q.id = ANY (waiting);
    END IF;
    RETURN jsonb_build_object('rows of the queue', coalesce(cardinality(waiting), 0),
        'rows under way', coalesce(cardinality(flying), 0));
END $$;
COMMENT ON FUNCTION forget_queue IS
    'The part of forget() for mail to the person and from it. A row under way ends with its attempt, so its log has to be '
    'looked through once more.';

CREATE FUNCTION forget_recipients(key text, campaign bigint, dry boolean) RETURNS jsonb LANGUAGE plpgsql
    SET search_path = pgmta, pg_catalog, pg_temp AS $$
DECLARE
    number bigint;
BEGIN
    IF dry THEN
        SELECT count(*) INTO number FROM campaign_recipients AS r
        WHERE r.campaign_id = campaign AND suppression_address(r.recipient) = key;
    ELSE
        -- the books stay: only unsent ones become invalid
        UPDATE campaign_recipients AS r SET recipient = '', domain = '', params = '{}',
            state = CASE WHEN r.state IN ('unsent', 'queued', 'deferred') THEN 'invalid' ELSE r.state END,
            error_code = CASE WHEN r.state IN ('unsent', 'queued', 'deferred') THEN 'suppressed' ELSE r.error_code END
        WHERE r.campaign_id = campaign AND suppression_address(r.recipient) = key
            AND NOT (r.state IN ('queued', 'deferred') AND EXISTS (
                SELECT FROM queue AS q WHERE q.message_id = r.message_id));
        GET DIAGNOSTICS number = ROW_COUNT;
    END IF;
    RETURN jsonb_build_object('recipients of campaigns', number);
END $$;
COMMENT ON FUNCTION forget_recipients IS 'The part of forget() for a campaign: its books keep a line without an address.';

CREATE FUNCTION forget_attempts(key text, day text, dry boolean) RETURNS jsonb LANGUAGE plpgsql
    SET search_path = pgmta, pg_catalog, pg_temp AS $$
DECLARE
    attempts bigint;
    transcripts bigint;
BEGIN
    EXECUTE format(CASE WHEN dry THEN $sql$
        WITH gone AS MATERIALIZED (
            SELECT a.message_id, a.lease_token FROM %I AS a
            WHERE suppression_address(a.recipient) = $1 OR suppression_address(a.sender) = $1)
        SELECT count(*), (SELECT count(*) FROM transcripts AS t
            WHERE t.message_id = ANY (ARRAY(SELECT message_id FROM gone))
                AND (t.message_id, t.lease_token) IN (SELECT message_id, lease_token FROM gone)) FROM gone
        $sql$ ELSE $sql$
        WITH gone AS (
            DELETE FROM %I AS a WHERE suppression_address(a.recipient) = $1 OR suppression_address(a.sender) = $1
            RETURNING a.message_id, a.lease_token
        ), said AS (
            DELETE FROM transcripts AS t
            WHERE t.message_id = ANY (ARRAY(SELECT message_id FROM gone))
                AND (t.message_id, t.lease_token) IN (SELECT message_id, lease_token FROM gone)
            RETURNING t.message_id
        )
        SELECT (SELECT count(*) FROM gone), (SELECT count(*) FROM said)
        $sql$ END, day) INTO attempts, transcripts USING key;
    RETURN jsonb_build_object('entries of the log', attempts, 'transcripts', transcripts);
END $$;
COMMENT ON FUNCTION forget_attempts IS
    'The part of forget() for a day of the log, with the transcripts of the same transactions: other recipients of a '
    'transaction share its transcript.';

CREATE FUNCTION forget_reports(key text, day text, dry boolean) RETURNS jsonb LANGUAGE plpgsql
    SET search_path = pgmta, pg_catalog, pg_temp AS $$
DECLARE
    number bigint;
BEGIN
    EXECUTE format(concat('WITH found AS (', CASE WHEN dry THEN 'SELECT FROM' ELSE 'DELETE FROM' END, ' %I AS r
            WHERE $1 IN (suppression_address(r.recipient), suppression_address(r.sender), suppression_address(r.sent_to))',
            CASE WHEN NOT dry THEN ' RETURNING true' END, ') SELECT count(*) FROM found'), day) INTO number USING key;
    RETURN jsonb_build_object('reports', number);
END $$;
COMMENT ON FUNCTION forget_reports IS 'The part of forget() for a day of the DSNs.';

INSERT INTO rights (object, role, privileges) VALUES
    ('FUNCTION forget_parts', 'pgmta_operator', 'EXECUTE'),
    ('FUNCTION forget', 'pgmta_operator', 'EXECUTE');

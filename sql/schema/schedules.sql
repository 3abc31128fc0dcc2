-- Scheduled mail: it waits in status SCHEDULED, and no row is tried before its send_at.

-- The row watch looks at queue_ids, so that a commit of rows that wait wakes no worker (docs/decisions/schedule.md).
CREATE SEQUENCE scheduled_ids START WITH 1000000000000000;
COMMENT ON SEQUENCE scheduled_ids IS 'queue.id of rows that come in as SCHEDULED, far above those of queue_ids.';

CREATE FUNCTION schedule_ahead() RETURNS interval IMMUTABLE PARALLEL SAFE RETURN interval '2 seconds';
COMMENT ON FUNCTION schedule_ahead IS 'How long before its send_at a row gets among those that claims look at.';

CREATE FUNCTION schedule_due(batch integer) RETURNS bigint LANGUAGE plpgsql
    -- A plan that was made for an empty partition would later read, or sort, the whole of it.
    SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET enable_bitmapscan = off AS $$
DECLARE
    due bigint[] := ARRAY(
        SELECT id FROM pgmta.queue
        WHERE status = 'SCHEDULED' AND send_at <= now() + pgmta.schedule_ahead()
        ORDER BY send_at LIMIT batch FOR UPDATE SKIP LOCKED);
    moved bigint;
BEGIN
    IF cardinality(due) = 0 THEN RETURN 0; END IF;
    UPDATE pgmta.queue SET status = 'QUEUED', next_attempt = greatest(send_at, clock_timestamp())
    WHERE id = ANY (due) AND status = 'SCHEDULED';
    GET DIAGNOSTICS moved = ROW_COUNT;
    RETURN moved;
END $$;
COMMENT ON FUNCTION schedule_due IS
    'Moves one batch of scheduled rows whose time is near, or over, to QUEUED; they are due at their send_at. Returns '
    'their number.';

CREATE FUNCTION queue_not_early() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF OLD.status IN ('HOLD', 'DELETE', 'REPORT') THEN
        NEW.status := 'SCHEDULED';
    END IF;
    NEW.next_attempt := greatest(NEW.next_attempt, NEW.send_at);
    RETURN NEW;
END $$;
COMMENT ON FUNCTION queue_not_early IS
    'No row is due before its send_at, whoever changes it. One that is released before waits in SCHEDULED again.';

-- after queue_hold_stamp, by its name: a release makes a row due. For nearly all rows it is one comparison with null.
CREATE TRIGGER queue_send_at BEFORE UPDATE OF status, next_attempt ON queue FOR EACH ROW
    WHEN (NEW.send_at > now() AND NEW.status IN ('QUEUED', 'DEFERRED')) EXECUTE FUNCTION queue_not_early();
COMMENT ON TRIGGER queue_send_at ON queue IS 'Never before send_at, whatever an operator or worker does.';

INSERT INTO rights (object, role, privileges) VALUES
    ('FUNCTION schedule_due', 'pgmta_queued', 'EXECUTE'),
    ('FUNCTION schedule_ahead', 'pgmta_queued', 'EXECUTE');

-- Operators give rows up, and their senders get DSNs: docs/decisions/0025-changes.md, docs/bounces.md.

CREATE OR REPLACE FUNCTION queue_takes(action text) RETURNS text LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE action
        WHEN 'hold' THEN 'status <> ''HOLD'''
        WHEN 'quarantine' THEN 'true'
        WHEN 'release' THEN 'status = ''HOLD'''
        WHEN 'retry' THEN 'status IN (''QUEUED'', ''DEFERRED'')'
        WHEN 'bounce' THEN 'status NOT IN (''DELETE'', ''REPORT'')'
        WHEN 'delete' THEN 'status <> ''DELETE'''
        WHEN 'set' THEN 'true'
    END
$$;

CREATE OR REPLACE FUNCTION queue_change_rows(
    action text, ids bigint[], who text, details jsonb DEFAULT '{}'
) RETURNS bigint LANGUAGE plpgsql
    -- A plan that was made for an empty partition would later read the whole of it. No other way: with
    -- force_custom_plan the trigger queue_hold_stamp plans each of its expressions for each row.
    SET enable_seqscan = off AS $$
DECLARE
    why text := details ->> 'reason';
    fault text := details ->> 'fault';
    reasons jsonb := details -> 'reasons';
    until timestamptz := now() + (details ->> 'release_after')::interval;
    changed bigint;
BEGIN
    IF cardinality(ids) = 0 THEN RETURN 0; END IF;
    -- By a subselect: to estimate an array that the planner knows costs more than to plan without.
    CASE action
    WHEN 'hold' THEN
        UPDATE pgmta.queue AS q
        SET status = 'HOLD', held_by = who, hold_until = until,
            hold_reason = coalesce(reasons ->> q.id::text, q.faults ->> fault, why)
        WHERE q.id = ANY (ARRAY(SELECT unnest(ids))) AND q.status <> 'HOLD';
    WHEN 'quarantine' THEN
        UPDATE pgmta.queue AS q
        SET status = 'HOLD', held_by = who, hold_until = until,
            hold_reason = coalesce(reasons ->> q.id::text, q.faults ->> fault, why),
            metadata = jsonb_set(q.metadata, '{_quarantineid}', details -> 'quarantine')
        WHERE q.id = ANY (ARRAY(SELECT unnest(ids)));
    WHEN 'release' THEN
        -- the trigger queue_hold_stamp keeps rows with a malformed address on hold
        WITH released AS (
            UPDATE pgmta.queue AS q SET status = 'QUEUED'
            WHERE q.id = ANY (ARRAY(SELECT unnest(ids))) AND q.status = 'HOLD' RETURNING q.status
        )
        SELECT count(*) INTO changed FROM released WHERE released.status <> 'HOLD';
        RETURN changed;
    WHEN 'retry' THEN
        -- a row that is due already keeps its place
        UPDATE pgmta.queue AS q SET next_attempt = least(q.next_attempt, now())
        WHERE q.id = ANY (ARRAY(SELECT unnest(ids))) AND q.status IN ('QUEUED', 'DEFERRED');
    WHEN 'bounce' THEN
        -- A row in flight keeps its lease: nothing is reported before its attempt has ended. The trigger
        -- keeps malformed ones here too. Some words say that no operator has given the row up.
        WITH given_up AS (
            UPDATE pgmta.queue AS q
            SET status = 'REPORT', held_by = who, hold_until = NULL, hold_reason =
                CASE WHEN why IN ('undeliverable', 'relayed', 'delivered', 'delayed') THEN 'bounced: ' ELSE '' END || why
            WHERE q.id = ANY (ARRAY(SELECT unnest(ids))) AND q.status NOT IN ('DELETE', 'REPORT')
            RETURNING q.status
        )
        SELECT count(*) INTO changed FROM given_up WHERE given_up.status <> 'HOLD';
        RETURN changed;
    WHEN 'delete' THEN
        UPDATE pgmta.queue AS q SET status = 'DELETE'
        WHERE q.id = ANY (ARRAY(SELECT unnest(ids))) AND q.status <> 'DELETE';
    WHEN 'set' THEN
        UPDATE pgmta.queue AS q
        SET priority = coalesce((details ->> 'priority')::smallint, q.priority),
            metadata = (q.metadata || coalesce(details -> 'metadata', '{}'))
                - ARRAY(SELECT jsonb_array_elements_text(coalesce(details -> 'unset', '[]')))
        WHERE q.id = ANY (ARRAY(SELECT unnest(ids)));
    END CASE;
    GET DIAGNOSTICS changed = ROW_COUNT;
    RETURN changed;
END $$;

CREATE FUNCTION queue_bounce(condition text, reason text) RETURNS bigint LANGUAGE sql AS $$
    SELECT pgmta.queue_change('bounce', condition, jsonb_build_object('reason', reason))
$$;
COMMENT ON FUNCTION queue_bounce(text, text) IS
    'Gives the rows that match condition up, held ones too: queued sends their senders a DSN with the '
    'reason, and removes them. Those in flight follow after their attempt, unless it delivers. Returns the '
    'number of rows.';

CREATE VIEW report_rates AS
SELECT date_trunc('hour', at) AS hour, count(DISTINCT report_id) AS dsns,
    count(*) FILTER (WHERE kind = 'failed' AND report_id IS NOT NULL) AS failed,
    count(*) FILTER (WHERE kind = 'delayed' AND report_id IS NOT NULL) AS delayed,
    count(*) FILTER (WHERE kind IN ('relayed', 'delivered') AND report_id IS NOT NULL) AS succeeded,
    count(*) FILTER (WHERE report_id IS NULL) AS unreported
FROM reports WHERE at >= now() - interval '1 day' GROUP BY 1;
COMMENT ON VIEW report_rates IS 'How many DSNs there were: recipients by the hour of their DSNs. Reads the last day of reports.';
COMMENT ON COLUMN report_rates.hour IS 'Start of the hour; one without reports has no line.';
COMMENT ON COLUMN report_rates.dsns IS 'DSNs, each of which may tell of several recipients.';
COMMENT ON COLUMN report_rates.failed IS 'Recipients that failed, or were given up by an operator.';
COMMENT ON COLUMN report_rates.delayed IS 'Recipients whose mail was late.';
COMMENT ON COLUMN report_rates.succeeded IS 'Recipients that got the mail, or whose mail was relayed to a host without DSN.';
COMMENT ON COLUMN report_rates.unreported IS 'Recipients without a DSN; reports.reason says why.';

COMMENT ON COLUMN workers.action IS 'deliver, hold, quarantine, delete, release, retry or bounce.';
COMMENT ON COLUMN audit.action IS 'hold, release, quarantine, retry, bounce, delete, set, rule …';

ALTER FUNCTION grants() RENAME TO grants_0024;
COMMENT ON FUNCTION grants_0024() IS 'Part of grants().';
CREATE FUNCTION grants() RETURNS text[] LANGUAGE plpgsql
    SET search_path = pgmta, pg_catalog, pg_temp AS $$
BEGIN
    PERFORM grant_to('EXECUTE ON FUNCTION queue_bounce(text, text)', 'pgmta_operator');
    PERFORM grant_to('SELECT ON report_rates', 'pgmta_operator', 'pgmta_reader');
    RETURN grants_0024();
END $$;
REVOKE EXECUTE ON FUNCTION grants(), grants_0024(), queue_bounce(text, text) FROM PUBLIC;
COMMENT ON FUNCTION grants() IS
    'Gives the roles pgmta_smtpd, pgmta_queued, pgmta_operator, pgmta_reader and pgmta_submit their '
    'rights; to be called by the owner of the tables. Returns the roles that do not exist.';
DO $$ BEGIN PERFORM grants(); END $$;

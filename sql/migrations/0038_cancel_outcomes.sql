-- cancel() leaves rows in REPORT alone: their outcome is known, and their senders get DSNs.

CREATE OR REPLACE FUNCTION cancel(id bigint, reason text DEFAULT NULL) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pgmta, pg_catalog, pg_temp AS $$
DECLARE
    chances integer :=
        CASE current_setting('transaction_isolation') WHEN 'read committed' THEN 10 ELSE 1 END;
    login text;
    flying bigint[];
    waiting bigint[];
    stopped integer;
BEGIN
    IF length(reason) > 500 OR reason ~ '[\u0001-\u001f\u007f]' COLLATE "C" THEN
        PERFORM submit_refuse('reason', 'it is over 500 characters or has control characters');
    END IF;
    IF getdatabaseencoding() <> 'UTF8' THEN PERFORM submit_text('reason', reason); END IF;
    SELECT m.submitted_by INTO login FROM messages AS m WHERE m.id = cancel.id;
    IF NOT FOUND THEN
        SELECT a.submitted_by INTO login FROM attempts AS a WHERE a.message_id = cancel.id LIMIT 1;
    END IF;
    -- one error for both, so that ids of others can't be found out
    IF NOT FOUND OR login IS DISTINCT FROM session_user AND NOT sees_all_mail(cancelling => true) THEN
        PERFORM submit_refuse('id', 'there is no such message of this login', NULL,
            'It is the number that submit() returned.', 'no_data_found');
    END IF;
    FOR chance IN 1 .. chances LOOP
        BEGIN
            -- A row in REPORT has its outcome, and its sender gets a DSN.
            -- Under a lease, also one that ran out: the next hop may have the mail
            SELECT array_agg(found.id) FILTER (WHERE found.lease_until IS NOT NULL),
                array_agg(found.id) FILTER (WHERE found.lease_until IS NULL)
            INTO flying, waiting
            FROM (
                SELECT q.id, q.lease_until FROM queue AS q
                WHERE q.message_id = cancel.id AND q.status NOT IN ('DELETE', 'REPORT') ORDER BY q.id FOR UPDATE
            ) AS found;
            -- The attempt ends and its outcome counts. After a deferral queued removes the row. The trigger
            -- of the first statement would clear what the second one sets.
            UPDATE queue AS q SET status = 'DELETE' WHERE q.id = ANY (flying);
            UPDATE queue AS q SET held_by = session_user, hold_reason = coalesce(reason, '')
            WHERE q.id = ANY (flying);
            WITH gone AS (
                DELETE FROM queue AS q WHERE q.id = ANY (waiting)
                RETURNING q.id, q.attempts, q.lease_token, q.sender, q.recipient, q.domain, q.tenant, q.metadata
            )
            INSERT INTO attempts (started_at, row_id, message_id, lease_token, attempt, code, event, sender,
                recipient, domain, worker, host, command, enhanced, reply, tenant, message_id_header,
                submitted_by, metadata)
            SELECT now(), gone.id, cancel.id, coalesce(gone.lease_token, 0), gone.attempts, 0, 'cancelled', gone.sender,
                left(gone.recipient, 600), gone.domain, session_user, '', '', '', coalesce(reason, ''), gone.tenant,
                m.message_id_header, m.submitted_by, nullif(gone.metadata, '{}')
            FROM gone JOIN messages AS m ON m.id = cancel.id;
            GET DIAGNOSTICS stopped = ROW_COUNT;
            RETURN stopped;
        EXCEPTION WHEN serialization_failure OR deadlock_detected THEN
            IF chance = chances THEN RAISE; END IF;  -- a row has moved to another partition meanwhile
        END;
    END LOOP;
END $$;
COMMENT ON FUNCTION cancel(bigint, text) IS
    'Removes the recipients of a message that wait or are on hold, and returns how many. One in flight is '
    'removed after its attempt, unless that delivers. One in REPORT has its outcome and stays. '
    'A login that only submits has its own mail.';

-- Many mails by one call: submit_mails() in the transaction of the caller.

CREATE TABLE submit_calls (
    call uuid PRIMARY KEY,
    login text NOT NULL,
    fingerprint bigint NOT NULL,
    called_at timestamptz NOT NULL DEFAULT now(),
    ids bigint[],
    problems jsonb
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_insert_threshold = -1);
COMMENT ON TABLE submit_calls IS
    'Calls of submit_mails() of the last hour with their answers: a repetition gets the answer of the first.';
COMMENT ON COLUMN submit_calls.call IS 'Argument call.';
COMMENT ON COLUMN submit_calls.login IS 'Login of the first call.';
COMMENT ON COLUMN submit_calls.fingerprint IS 'Hash of the arguments mails and contents: others under the same call are a mistake.';
COMMENT ON COLUMN submit_calls.called_at IS 'When the transaction of the first call began.';
COMMENT ON COLUMN submit_calls.ids IS 'Its answer: the message id of each mail, null for a refused one.';
COMMENT ON COLUMN submit_calls.problems IS 'Its answer: the refused mails with their errors; null if there are none.';

CREATE INDEX submit_calls_called_at ON submit_calls (called_at);
COMMENT ON INDEX submit_calls_called_at IS 'Calls whose time is over.';

CREATE FUNCTION submit_mails(
    mails jsonb, contents bytea[] DEFAULT '{}', call uuid DEFAULT NULL, wake boolean DEFAULT false,
    OUT ids bigint[], OUT problems jsonb, OUT suppressed jsonb
) LANGUAGE plpgsql SECURITY DEFINER SET search_path = pgmta, pg_catalog, pg_temp
    SET standard_conforming_strings = on AS $$  -- all that it calls is compiled with these settings too
#variable_conflict use_variable
DECLARE
    mail jsonb;
    place integer;
    message_id bigint;
    problem jsonb;
    refused jsonb[] := '{}';
BEGIN
    IF jsonb_typeof(mails) IS DISTINCT FROM 'array' THEN
        PERFORM submit_refuse('mails', 'it is no JSON array', NULL, 'Give a list of objects: docs/programs/sql.md has their keys.');
    ELSIF wake IS NULL THEN
        PERFORM submit_refuse('wake', 'it is null');
    END IF;
    WHILE call IS NOT NULL LOOP
        -- waits only for an open transaction that has the same call
        INSERT INTO submit_calls (call, login, fingerprint) VALUES (call, acting(), call_fingerprint(mails, contents))
        ON CONFLICT ON CONSTRAINT submit_calls_pkey DO NOTHING;
        EXIT WHEN FOUND;
        SELECT c.ids, c.problems, c.suppressed INTO ids, problems, suppressed FROM submit_called(call, call_fingerprint(mails, contents)) AS c;
        IF ids IS NOT NULL THEN RETURN; END IF;  -- otherwise the call has expired meanwhile
    END LOOP;
    IF jsonb_array_length(mails) = 1 THEN
        ids := ARRAY[submit_lone_mail(mails)];
    ELSE
        ids := coalesce(submit_parts(mails), '{}');
    END IF;
    IF array_position(ids, NULL) > 0 THEN  -- mails with a key that the set-based form does not take, and refused ones
        FOR mail, place IN
            SELECT each.mail, n FROM jsonb_array_elements(mails) WITH ORDINALITY AS each (mail, n) WHERE ids[n] IS NULL
        LOOP
            SELECT t.id, t.problem INTO message_id, problem FROM submit_tried(mail, contents) AS t;
            ids[place] := message_id;
            IF problem IS NOT NULL THEN
                refused := refused || (jsonb_build_object('index', place - 1) || problem);
            END IF;
        END LOOP;
        problems := nullif(to_jsonb(refused), '[]');
    END IF;
    IF current_setting('pgmta.suppressed', true) = 'true' THEN suppressed := mails_suppressed(ids, now()); END IF;
    IF call IS NOT NULL THEN
        UPDATE submit_calls AS c SET ids = submit_mails.ids, problems = submit_mails.problems
        WHERE c.call = submit_mails.call;
    END IF;
    IF wake AND cardinality(array_remove(ids, NULL)) > 0 THEN PERFORM pgmta.notify_channel('pgmta_queue'); END IF;
END $$;
COMMENT ON FUNCTION submit_mails IS
    'Puts mails into the queue, in the transaction of the caller. Returns the id of each, the errors of those that are refused, '
    'and the recipients that get nothing because they are suppressed. docs/programs/sql.md has the keys of a mail.';

CREATE FUNCTION mails_suppressed(ids bigint[], at timestamptz) RETURNS jsonb LANGUAGE plpgsql SET enable_seqscan = off AS $$
BEGIN
    RETURN (
        SELECT jsonb_agg(jsonb_build_object('index', m.n - 1, 'recipient', a.recipient, 'reason', a.reply) ORDER BY m.n, a.row_id)
        FROM unnest(ids) WITH ORDINALITY AS m (id, n), LATERAL (
            SELECT a.recipient, a.reply, a.row_id FROM attempts AS a
            -- OFFSET 0, or a join might read the whole log of a day
            WHERE a.message_id = m.id AND a.event = 'suppressed' AND a.ended_at = at OFFSET 0) AS a);
END $$;
COMMENT ON FUNCTION mails_suppressed IS
    'The recipients of mails that were suppressed in the transaction that began at this time; null if none was.';

CREATE FUNCTION call_fingerprint(mails jsonb, contents bytea[]) RETURNS bigint IMMUTABLE
RETURN jsonb_hash_extended(mails, 0) # coalesce(hash_array_extended(contents, 0), 0);
COMMENT ON FUNCTION call_fingerprint IS 'submit_calls.fingerprint of a call.';

CREATE FUNCTION submit_called(call uuid, fingerprint bigint, OUT ids bigint[], OUT problems jsonb, OUT suppressed jsonb)
LANGUAGE plpgsql AS $$
DECLARE
    first_one submit_calls;
BEGIN
    SELECT c.* INTO first_one FROM submit_calls AS c WHERE c.call = submit_called.call;
    IF first_one.login <> acting() THEN
        PERFORM submit_refuse('call', 'another login has used it', NULL, 'Make a new UUID for each call.', 'unique_violation');
    ELSIF first_one.fingerprint <> submit_called.fingerprint THEN
        PERFORM submit_refuse('call', 'it was used for other mails', NULL, 'Make a new UUID for each call.', 'unique_violation');
    END IF;
    PERFORM prove_earlier();
    ids := first_one.ids;
    problems := first_one.problems;
    suppressed := mails_suppressed(ids, first_one.called_at);
END $$;
COMMENT ON FUNCTION submit_called IS
    'The answer of the first call with this UUID. Raises an error if that was of another role, or with other mails.';

CREATE FUNCTION submit_tried(mail jsonb, contents bytea[], OUT id bigint, OUT problem jsonb)
LANGUAGE plpgsql AS $$
DECLARE
    argument text;
    reason text;
    details text;
    advice text;
BEGIN
    id := submit_object(mail, contents);
-- Errors about a mail. All others end the call: PostgreSQL can't store any mail then, or the transaction is over.
EXCEPTION WHEN data_exception OR program_limit_exceeded OR unique_violation THEN
    GET STACKED DIAGNOSTICS argument = COLUMN_NAME, reason = MESSAGE_TEXT, details = PG_EXCEPTION_DETAIL,
        advice = PG_EXCEPTION_HINT;
    IF argument = '' AND sqlstate = '23505' THEN RAISE; END IF;  -- the error of a table, not of submit_refuse()
    problem := jsonb_build_object('argument', coalesce(nullif(argument, ''), 'mails'), 'code', sqlstate,
        'message', reason, 'detail', nullif(details, ''), 'hint', nullif(advice, ''));
END $$;
COMMENT ON FUNCTION submit_tried IS 'Submits one mail, and returns its id, or the error that is about this mail.';

INSERT INTO rights (object, role, privileges) VALUES
    ('FUNCTION submit_mails', 'pgmta_submit', 'EXECUTE'),
    -- FOR UPDATE needs this right, as for the table messages
    ('submit_calls', 'pgmta_queued', 'SELECT (call, called_at), UPDATE (called_at), DELETE'),
    ('submit_calls', 'pgmta_operator', 'SELECT');

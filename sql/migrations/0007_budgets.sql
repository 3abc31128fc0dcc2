-- Budgets, mail that triggers withdraw, mail with signed tokens, and the role of `queued web`.

SET LOCAL check_function_bodies = off;  -- functions may name later ones

CREATE OR REPLACE FUNCTION cancel(id bigint, reason text DEFAULT NULL) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pgmta, pg_catalog, pg_temp AS $$
DECLARE
    login text;
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
        PERFORM submit_refuse('id', 'there is no message with this id that this login may cancel', NULL,
            'The id is the number that submit() returned, or that the client got with its 250.', 'no_data_found');
    END IF;
    RETURN withdraw(id, reason);
END $$;
COMMENT ON FUNCTION cancel IS
    'Removes the recipients of a message that wait or are on hold, and returns how many. One in flight is removed '
    'after its attempt, unless that delivers. One in REPORT has its outcome and stays. A login that only submits '
    'has its own mail.';

CREATE FUNCTION withdraw(id bigint, reason text) RETURNS integer
LANGUAGE plpgsql SET search_path = pgmta, pg_catalog, pg_temp AS $$
DECLARE
    chances integer :=
        CASE current_setting('transaction_isolation') WHEN 'read committed' THEN 10 ELSE 1 END;
    flying bigint[];
    waiting bigint[];
    stopped integer;
BEGIN
    FOR chance IN 1 .. chances LOOP
        BEGIN
            -- A row in REPORT has its outcome, and its sender gets a DSN.
            -- Under a lease, also one that ran out: the next hop may have the mail
            SELECT array_agg(found.id) FILTER (WHERE found.lease_until IS NOT NULL),
                array_agg(found.id) FILTER (WHERE found.lease_until IS NULL)
            INTO flying, waiting
            FROM (
                SELECT q.id, q.lease_until FROM queue AS q
                WHERE q.message_id = withdraw.id AND q.status NOT IN ('DELETE', 'REPORT') ORDER BY q.id FOR UPDATE
            ) AS found;
            -- The attempt ends and its outcome counts. After a deferral queued removes the row. The trigger
            -- of the first statement would clear what the second one sets.
            UPDATE queue AS q SET status = 'DELETE' WHERE q.id = ANY (flying);
            UPDATE queue AS q SET held_by = session_user, hold_reason = coalesce(reason, '')
            WHERE q.id = ANY (flying);
            PERFORM rows_log(waiting, 'cancelled', session_user::text, coalesce(reason, ''));
            DELETE FROM queue AS q WHERE q.id = ANY (waiting);
            GET DIAGNOSTICS stopped = ROW_COUNT;
            RETURN stopped;
        EXCEPTION WHEN serialization_failure OR deadlock_detected THEN
            IF chance = chances THEN RAISE; END IF;  -- a row has moved to another partition meanwhile
        END;
    END LOOP;
END $$;
COMMENT ON FUNCTION withdraw IS
    'The common part of cancel() and of triggers that withdraw mail: it asks for no right to the message.';

CREATE OR REPLACE FUNCTION composition_shown(template_id bigint, params jsonb) RETURNS jsonb STABLE LANGUAGE sql AS $$
    SELECT jsonb_build_array(
        -- a row may be broken by hand
        CASE WHEN jsonb_typeof(params) = 'object' THEN params - '{words,body,html,token}'::text[] ELSE '{}' END
            || CASE WHEN params ? 'body' THEN '{"body": ""}'::jsonb ELSE '{}' END
            || CASE WHEN params ? 'html' THEN '{"html": ""}'::jsonb ELSE '{}' END,
        (SELECT jsonb_build_object('name', t.name, 'version', t.version, 'sender', t.sender, 'from', t.from_field,
                'reply_to', t.reply_to, 'subject', t.subject, 'headers', t.headers,
                'body', CASE WHEN t.body IS NOT NULL THEN 'x' END, 'html', CASE WHEN t.html IS NOT NULL THEN 'x' END)
            FROM pgmta.templates AS t WHERE t.id = composition_shown.template_id))
    WHERE params IS NOT NULL
$$;
COMMENT ON FUNCTION composition_shown IS
    'What operators and DSNs may see of composed mail: the parts of its header, or the recipient and the header of its '
    'template, without words, tokens and texts.';

CREATE TABLE budgets (
    key text COLLATE "C" PRIMARY KEY CONSTRAINT budgets_key CHECK (key ~ '^[A-Za-z0-9][A-Za-z0-9._:@-]{0,99}$'),
    rate double precision NOT NULL CONSTRAINT budgets_rate CHECK (rate > 0 AND rate <= 100000),
    next_at timestamptz NOT NULL DEFAULT '-infinity',
    month_most bigint CONSTRAINT budgets_month_most CHECK (month_most >= 0),
    month date NOT NULL DEFAULT '-infinity',
    month_used bigint NOT NULL DEFAULT 0,
    note text CONSTRAINT budgets_note CHECK (length(note) <= 500),
    changed_at timestamptz NOT NULL DEFAULT now(),
    changed_by text NOT NULL DEFAULT SESSION_USER
) WITH (fillfactor = 10);  -- each reservation updates its row, within its page
COMMENT ON TABLE budgets IS 'What may be sent per second and calendar month, over all processes.';
COMMENT ON COLUMN budgets.key IS 'Name, such as collector:NAME.';
COMMENT ON COLUMN budgets.rate IS 'At most so many per second.';
COMMENT ON COLUMN budgets.next_at IS 'The first time that is not reserved.';
COMMENT ON COLUMN budgets.month_most IS 'At most so many per calendar month in UTC; null: any number.';
COMMENT ON COLUMN budgets.month IS 'First day of the month that month_used is about.';
COMMENT ON COLUMN budgets.month_used IS 'Reserved in that month.';
COMMENT ON COLUMN budgets.note IS 'Words of operators.';
COMMENT ON COLUMN budgets.changed_at IS 'When rate or month_most last changed.';
COMMENT ON COLUMN budgets.changed_by IS 'The login that changed them.';
COMMENT ON CONSTRAINT budgets_key ON budgets IS '1 to 100 letters, digits and . _ : @ -';
COMMENT ON CONSTRAINT budgets_month_most ON budgets IS 'From 0 on.';
COMMENT ON CONSTRAINT budgets_note ON budgets IS 'Up to 500 characters.';
COMMENT ON CONSTRAINT budgets_rate ON budgets IS 'Over 0, up to 100,000.';

CREATE FUNCTION budget_reserve(
    key text, wanted integer, ahead interval DEFAULT interval '1 second', together boolean DEFAULT false,
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
    present := clock_timestamp();  -- behind the lock
    this_month := date_trunc('month', present AT TIME ZONE 'UTC');
    IF budget.month <> this_month THEN
        -- a clock that goes back to an earlier month gives no second sum
        budget.month_used := CASE WHEN this_month > budget.month THEN 0 ELSE budget.month_used END;
        budget.month := greatest(this_month, budget.month);
    END IF;
    first := greatest(budget.next_at, present);
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
    'are lost. For number 0, `first` is the time to ask again.';

CREATE FUNCTION budget_set(key text, rate double precision, month_most bigint DEFAULT NULL, note text DEFAULT NULL)
RETURNS boolean LANGUAGE sql SECURITY DEFINER SET search_path = pgmta, pg_catalog, pg_temp AS $$
    WITH changed AS (
        INSERT INTO budgets AS b (key, rate, month_most, note)
        VALUES (budget_set.key, budget_set.rate, budget_set.month_most, budget_set.note)
        ON CONFLICT ON CONSTRAINT budgets_pkey DO UPDATE SET rate = excluded.rate, month_most = excluded.month_most,
            note = coalesce(excluded.note, b.note), changed_at = now(), changed_by = SESSION_USER,
            -- a time that was reserved at a former rate may be far away
            next_at = least(b.next_at, clock_timestamp() + make_interval(secs => 1 / excluded.rate))
        WHERE (b.rate, b.month_most) IS DISTINCT FROM (excluded.rate, excluded.month_most)
            OR excluded.note <> b.note
        RETURNING true
    )
    SELECT count(*) > 0 FROM changed
$$;
COMMENT ON FUNCTION budget_set IS
    'Makes a budget or changes its rate, sum and note, and returns whether that changed anything. The month goes on.';

INSERT INTO rights (object, role, privileges) VALUES
    ('budgets', 'pgmta_operator', 'SELECT'),
    ('budgets', 'pgmta_reader', 'SELECT'),
    ('budgets', 'pgmta_queued', 'SELECT'),
    ('FUNCTION budget_reserve', 'pgmta_queued', 'EXECUTE'),
    ('FUNCTION budget_set', 'pgmta_queued', 'EXECUTE'),
    ('FUNCTION budget_set', 'pgmta_operator', 'EXECUTE');

COMMENT ON TABLE daemons IS 'Processes of queued, smtpd and queued web that run, by their heartbeat.';
COMMENT ON COLUMN daemons.program IS 'queued, smtpd or web.';
INSERT INTO rights (object, role, privileges) VALUES
    ('daemons', 'pgmta_web', 'SELECT, INSERT, UPDATE, DELETE'),
    ('schema_migrations', 'pgmta_web', 'SELECT');

DO $$
BEGIN
    CREATE ROLE pgmta_web NOLOGIN;
EXCEPTION WHEN duplicate_object OR unique_violation OR insufficient_privilege THEN
    NULL;
END $$;

DO $$
BEGIN
    IF grants() <> '{}' THEN
        RAISE WARNING 'the role pgmta_web could not be made'
            USING HINT = 'Create it (NOLOGIN) and call pgmta.grants() as owner of the tables.';
    END IF;
END $$;

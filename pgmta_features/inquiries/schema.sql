-- Inquiries: operators ask the running processes about a destination, or have a connection ended (docs/decisions/inquiries.md).

CREATE TABLE inquiries (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    action text NOT NULL CHECK (action IN ('inspect', 'disconnect')),
    value text NOT NULL CHECK (length(value) <= 1000),
    process text,
    who text NOT NULL,
    asked_at timestamptz NOT NULL DEFAULT now(),
    audit_id bigint,
    CHECK (action = 'inspect' OR process IS NOT NULL AND value ~ '^[1-9][0-9]{0,17}$')
);
COMMENT ON TABLE inquiries IS
    'What operators ask the processes of queued now. Each one answers once; rows go after seconds.';
COMMENT ON COLUMN inquiries.id IS 'Its number.';
COMMENT ON SEQUENCE inquiries_id_seq IS 'inquiries.id.';
COMMENT ON COLUMN inquiries.action IS 'inspect: show a destination; disconnect: end a connection.';
COMMENT ON COLUMN inquiries.value IS 'The name of a destination, or the number of a connection in its process.';
COMMENT ON COLUMN inquiries.process IS 'Which process answers, as daemons.process; null: each one that delivers.';
COMMENT ON COLUMN inquiries.who IS 'user@host of the command.';
COMMENT ON COLUMN inquiries.asked_at IS 'When. No process answers after 10 s.';
COMMENT ON COLUMN inquiries.audit_id IS 'disconnect: audit.id.';
COMMENT ON CONSTRAINT inquiries_action_check ON inquiries IS 'The actions.';
COMMENT ON CONSTRAINT inquiries_value_check ON inquiries IS 'Names have an end.';
COMMENT ON CONSTRAINT inquiries_check ON inquiries IS 'A connection is a number of one process.';

CREATE TABLE inquiry_answers (
    inquiry_id bigint NOT NULL REFERENCES inquiries ON DELETE CASCADE,
    process text NOT NULL,
    answer json NOT NULL,
    PRIMARY KEY (inquiry_id, process)
);
COMMENT ON TABLE inquiry_answers IS 'What processes of queued answer to inquiries.';
COMMENT ON COLUMN inquiry_answers.inquiry_id IS 'inquiries.id.';
COMMENT ON COLUMN inquiry_answers.process IS 'As daemons.process.';
COMMENT ON COLUMN inquiry_answers.answer IS 'Its destinations with their connections, or the connection that it has ended.';
COMMENT ON CONSTRAINT inquiry_answers_inquiry_id_fkey ON inquiry_answers IS 'They end together.';

CREATE FUNCTION inquiry_begin(action text, value text, process text, who text DEFAULT acting()) RETURNS bigint
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pgmta, pg_catalog, pg_temp AS $$
DECLARE
    entry bigint;
    made bigint;
BEGIN
    IF inquiry_begin.action = 'disconnect' THEN
        INSERT INTO audit (who, action, condition)
        VALUES (coalesce(inquiry_begin.who, acting()), 'disconnect',
            'connection ' || inquiry_begin.process || '/' || inquiry_begin.value)
        RETURNING id INTO entry;
    END IF;
    INSERT INTO inquiries AS i (action, value, process, who, audit_id)
    VALUES (inquiry_begin.action, inquiry_begin.value, inquiry_begin.process,
        coalesce(inquiry_begin.who, acting()), entry)
    RETURNING i.id INTO made;
    PERFORM pgmta.notify_channel('pgmta_orders');
    RETURN made;
END $$;
COMMENT ON FUNCTION inquiry_begin IS
    'Asks the processes of queued: inspect a destination, or disconnect a connection of a process, which audit gets. '
    'Returns the number of the inquiry. Answers come within a second.';

CREATE FUNCTION inquiry_answer(inquiry bigint, process text, answer json, entry bigint) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pgmta, pg_catalog, pg_temp AS $$
BEGIN
    INSERT INTO inquiry_answers (inquiry_id, process, answer)
    SELECT i.id, inquiry_answer.process, inquiry_answer.answer
    FROM inquiries AS i WHERE i.id = inquiry FOR KEY SHARE
    ON CONFLICT DO NOTHING;
    -- no look into the answer of another inquiry: a database of another encoding may lack its characters
    IF entry IS NOT NULL AND inquiry_answer.answer -> 'ended' IS NOT NULL THEN
        UPDATE audit AS a SET details = (inquiry_answer.answer -> 'ended')::jsonb, finished_at = now(),
            rows = (inquiry_answer.answer -> 'ended' ->> 'rows')::bigint
        WHERE a.id = entry AND a.action = 'disconnect' AND a.finished_at IS NULL;
    END IF;
END $$;
COMMENT ON FUNCTION inquiry_answer IS
    'Answers an inquiry for a process. A connection that it has ended gets into audit, also if no one waits any more.';

CREATE FUNCTION inquiry_end(inquiry bigint) RETURNS void LANGUAGE sql SECURITY DEFINER
    SET search_path = pgmta, pg_catalog, pg_temp AS $$
    DELETE FROM inquiries WHERE id = inquiry
$$;
COMMENT ON FUNCTION inquiry_end IS 'Ends an inquiry: its answers are read.';

INSERT INTO rights (object, role, privileges) VALUES
    ('inquiries', 'pgmta_queued', 'SELECT, DELETE'),
    ('inquiries', 'pgmta_operator', 'SELECT'),
    ('inquiry_answers', 'pgmta_queued', 'SELECT'),
    ('inquiry_answers', 'pgmta_operator', 'SELECT'),
    ('FUNCTION inquiry_begin', 'pgmta_operator', 'EXECUTE'),
    ('FUNCTION inquiry_end', 'pgmta_operator', 'EXECUTE'),
    ('FUNCTION inquiry_answer', 'pgmta_queued', 'EXECUTE');

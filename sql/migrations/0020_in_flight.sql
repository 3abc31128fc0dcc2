-- What queuectl top shows: the rows in flight of each worker, and how many rows came in.

ALTER TABLE workers ADD COLUMN in_flight integer;
COMMENT ON COLUMN workers.in_flight IS 'deliver: rows that it had leased at its last heartbeat; null: none was since its start.';

INSERT INTO rights (object, role, privileges) VALUES
    ('SEQUENCE queue_ids', 'pgmta_operator', 'SELECT'),
    ('SEQUENCE queue_ids', 'pgmta_reader', 'SELECT'),
    ('SEQUENCE scheduled_ids', 'pgmta_operator', 'SELECT'),
    ('SEQUENCE scheduled_ids', 'pgmta_reader', 'SELECT');

DO $$
BEGIN
    IF grants() <> '{}' THEN
        RAISE WARNING 'a role could not be made'
            USING HINT = 'Create the roles of docs/operate/rights.md (NOLOGIN) and call pgmta.grants() as owner of the tables.';
    END IF;
END $$;

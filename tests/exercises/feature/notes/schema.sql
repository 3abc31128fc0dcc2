CREATE TABLE notes (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, text text NOT NULL);

INSERT INTO rights (object, role, privileges) VALUES
    ('notes', 'pgmta_queued', 'INSERT'),
    ('notes', 'pgmta_operator', 'SELECT'),
    ('notes', 'pgmta_web', 'SELECT');

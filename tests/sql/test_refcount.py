"""The trigger messages_refcount: a body goes with its last row, and never before."""

from __future__ import annotations

import itertools
import random
import threading

import psycopg
import pytest

from tests.sql.test_roles import ROLES
from tests.support.rows import column, message, row

MOVES = [
    "UPDATE queue SET status = 'HOLD' WHERE message_id = 1",
    "UPDATE queue SET status = 'QUEUED' WHERE message_id = 1",
    'UPDATE queue SET metadata = \'{"_partid": "7"}\' WHERE message_id = 1',
    "UPDATE queue SET status = 'HOLD' WHERE message_id = 1",
    "UPDATE queue SET status = 'DEFERRED', metadata = '{}' WHERE message_id = 1",
    "UPDATE queue SET status = 'DELETE' WHERE message_id = 1",
]


def bodies(db: psycopg.Connection) -> list[int]:
    return column(db, "SELECT id FROM messages ORDER BY id")


def test_body_goes_with_the_last_row_wherever_the_rows_have_been(db: psycopg.Connection) -> None:
    db.execute("CREATE TABLE queue_def_7 PARTITION OF queue_def FOR VALUES IN ('7')")
    for number in (1, 2, 3):
        message(db, number, chunks=number - 1)
        for _ in range(3):
            row(db, number, status="HOLD" if number == 3 else "QUEUED")
    for move in MOVES:
        assert db.execute(move.encode()).rowcount == 3
        assert bodies(db) == [1, 2, 3]
    homes = "SELECT DISTINCT tableoid::regclass::text FROM queue ORDER BY 1"
    assert column(db, homes) == ["queue_def_def", "queue_delete", "queue_hold"]

    left = column(db, "SELECT id FROM queue WHERE message_id = 1 ORDER BY id")
    for gone in left:
        assert bodies(db) == [1, 2, 3]
        db.execute("DELETE FROM queue WHERE id = %s", (gone,))
    assert bodies(db) == [2, 3]
    with db.transaction(force_rollback=True):
        db.execute("DELETE FROM queue")
        assert bodies(db) == []
        assert column(db, "SELECT message_id FROM message_chunks") == []
    assert bodies(db) == [2, 3]
    assert len(column(db, "SELECT 1 FROM message_chunks")) == 3
    db.execute("DELETE FROM queue WHERE false")
    db.execute("DELETE FROM queue WHERE message_id = 2 OR status = 'HOLD'")
    assert bodies(db) == []
    assert column(db, "SELECT message_id FROM message_chunks") == []


def test_rows_without_a_body_and_bodies_under_rows_are_refused(db: psycopg.Connection) -> None:
    row(db, message(db, 1))
    with pytest.raises(psycopg.errors.ForeignKeyViolation):
        row(db, 2)
    message(db, 3)
    for statement in (
        "DELETE FROM messages",
        "TRUNCATE messages CASCADE",
        "UPDATE queue SET message_id = 2",
        "INSERT INTO queue_def_def (message_id, sender, recipient, domain, status)"
        " VALUES (2, '', 'a@b.example', 'b.example', 'QUEUED')",
    ):
        with pytest.raises(psycopg.errors.ForeignKeyViolation):
            db.execute(statement.encode())
    db.execute("DELETE FROM messages WHERE id = 3")
    assert bodies(db) == [1]
    db.execute("TRUNCATE messages, queue")
    assert bodies(db) == []


LOSING = [
    "UPDATE queue SET message_id = 2, status = 'HOLD'",  # moves the row
    "UPDATE messages SET id = 2",
    "DELETE FROM app",  # whose trigger deletes the body
    "WITH gone AS (DELETE FROM messages RETURNING id)"
    " UPDATE queue SET metadata = '{}' FROM gone WHERE message_id = gone.id",
    "MERGE INTO queue USING (VALUES (2)) AS new (id) ON false WHEN NOT MATCHED THEN"
    " INSERT (message_id, sender, recipient, domain, status)"
    " VALUES (new.id, '', 'a@b.example', 'b.example', 'QUEUED')",
]


def test_other_ways_to_lose_a_body_are_refused(db: psycopg.Connection) -> None:
    row(db, message(db, 1))
    db.execute("UPDATE queue SET by_program = NULL")  # as those of smtpd
    db.execute(
        """
        CREATE TABLE app AS SELECT 1 AS id;
        CREATE FUNCTION app_gone() RETURNS trigger LANGUAGE plpgsql AS
            'BEGIN DELETE FROM messages WHERE id = OLD.id; RETURN NULL; END';
        CREATE TRIGGER app_gone AFTER DELETE ON app FOR EACH ROW EXECUTE FUNCTION app_gone();
        """
    )
    for statement in LOSING:
        with pytest.raises(psycopg.errors.ForeignKeyViolation):
            db.execute(statement.encode())


def test_the_setting_of_the_refcount_counts_for_the_owner_alone(db: psycopg.Connection) -> None:
    row(db, message(db, 1))
    for role in (*ROLES, "a stranger"):
        with db.transaction(force_rollback=True):
            db.execute(b'CREATE ROLE "a stranger"')
            db.execute(f'GRANT USAGE ON SCHEMA pgmta TO "{role}"'.encode())
            db.execute(f'GRANT SELECT, DELETE ON messages TO "{role}"'.encode())
            db.execute(f'SET LOCAL ROLE "{role}"; SET LOCAL pgmta.writer = refcount'.encode())
            with pytest.raises(psycopg.errors.ForeignKeyViolation), db.transaction():
                db.execute("DELETE FROM messages")
            db.execute("RESET ROLE; DELETE FROM queue")
            assert bodies(db) == []


def test_old_snapshots_delete_no_body(database: str, db: psycopg.Connection) -> None:
    refused = psycopg.errors.ForeignKeyViolation, psycopg.errors.ObjectNotInPrerequisiteState
    for level, statement in itertools.product(
        psycopg.IsolationLevel, ("DELETE FROM messages", "TRUNCATE messages")
    ):
        message(db, 1)
        with psycopg.connect(database) as old:
            old.isolation_level = level
            old.execute("SELECT FROM queue")
            row(db, 1)
            with pytest.raises(refused):
                old.execute(statement.encode())
            old.rollback()
        assert bodies(db) == [1], (level, statement)
        db.execute("TRUNCATE messages, queue")


def test_a_snapshot_that_may_miss_a_row_deletes_no_body(
    database: str, db: psycopg.Connection
) -> None:
    first = row(db, message(db, 1))
    with psycopg.connect(database) as old:
        old.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        old.execute("SELECT 1 FROM queue")
        row(db, 1)
        old.execute("DELETE FROM queue WHERE id = %s", (first,))
    assert bodies(db) == [1]
    assert len(column(db, "SELECT id FROM queue")) == 1


def test_insert_races_with_the_removal_of_the_last_row(
    database: str, db: psycopg.Connection
) -> None:
    """A row that comes while its message goes: refused, or it keeps the message; never dangling."""
    for number in range(1, 60):
        row(db, message(db, number))
        added = threading.Thread(target=_add, args=(database, number))
        added.start()
        db.execute("DELETE FROM queue WHERE id = (SELECT min(id) FROM queue WHERE message_id = %s)",
                   (number,))  # fmt: skip
        added.join()
    assert column(db, "SELECT message_id FROM queue ORDER BY 1") == bodies(db)


def _add(database: str, number: int) -> None:
    with psycopg.connect(database, autocommit=True) as db:
        try:
            row(db, number)
        except psycopg.errors.ForeignKeyViolation:
            return


def test_concurrent_deletes_of_shared_messages_leave_no_body(
    database: str, db: psycopg.Connection
) -> None:
    shares = 4
    ids: list[int] = []
    for number in range(80):
        message(db, number, chunks=number % 2)
        ids += [row(db, number) for _ in range(shares)]
    dice = random.Random(1)
    dice.shuffle(ids)
    errors: list[BaseException] = []

    def delete(mine: list[int], own: random.Random) -> None:
        try:
            with psycopg.connect(database, autocommit=True) as connection:
                while mine:
                    size = own.randint(1, 9)
                    group, mine = mine[:size], mine[size:]
                    connection.execute("DELETE FROM queue WHERE id = ANY(%s)", (group,))
        except BaseException as error:
            errors.append(error)  # a deadlock, most likely

    threads = [
        threading.Thread(target=delete, args=(ids[n::shares], random.Random(dice.random())))
        for n in range(shares)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert column(db, "SELECT message_id FROM queue") == []
    assert bodies(db) == []
    assert column(db, "SELECT message_id FROM message_chunks") == []

"""pgmta.enqueue over psycopg: in the transaction of the program, and without a trace in it."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo
from psycopg.rows import dict_row

import pgmta
from pgmta.client.own_connection import enqueue_many
from tests.pgmta.client.test_client import mail, subjects

KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "rows are dictionaries": {"row_factory": dict_row},
    "the client binds": {"cursor_factory": psycopg.ClientCursor, "row_factory": dict_row},
    "all is prepared": {"prepare_threshold": 0},
    "another encoding": {"options": "-c client_encoding=LATIN1 -c role=pgmta_submit"},
}


@pytest.mark.parametrize("kind", KINDS)
def test_mail_belongs_to_the_transaction(database: str, db: psycopg.Connection, kind: str) -> None:
    with psycopg.connect(database, **KINDS[kind]) as own:
        kept = pgmta.enqueue(own, mail("käpt 😀", attachments=[pgmta.Attachment("a", b"\0\xff")]))
        assert subjects(db) == []
        own.commit()
        pgmta.enqueue(own, mail("rolled back"))
        own.rollback()
        second = pgmta.enqueue(own, mail("second"))
        with own.transaction(force_rollback=True):
            pgmta.enqueue(own, mail("savepoint"))
        for bad, error in (
            (mail(to=["bad"]), pgmta.SubmissionError), (mail(subject=7), TypeError)
        ):  # fmt: skip
            with pytest.raises(error):
                pgmta.enqueue(own, bad)
        found = enqueue_many(own, [mail("many 0"), mail(body="\0"), mail(to=["x"]), mail("many 3")])
        assert [type(each.error).__name__ for each in found] == [
            "NoneType", "SubmissionError", "SubmissionError", "NoneType"
        ]  # fmt: skip
        own.commit()
        cursor = own.cursor(row_factory=psycopg.rows.tuple_row)
        own_view = cursor.execute("SELECT count(*) FROM pg_prepared_statements").fetchone()
        assert own_view == (0,) or kind == "all is prepared"
    assert subjects(db) == [
        (kept, "Mail käpt 😀"), (second, "Mail second"), (found[0].id, "Mail many 0"),
        (found[3].id, "Mail many 3"),
    ]  # fmt: skip


async def test_an_asynchronous_connection(database: str, db: psycopg.Connection) -> None:
    async with await psycopg.AsyncConnection.connect(database, row_factory=dict_row) as own:
        kept = await pgmta.enqueue(own, mail("kept"))
        async with own.transaction(force_rollback=True):
            await pgmta.enqueue(own, mail("savepoint"))
        with pytest.raises(pgmta.SubmissionError, match="^subject: "):
            await pgmta.enqueue(own, mail(subject="a\nb"))
        async with own.pipeline():
            piped = [await pgmta.enqueue(own, mail(f"piped {n}")) for n in range(2)]
        await own.commit()
        await own.set_autocommit(True)
        at_once = await pgmta.enqueue(own, mail("at once"))
    assert [number for number, _ in subjects(db)] == [kept, *piped, at_once]


def test_a_commit_that_fails_sends_nothing(database: str, db: psycopg.Connection) -> None:
    db.execute("CREATE TABLE public.orders (id int PRIMARY KEY DEFERRABLE INITIALLY DEFERRED)")
    with psycopg.connect(database) as own:
        own.execute("INSERT INTO public.orders VALUES (1), (1)")
        pgmta.enqueue(own, mail())
        with pytest.raises(psycopg.errors.UniqueViolation):
            own.commit()
    with psycopg.connect(database, autocommit=True) as own, own.pipeline():
        assert pgmta.enqueue(own, mail())
    assert len(subjects(db)) == 1


def test_other_objects_are_refused(database: str, db: psycopg.Connection) -> None:
    for wrong in (None, database, db.cursor(), object()):
        with pytest.raises(TypeError, match=r"^connection: give a psycopg Connection .*, and not"):
            pgmta.enqueue(wrong, mail())
    with (
        closing(sqlite3.connect(":memory:")) as other,
        pytest.raises(TypeError, match=r", and not sqlite3\.Connection$"),
    ):
        pgmta.enqueue(other, mail())
    with psycopg.connect(database) as own, pytest.raises(TypeError, match="^mails: give a list"):
        enqueue_many(own, mail())  # type: ignore[call-overload]
    stranger = make_conninfo(database, options="-c role=pgmta_reader")
    with (
        psycopg.connect(stranger) as own,
        pytest.raises(psycopg.errors.InsufficientPrivilege),
    ):
        pgmta.enqueue(own, mail())

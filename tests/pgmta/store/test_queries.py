"""Statements, and the one way to put text into them."""

from __future__ import annotations

import psycopg
import pytest
from psycopg import sql

from pgmta.store.queries import Statement, bracketed

WHERE = Statement(b"SELECT %(n)s::int, {list} WHERE {where}")


@pytest.mark.parametrize(
    "condition",
    [
        "'50%' LIKE '%0\\%'",
        "'{list} {where}' = '{list} ' || '{where}'",
        "true -- the end of the line ends this",
        "'%(n)s' <> '%%'",
        "true OR false",
    ],
)
def test_a_condition_stands_in_a_statement_as_it_is_written(
    db: psycopg.Connection, condition: str
) -> None:
    longer = f"{condition} AND true" if "--" not in condition else condition
    for statement in (
        WHERE.fill(list="2").fill(where=bracketed(longer)),
        WHERE.fill(list="2", where=bracketed(condition)),
    ):
        assert db.execute(statement, {"n": 1}).fetchall() == [(1, 2)]


def test_a_statement_may_be_part_of_another(db: psycopg.Connection) -> None:
    part = Statement(b"(SELECT {what})")
    statement = WHERE.fill(list=part).fill(what="3")
    where = bracketed("true")
    assert db.execute(statement.fill(where=where), {"n": 1}).fetchall() == [(1, 3)]
    assert WHERE.fill(where=where) is WHERE.fill(where=where)  # kept, not made again
    assert WHERE.fill() == WHERE


def test_names_and_literals_stand_in_a_statement_without_parameters(
    db: psycopg.Connection,
) -> None:
    statement = Statement(b"SELECT {value} AS {name}, '100%'")
    composed = statement.format(value=sql.Literal("o'clock %"), name=sql.Identifier('a"b'))
    assert db.execute(composed).fetchall() == [("o'clock %", "100%")]
    with pytest.raises(KeyError):
        statement.format(value=sql.Literal(1))

"""environment.database.where, and the shape of the SQL folder."""

from __future__ import annotations

from pathlib import Path

import psycopg
import pytest

from queued.db import Link
from queued.errors import ConfigError
from queued.store import queries
from queued.store.claim import SESSION, Claims, check_where
from tests.sql.rows import column, message, row

ROOT = Path(__file__).parents[2]

GOOD = [
    "true",
    "metadata->>'_partid' IN ('1', '2')",
    "domain LIKE '%.example' -- 100% of them",
    "id % 2 = 0 OR attempts > 1",
    "priority = 3 /* ) */ AND recipient <> ')'",
    "message_id IN (SELECT id FROM messages WHERE size < 1000)",
    "CASE WHEN attempts > 3 THEN true ELSE false END",
    "status = $$QUEUED$$",
]

BAD = [
    ("domain = ", "syntax error"),
    ("domian = 'x'", 'column "domian" does not exist at character 1'),
    ("true AND colour", 'column "colour" does not exist at character 10'),
    ("1", "must be type boolean"),
    ("domain", "must be type boolean"),
    ("true, true", "syntax error"),
    ("nosuch(domain)", "function nosuch(text) does not exist"),
    ("count(*) > 1", "aggregate functions are not allowed"),
    ("true; DROP TABLE queue", "syntax error"),
    ("true); DROP TABLE queue; SELECT (true", "syntax error"),
    ("true THEN true END); DROP TABLE queue; --", "syntax error"),
    ("true) --", "syntax error"),
    ("true) OR (true", "syntax error"),
    ("true THEN true END OR CASE WHEN true", "syntax error"),
    ("true) UNION SELECT FROM queue WHERE (true", "syntax error"),
    ("(true", "syntax error"),
    ("true)", "syntax error"),
    ("domain = 'x", "unterminated quoted string"),
    ('domain = "x', "unterminated quoted identifier"),
    ("true /* (", "unterminated /* comment"),
    ("true $$ (", "unterminated dollar-quoted string"),
    ("attempts < $1", "parameters"),
    ("", "syntax error"),
    ("SELECT true", "syntax error"),
    ("queue.id IN (DELETE FROM queue RETURNING id)", "syntax error"),
]


@pytest.mark.parametrize("where", GOOD)
async def test_conditions_that_are_one_choose_only_among_due_rows(
    where: str, database: str, db: psycopg.Connection
) -> None:
    await check_where(database, where)
    message(db, 1)
    due = {row(db, 1, domain=f"x{n}.example", priority=3, attempts=n % 5) for n in range(20)}
    for status in ("HOLD", "DELETE"):
        row(db, 1, status=status, priority=3)
    link = Link(database, "test", SESSION)
    claimed = {item.id for item in await Claims(link, "w", 60, where).claim(100, [])}
    await link.close()
    assert claimed <= due
    assert sorted(claimed) == column(
        db, "SELECT id FROM queue WHERE status = 'SENDING' ORDER BY id"
    )


async def test_conditions_that_are_none_are_told_and_nothing_of_them_is_run(
    database: str, db: psycopg.Connection
) -> None:
    row(db, message(db, 1))
    for where, reason in BAD:
        with pytest.raises(ConfigError) as caught:
            await check_where(database, where)
        (problem,) = caught.value.problems
        assert problem.startswith("environment.database.where: "), where
        assert reason in problem, where
    assert column(db, "SELECT status FROM queue") == ["QUEUED"]


async def test_a_condition_is_not_checked_against_a_database_that_is_away() -> None:
    with pytest.raises(psycopg.OperationalError):
        await check_where("postgresql://postgres@127.0.0.1:1/x?connect_timeout=1", "true")


def test_every_file_of_queries_has_its_twin_in_python() -> None:
    files = {path.stem for path in (ROOT / "sql" / "queries").glob("*.sql")}
    modules = {path.stem for path in (ROOT / "queued" / "store").glob("*.py")}
    assert modules - {"__init__", "queries", "migrate"} == files
    for name in files:
        twin = (ROOT / "queued" / "store" / f"{name}.py").read_text(encoding="utf-8")
        for statement, text in queries.queries(name).items():
            assert f'_SQL["{statement}"]' in twin, f"{name}.sql: nobody runs {statement}"
            assert text.startswith("-- "), f"{name}.sql: {statement} does not say what it does"
    outside = [
        path
        for package in ("queued", "smtpd")
        for path in (ROOT / package).rglob("*.py")
        if "_SQL[" in path.read_text(encoding="utf-8") and path.parent.name != "store"
    ]
    assert outside == []

"""environment.database.where: which conditions are taken, and what they choose."""

from __future__ import annotations

from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from pgmta.errors import ConfigError, StoreUnavailable
from pgmta.postgres.link import Link
from pgmta.store.queue.claim import Claims
from pgmta.store.queue.conditions import check_conditions, partition_condition
from tests.support.rows import column, message, row

ROOT = Path(__file__).parents[4]

GOOD = [
    "true",
    "metadata->>'_partid' IN ('1', '2')",
    "domain LIKE '%.example'",
    "id % 2 = 0 OR attempts > 1",
    "priority = 3 AND recipient <> ')'",
    "recipient <> '--' AND sender <> '/* ; */'",
    "CASE WHEN attempts > 3 THEN true ELSE false END",
    "status = $$QUEUED$$",
    "ts < now() + interval '1 day'",
]

BAD = [
    ("domain = ", "syntax error"),
    ("domian = 'x'", "at character 1; did you mean 'domain'?"),
    ("true OR queue.sender_domian = 'x'", "at character 9; did you mean 'sender_domain'?"),
    ("true AND colour", 'column "colour" does not exist, at character 10'),
    ("messages.size > 1", "missing FROM-clause entry"),
    ("1", "must be type boolean"),
    ("domain", "must be type boolean"),
    ("attempts > 'many'", "invalid input syntax for type integer"),
    ("now() > 5", "operator does not exist"),
    ("metadata->'k' = 'x'", "invalid input syntax for type json"),
    ("1 / 0 = 1", "division by zero"),
    ("true, true", "must be type boolean"),
    ("nosuch(domain)", "function nosuch(text) does not exist"),
    ("count(*) > 1", "aggregate functions are not allowed"),
    ("row_number() OVER () > 1", "window functions are not allowed"),
    ("generate_series(1, 2) = 1", "set-returning functions are not allowed"),
    ("true; DROP TABLE queue", "syntax error"),
    ("true); DROP TABLE queue; SELECT (true", "syntax error"),
    ("true])[1]; DROP TABLE queue; SELECT (ARRAY[true", "cannot insert multiple commands"),
    ("true THEN true END); DROP TABLE queue; --", "syntax error"),
    ("true) --", "syntax error"),
    ("true -- quite", "a comment is not allowed"),
    ("true /* quite */", "a comment is not allowed"),
    ("true) OR (true", "syntax error"),
    ("true] || ARRAY[true", "syntax error"),
    ("true) UNION SELECT FROM queue WHERE (true", "syntax error"),
    ("(true", "syntax error"),
    ("true)", "syntax error"),
    ("domain = 'x", "unterminated quoted string"),
    ('domain = "x', "unterminated quoted identifier"),
    ("true /* (", "unterminated /* comment"),
    ("true $$ (", "unterminated dollar-quoted string"),
    ("attempts < $1", "there is no parameter $1"),
    ("", "the condition is empty"),
    ("SELECT true", "syntax error"),
    ("select", 'syntax error at or near "select", at character 1'),
    ("queue.id IN (DELETE FROM queue RETURNING id)", "syntax error"),
    ("message_id IN (SELECT id FROM messages)", "a subselect is not allowed"),
    ("id IN (SELECT n FROM nosuch)", "a subselect is not allowed"),
    ("domain = example.com", "a text stands in quotes: 'example.com'"),
    ("EXISTS (SELECT pg_terminate_backend(1))", "a subselect is not allowed"),
    ("random() < 0.5", "function random is volatile"),
    ("nextval('queue_ids') > 0", "function nextval is volatile"),
    ("set_config('a.b', 'c', false) = 'c'", "function set_config is volatile"),
    ("ctid IS NOT NULL", "no system columns"),
]


async def test_conditions_that_are_one_choose_only_among_due_rows(
    database: str, db: psycopg.Connection, link: Link
) -> None:
    sending = "SELECT id FROM queue WHERE status = 'SENDING' ORDER BY id"
    for where in GOOD:
        await check_conditions(database, {"here": where})
        message(db, 1)
        due = {row(db, 1, domain=f"x{n}.example", priority=3, attempts=n % 5) for n in range(20)}
        for status in ("HOLD", "DELETE"):
            row(db, 1, status=status, priority=3)
        claimed = {item.id for item in (await Claims(link, "w", 60, where).claim(100, [])).items}
        assert claimed <= due, where
        assert sorted(claimed) == column(db, sending), where
        db.execute("DELETE FROM queue")


async def test_conditions_that_are_none_are_told_and_nothing_of_them_is_run(
    database: str, db: psycopg.Connection
) -> None:
    row(db, message(db, 1))
    before = column(db, "SELECT last_value FROM queue_ids")
    for where, reason in BAD:
        with pytest.raises(ConfigError) as caught:
            await check_conditions(database, {"here": where})
        (problem,) = caught.value.problems
        assert problem.startswith("here: "), where
        assert reason in problem, where
    assert column(db, "SELECT status FROM queue") == ["QUEUED"]
    assert column(db, "SELECT last_value FROM queue_ids") == before


async def test_conditions_are_checked_without_any_object(
    database: str, db: psycopg.Connection
) -> None:
    """As by a login without the right TEMPORARY, on a standby, and beside a trigger of others."""
    db.execute("""
        CREATE FUNCTION public.no_ddl() RETURNS event_trigger LANGUAGE plpgsql AS
            $$ BEGIN RAISE 'no DDL here'; END $$;
        CREATE EVENT TRIGGER no_ddl ON ddl_command_start EXECUTE FUNCTION public.no_ddl();
    """)
    db.execute(f"REVOKE ALL ON DATABASE {db.info.dbname} FROM PUBLIC".encode())
    db.execute("SET default_transaction_read_only = on")
    operator = make_conninfo(database, options="-c role=pgmta_operator")
    await check_conditions(operator, {"here": "domain = 'x'", "rule": "domain = 'x'"}, {"rule"})
    with pytest.raises(ConfigError, match="a subselect"):
        await check_conditions(operator, {"rule": "sender = (SELECT '')"}, {"rule"})
    assert column(db, "SELECT condition_fault(%s)", "domain = 'x'") == [None]
    assert column(db, "SELECT condition_fault(%s)", "nosuch(domain)") != [None]


def test_only_conditions_about_the_partition_key_choose_partitions() -> None:
    for where in (
        "metadata->>'_partid' IN ('1', 'or')",
        "(metadata ->> '_partid' = '1' OR metadata->>'_partid' IS NULL)",
        "metadata->>'_partid' NOT IN ('2') AND metadata->>'_partid' IS NOT NULL",
    ):
        assert partition_condition(where) == where
    nothing: list[str | None] = [
        None,
        "true",
        "metadata->>'_partid' = domain",
        "metadata->>'_partid' = '1' AND priority = 3",
        "metadata->>'other' = '1'",
    ]
    assert {partition_condition(where) for where in nothing} == {"true"}


async def test_a_condition_is_not_checked_against_a_database_that_is_away() -> None:
    with pytest.raises(StoreUnavailable):
        await check_conditions(
            "postgresql://postgres@127.0.0.1:1/x?connect_timeout=1", {"here": "true"}
        )

"""The table templates: versions never change, and two operators make no version twice."""

from __future__ import annotations

import threading

import psycopg
import pytest
from hypothesis import given
from hypothesis import strategies as st
from psycopg import errors as pg_errors

from pgmta.compose.template import TemplateSource, compile_template
from pgmta.mail.names import check_name, check_tenant
from pgmta.postgres.operator import connected
from pgmta.store.changes.templates import NamedTemplate, TemplateTable
from pgmta.store.queue.contents import Contents
from tests.sql.test_roles import acting
from tests.sql.test_surface import linked
from tests.support.operating import operating
from tests.support.rows import column
from tests.support.waiting import until


def named(name: str, text: str, tenant: str = "") -> NamedTemplate:
    source = TemplateSource(
        sender="b@shop.example", from_="Shop <info@shop.example>", subject="Order {{order}}",
        body=text, html='<p title="{{order}}">{{name}}</p>',
        headers={"X-Order": "{{order}}", "List-Id": "<shop.example>"},
    )  # fmt: skip
    return NamedTemplate(tenant, name, source, compile_template(source))


def test_a_version_never_changes(database: str, db: psycopg.Connection) -> None:
    with operating(database, lambda db: TemplateTable(db, "test")) as table:
        assert table.put([named("a", "x"), named("b", "x")]) == [(1, True), (1, True)]
        assert table.put([named("b", "x"), named("a", "y")]) == [(1, False), (2, True)]
    before = db.execute("TABLE templates").fetchall()
    for statement in (
        "UPDATE templates SET subject = 'other'",
        "UPDATE templates SET subject = subject WHERE false",
        "DELETE FROM templates WHERE version = 1",
        "TRUNCATE templates CASCADE",
    ):
        with pytest.raises(
            pg_errors.ObjectNotInPrerequisiteState, match="never changed or removed"
        ):
            db.execute(statement.encode())
        with (
            psycopg.connect(acting(database, "pgmta_operator")) as operator,
            pytest.raises(pg_errors.InsufficientPrivilege),
        ):
            operator.execute(f"SET search_path = pgmta; {statement}".encode())
    assert db.execute("TABLE templates").fetchall() == before


def test_bad_rows_are_refused(db: psycopg.Connection) -> None:
    insert = (
        "INSERT INTO templates (name, version, sender, from_field, subject, body, headers, tenant)"
        " VALUES (%s, %s, '', 'a@b.example', '', %s, %s, %s)"
    )
    db.execute(insert, ("a", 1, "", "{}", ""))
    for bad in (
        ("a b", 1, "", "{}", ""), ("a\n", 1, "", "{}", ""), ("", 1, "", "{}", ""),
        ("a" * 65, 1, "", "{}", ""), ("b", 0, "", "{}", ""), ("b", 1, None, "{}", ""),
        ("b", 1, "", "[]", ""), ("b", 1, "", "{}", " "), ("b", 1, "", "{}", "x" * 65),
    ):  # fmt: skip
        with pytest.raises(pg_errors.CheckViolation):
            db.execute(insert, bad)
    with pytest.raises(pg_errors.UniqueViolation):
        db.execute(insert, ("a", 1, "", "{}", ""))


@given(
    st.one_of(
        st.text(st.sampled_from("aZ9._@+- \nä"), max_size=6),
        st.sampled_from((63, 64, 65)).map(lambda size: "x" * size),
    )
)
def test_files_and_the_table_take_the_same_names(
    template_db: psycopg.Connection, text: str
) -> None:
    insert = (
        "INSERT INTO templates (name, tenant, version, sender, from_field, subject, body)"
        " VALUES (%s, %s, 1, '', 'a@b.example', '', '')"
    )
    for check, row in ((check_name, (text, "")), (check_tenant, ("a", text))):
        with template_db.transaction(force_rollback=True):
            try:
                template_db.execute(insert, row)
            except pg_errors.CheckViolation:
                with pytest.raises(ValueError, match="no name"):
                    check(text)
            else:
                assert check(text) == text


def test_two_operators_make_no_version_twice(database: str, db: psycopg.Connection) -> None:
    """The second one waits for the first, and then makes the next version, or none."""
    insert = (
        "INSERT INTO pgmta.templates (name, version, sender, from_field, subject, body)"
        " SELECT name, version + 1, sender, from_field, subject, 'x' || body"
        " FROM pgmta.templates ORDER BY version DESC LIMIT 1"
    )
    waiting = "SELECT FROM pg_locks WHERE locktype = 'transactionid' AND NOT granted"
    done: list[tuple[int, bool]] = []

    def put(text: str) -> None:
        with operating(database, lambda db: TemplateTable(db, "test")) as table:
            done.extend(table.put([named("a", text)]))

    def put_meanwhile(text: str, number: int, *, undone: bool) -> list[tuple[int, bool]]:
        done.clear()
        threads = [threading.Thread(target=put, args=(text,)) for _ in range(number)]
        with psycopg.connect(database) as other:
            other.execute(insert.encode())
            for thread in threads:
                thread.start()
            until(lambda: db.execute(waiting.encode()).rowcount == number)
            if undone:
                other.rollback()
        for thread in threads:
            thread.join()
        return sorted(done)

    put("one")
    assert done == [(1, True)]
    assert put_meanwhile("two", 1, undone=True) == [(2, True)]
    assert put_meanwhile("three", 4, undone=False) == [(4, False)] * 3 + [(4, True)]
    assert column(db, "SELECT version FROM templates ORDER BY version") == [1, 2, 3, 4]


async def test_queued_reads_sources_by_id(database: str, db: psycopg.Connection) -> None:
    first, second = named("a", "x"), named("a", "y", "tenant")
    async with connected(database) as operator:
        table = TemplateTable(operator, "test")
        await table.put([first, second])
        found = await table.find("tenant", "a")
    assert found is not None
    assert found.row["words"] == {"name": ["text"], "order": ["field", "text"]}
    ids: dict[str, int] = dict(db.execute("SELECT tenant, id FROM templates").fetchall())
    async with linked(database, role="pgmta_queued") as link:
        read = await Contents(link).templates([*ids.values(), 4711])
    assert read == {ids[""]: first.source, ids["tenant"]: second.source}

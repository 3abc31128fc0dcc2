"""docs/develop/architecture.md, Tables, has every table and every partition of queue."""

from __future__ import annotations

import re

import psycopg

from tests.support.daemons import ROOT
from tests.support.rows import column

SECTION = (
    (ROOT / "docs" / "develop" / "architecture.md")
    .read_text(encoding="utf-8")
    .partition("## Tables")[2]
    .partition("\n## ")[0]
)


def test_the_page_has_every_table(db: psycopg.Connection) -> None:
    firsts = re.findall(r"^\| (`[^|]+) \|", SECTION, re.MULTILINE)
    named = [name for first in firsts for name in re.findall(r"`(\w+)`", first)]
    tables = column(
        db,
        "SELECT relname FROM pg_class WHERE relnamespace = 'pgmta'::regnamespace"
        " AND relkind IN ('r', 'p') AND NOT relispartition",
    )
    assert sorted(named) == sorted(tables)


def test_the_pages_have_every_partition_by_status(db: psycopg.Connection) -> None:
    query = (
        "SELECT inhrelid::regclass::text FROM pg_inherits JOIN pg_class ON oid = inhrelid"
        " WHERE inhparent = 'queue'::regclass"
        " AND pg_get_expr(relpartbound, oid) <> 'DEFAULT'"
    )
    page = (ROOT / "docs" / "programs" / "sql.md").read_text(encoding="utf-8")
    for name in column(db, query):
        assert f"`{name}`" in SECTION
        assert f"`{name}`" in page.partition("## Partitions")[2]

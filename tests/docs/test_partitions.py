"""docs/programs/sql.md has every partition of queue."""

from __future__ import annotations

import psycopg

from tests.support.daemons import ROOT
from tests.support.rows import column


def test_the_page_has_every_partition_by_status(db: psycopg.Connection) -> None:
    query = (
        "SELECT inhrelid::regclass::text FROM pg_inherits JOIN pg_class ON oid = inhrelid"
        " WHERE inhparent = 'queue'::regclass"
        " AND pg_get_expr(relpartbound, oid) <> 'DEFAULT'"
    )
    page = (ROOT / "docs" / "programs" / "sql.md").read_text(encoding="utf-8")
    for name in column(db, query):
        assert f"`{name}`" in page.partition("## Partitions")[2]

"""Functions are what their marks say: evaluated early, or in a parallel plan."""

from __future__ import annotations

import psycopg

from pgmta_features.lifecycle.installation import install
from tests.sql.test_text_of_callers import given
from tests.support.queuectl import Command
from tests.support.rows import fetch, message, row

OURS = "pronamespace IN ('pgmta'::regnamespace, 'lifecycle'::regnamespace) AND prokind = 'f'"
CHANGES = (
    r"\m(insert\s+into|delete\s+from|update\s+[\w.]+(\s+as\s+\w+)?\s+set|for\s+(no\s+key\s+)?update"
    r"|truncate|nextval|setval|pg_notify|gen_random_uuid|random|clock_timestamp)\M"
)
"""What a function that is not volatile can't have."""
LIMITED = "api_search"
"""It is stable for one snapshot, and looks at the clock to end in time."""
SEES = r"\m((from|join)\s+(pgmta\.|lifecycle\.)\w|now\(|current_setting|session_user|current_user)"
"""What an immutable function can't have."""


WRONG = rf"""
SELECT oid::regprocedure::text FROM pg_proc,
    regexp_replace(prosrc, '--[^\n]*|''[^'']*''', '', 'g') AS code
WHERE {OURS} AND (proparallel <> 'u' AND code ~* '\mexception\s+when'
    OR provolatile <> 'v' AND code ~* '{CHANGES}' AND proname <> '{LIMITED}'
    OR provolatile = 'i' AND code ~* '{SEES}')
"""
"""A block with EXCEPTION is a subtransaction, which before PostgreSQL 17 no parallel plan has."""


def force(db: psycopg.Connection) -> None:
    """Let every plan of this database that may be parallel be so, also those of later sessions."""
    name = "debug_parallel_query" if db.info.server_version >= 160000 else "force_parallel_mode"
    for setting in (
        f"{name} = on",
        "parallel_setup_cost = 0",
        "parallel_tuple_cost = 0",
        "min_parallel_table_scan_size = 0",
        "min_parallel_index_scan_size = 0",
    ):
        db.execute(f"ALTER DATABASE {db.info.dbname} SET {setting}; SET {setting}".encode())


def test_each_function_may_do_what_its_mark_says(database: str, db: psycopg.Connection) -> None:
    install(database)
    message(db, 1)
    force(db)
    assert db.execute(WRONG.encode()).fetchall() == []
    marked = db.execute(
        f"SELECT oid::regproc::text, proargtypes::regtype[]::text[], coalesce(proargnames, '{{}}')"
        f" FROM pg_proc WHERE {OURS} AND proparallel <> 'u' AND NOT proretset".encode()
    ).fetchall()
    assert marked
    for function, kinds, names in marked:
        names = [*names, *[""] * len(kinds)]
        arguments = ", ".join(given(name, kind) for name, kind in zip(names, kinds, strict=False))
        query = f"SELECT {function}({arguments}) FROM pgmta.messages".encode()
        assert "Gather" in str(db.execute(b"EXPLAIN " + query).fetchall()), function
        db.execute(query)


VIEWS = """
SELECT relname FROM pg_class WHERE relnamespace = 'pgmta'::regnamespace AND relkind = 'v'
    AND relname <> 'message_status'
"""
"""All that are asked without a condition."""


def test_commands_and_views_work_in_parallel_plans(
    db: psycopg.Connection, command: Command, database: str
) -> None:
    trace = "Received: from x ([192.0.2.1]) by mx.example (pgmta) with ESMTP id 1;\r\n"
    here = row(db, message(db, 1), domain="b.example")
    row(db, 1, status="HOLD", hold_reason="why")
    db.execute("UPDATE messages SET trace = %s", [trace])
    db.execute("INSERT INTO rules (name, action, condition, reason, origin)"
               " VALUES ('r', 'hold', 'domain = ''c.example''', 'x', 'operator')")  # fmt: skip
    fetch(db, "SELECT queue_suspend('condition', 'sender LIKE ''x%%''', 'r')")
    fetch(db, "SELECT rows_log(ARRAY[%s::bigint], 'unknown', 'w', 'lost')", here)
    force(db)
    found = command("find", "--client", "192.0.2.1", "--json")
    assert found.exit_code == 0, found.output
    assert "192.0.2.1" in found.output
    for words in (
        ("find", "--domain", "b.example"),
        ("list", "--where", "domain = 'b.example'"),
        ("list", "--count", "--by", "domain"),
        ("list", "--count", "--by", "class", "--since", "1h"),
        ("show", "1"),
        ("explain", "1"),
        ("status", "1"),
        ("rule", "list"),
        ("suspend", "--list"),
        ("workers",),
        ("release", "--where", "sender <> ''", "--yes"),
    ):
        done = command(*words)
        assert done.exit_code == 0, f"{words}: {done.output}"
    for (view,) in db.execute(VIEWS.encode()).fetchall():
        db.execute(f"SELECT * FROM {view}".encode())
    db.execute("SELECT * FROM message_status WHERE message_id = 1")

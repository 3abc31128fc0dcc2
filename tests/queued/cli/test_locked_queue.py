"""Behind a session that keeps the queue to itself, each command ends and names the session."""

from __future__ import annotations

import shlex

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from pgmta.postgres import operator
from pgmta.store.changes import change
from tests.support.queuectl import Command
from tests.support.rows import message, row

FREE = ("trace --list", "database migrate", "lifecycle install", "campaign list")
"""Commands that need no row of the queue, and so end as ever."""
NAMING = (
    "list", "list --count", "show 7", "explain 7", "find --recipient bob@b.example", "workers",
    "status 7",
    "delete --all --yes --reason x", "hold --all --yes --reason x", "retry --all --yes",
    "release --all --yes", "bounce --all --yes --reason x", "suspend --list",
    "database partition list", "database partition check",
    "send --from a@a.example --subject x --text x --to bob@b.example",
    "rule add odd --where 'priority > 3' --reason x",
)  # fmt: skip


@pytest.mark.slow
def test_no_command_hangs(
    database: str, db: psycopg.Connection, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(operator, "LOCK_TIMEOUT_S", 0.2)
    row(db, message(db, 7))
    problems = []
    with psycopg.connect(make_conninfo(database, application_name="psql")) as other:
        pid = f"pid {other.info.backend_pid} (psql, "
        other.execute("LOCK TABLE pgmta.queue")
        for words in (*FREE, *NAMING):
            done = command(*shlex.split(words))
            if done.exit_code != (words in NAMING) or (pid in done.output) != (words in NAMING):
                problems.append(f"{words}: {done.exit_code} {done.output}")
    assert not problems, "\n".join(problems)


def test_a_change_waits_for_a_row_as_long_as_for_a_table(
    database: str, db: psycopg.Connection, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(change, "LOCK_TIMEOUT_S", 0.2)
    row(db, message(db, 7))
    with psycopg.connect(database) as other:
        other.execute("SELECT FROM pgmta.queue FOR UPDATE")
        done = command("hold", "--all", "--yes", "--reason", "x")
    assert (done.exit_code, "pg_stat_activity" in done.output) == (1, True), done.output

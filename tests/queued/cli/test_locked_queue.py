"""Behind a session that keeps the queue to itself, each command ends and names the session."""

from __future__ import annotations

import shlex
from pathlib import Path

import psycopg
import pytest
import yaml
from click.testing import CliRunner
from psycopg.conninfo import make_conninfo

from pgmta.postgres import operator
from queued.cli.queuectl import main

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


def test_no_command_hangs(
    tmp_path: Path, database: str, db: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(operator, "LOCK_TIMEOUT_S", 0.2)
    config = tmp_path / "queued.yaml"
    config.write_text(yaml.safe_dump({"environment": {"database": {"uri": database}}}))
    db.execute("INSERT INTO messages (id, size, trace, body) VALUES (7, 1, '', 'x')")
    db.execute(
        "INSERT INTO queue (message_id, sender, recipient, domain) "
        "VALUES (7, '', 'r@b.example', 'b.example')"
    )
    problems = []
    with psycopg.connect(make_conninfo(database, application_name="psql")) as other:
        pid = f"pid {other.info.backend_pid} (psql, "
        other.execute("LOCK TABLE pgmta.queue")
        for words in (*FREE, *NAMING):
            done = CliRunner().invoke(main, [*shlex.split(words), "-c", str(config)])
            if done.exit_code != (words in NAMING) or (pid in done.output) != (words in NAMING):
                problems.append(f"{words}: {done.exit_code} {done.output}")
    assert not problems, "\n".join(problems)

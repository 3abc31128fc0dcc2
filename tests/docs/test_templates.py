"""docs/programs/templates.md: its files are templates, and its commands print their lines."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import psycopg
import pytest
import yaml
from click.testing import CliRunner

import pgmta
from queued.cli.queuectl import main
from tests.support.daemons import ROOT
from tests.support.rows import column

PAGE = (ROOT / "docs" / "programs" / "templates.md").read_text(encoding="utf-8")


def test_the_commands_print_what_the_page_says(
    tmp_path: Path, database: str, db: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = re.findall(r"^```\w+ (mails/\S+)\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    config = {"environment": {"database": {"uri": database}}}
    for name, text in [("etc/queued.yaml", yaml.safe_dump(config)), *files]:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    commands = re.findall(r"^\$ queuectl (.*)\n((?:.*\n)*?)```", PAGE, re.MULTILINE)
    assert len(commands) >= 8
    for command, shown in commands:
        result = CliRunner().invoke(main, shlex.split(command))
        expected = "".join(map(pattern, shown.splitlines()))
        assert re.fullmatch(expected, result.output), (command, result.output)
        assert not command.startswith("send") or result.exit_code == 0
    (sql,) = re.findall(r"^```sql\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    db.execute(sql.encode())
    (python,) = re.findall(r"^```python\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    names: dict[str, Any] = {"pgmta": pgmta}
    exec(python, names)
    pgmta.enqueue(db, names["mail"])
    assert column(db, "SELECT count(*) FROM messages") == [3]


def pattern(line: str) -> str:
    """Return an expression for a line; three dots in one character are any text of any lines."""
    return "(?s:.*)" if line == "…" else ".*".join(map(re.escape, line.split("…"))) + "\n"

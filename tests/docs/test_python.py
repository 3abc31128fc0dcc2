"""docs/python.md: its program runs, and it names every public name and no other."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import psycopg

import pgmta
from tests.support.daemons import ROOT
from tests.support.rows import column

PAGE = (ROOT / "docs" / "python.md").read_text(encoding="utf-8")


def test_the_program_runs_as_printed(tmp_path: Path, database: str, db: psycopg.Connection) -> None:
    [program] = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    (tmp_path / "program.py").write_text(program, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "program.py", database],
        cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    first, last = re.findall(r"\d+", done.stdout)
    ids = column(db, "SELECT message_id FROM queue ORDER BY recipient")
    assert (len(ids), ids[0], ids[-1]) == (10, int(first), int(last))
    assert re.fullmatch(r"message ids \d+ to \d+\n", done.stdout)


def test_every_public_name_stands_in_the_table() -> None:
    rows = re.findall(r"^\| `(\w+)", PAGE, re.MULTILINE)
    assert sorted(set(rows)) == pgmta.__all__
    used = set(re.findall(r"\bpgmta\.(\w+)", PAGE))
    assert used <= set(pgmta.__all__)

"""docs/programs/python.md: its programs run, and store mail."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest

from tests.support.daemons import ROOT
from tests.support.rows import column

PAGE = (ROOT / "docs" / "programs" / "python.md").read_text(encoding="utf-8")
PROGRAMS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
PRINTED = (
    r"(\d+ (ann|customer\d)@example\.com queued\n){11}",
    r"message id \d+ queued\n",
    r"message id \d+\n",
)


@pytest.mark.parametrize("number", range(len(PROGRAMS)))
def test_the_programs_run_as_printed(
    tmp_path: Path, database: str, db: psycopg.Connection, number: int
) -> None:
    assert len(PROGRAMS) == len(PRINTED)
    (tmp_path / "program.py").write_text(PROGRAMS[number], encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "program.py", database],
        cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert re.fullmatch(PRINTED[number], done.stdout), done.stdout
    ids = column(db, "SELECT message_id FROM queue ORDER BY 1")
    assert sorted(set(map(int, re.findall(r"(?m)^(?:message id )?(\d+)", done.stdout)))) == ids

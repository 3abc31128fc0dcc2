"""docs/programs/unknown.md: its program and queries, with a next hop that is gone after the dot."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from tests.support.daemons import ROOT
from tests.support.nexthop import Do, Transaction
from tests.support.system import System

PAGE = (ROOT / "docs" / "programs" / "unknown.md").read_text(encoding="utf-8")
(PROGRAM,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
ASK, DUPLICATES = re.findall(r"```sql\n(.*?)```", PAGE, re.DOTALL)


def test_the_program_and_the_queries(system: System, tmp_path: Path) -> None:
    cut: list[Transaction | None] = []

    def gone_once(point: str, line: str, transaction: Transaction | None) -> Do | None:
        """Take each recipient's first mail without an answer."""
        told = {each for before in cut if before for each in before.recipients}
        if point == "end of data" and transaction and told.isdisjoint(transaction.recipients):
            cut.append(transaction)
            return Do(drop=True)
        return None

    hop = system.hop(gone_once)
    system.queued(hop, retry={"intervals": ["100ms"]})
    (tmp_path / "program.py").write_text(PROGRAM, encoding="utf-8")

    def run() -> str:
        done = subprocess.run(
            [sys.executable, "program.py", system.uri],
            cwd=tmp_path, capture_output=True, text=True, timeout=100, check=False,
        )  # fmt: skip
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout

    assert run() == "unknown\ndelivered\n"
    assert run() == "unknown\ndelivered\n"  # both keys give the ids of the first run
    assert len(hop.kept) == 2

    system.ask("CREATE TABLE public.orders (id bigint, confirmation bigint)")
    system.ask("INSERT INTO public.orders SELECT row_number() OVER (ORDER BY id), id"
               " FROM (SELECT DISTINCT message_id FROM attempts) AS a (id)")  # fmt: skip
    (row,) = system.ask(ASK)
    assert (row["id"], row["recipient"]) == (1, "ann@example.com")
    assert "connection" in row["reply"]
    assert system.ask(DUPLICATES) == []

    # mail as usual goes again, and the view names who may have it twice
    system.ask(
        "SELECT submit_mail('shop@example.org', '{bob@example.com}', 'x', 'x', wake => true)"
    )
    system.wait_empty()
    assert system.events("bob@example.com") == ["unknown", "delivered"]
    (row,) = system.ask(DUPLICATES)
    assert (row["recipient"], row["possible"]) == ("bob@example.com", 2)
    assert len(hop.kept) == 4

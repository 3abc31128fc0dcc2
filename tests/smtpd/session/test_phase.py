"""The phases of a connection: the code and the table of docs/develop/states.md agree."""

from __future__ import annotations

import re
from pathlib import Path

from smtpd.session.phase import TRANSITIONS, Phase

DOCS = Path(__file__).parents[3] / "docs" / "develop" / "states.md"
ROW = re.compile(r"^\| ([a-z]+) \| [^|]+ \|((?: `[a-z]+`,?)*) \|$", re.MULTILINE)


def test_phases_are_those_of_the_documentation() -> None:
    section = DOCS.read_text(encoding="utf-8").partition("## Phases of a connection")[2]
    rows = ROW.findall(section)
    assert [Phase(name) for name, _ in rows] == list(Phase)
    table = {Phase(name): set(map(Phase, re.findall("[a-z]+", then))) for name, then in rows}
    assert table == TRANSITIONS

"""The states of a content: the code, the table and the diagram of docs/develop/states.md agree."""

from __future__ import annotations

import re
from pathlib import Path

from pgmta.intake.content import TRANSITIONS, State

DOCS = Path(__file__).parents[3] / "docs" / "develop" / "states.md"
ROW = re.compile(r"^\| ([a-z]+) \| [^|]+ \|((?: `[a-z]+`,?)*) \|$", re.MULTILINE)
ARROW = re.compile(r"^    ([a-z]+) --> ([a-z]+)", re.MULTILINE)


def test_states_are_those_of_the_documentation() -> None:
    section = DOCS.read_text(encoding="utf-8").partition("## States of a content")[2]
    section = section.partition("\n## ")[0]
    rows = ROW.findall(section)
    assert [State(name) for name, _ in rows] == list(State)
    table = {State(name): set(map(State, re.findall("[a-z]+", then))) for name, then in rows}
    assert table == TRANSITIONS
    arrows = {(State(a), State(b)) for a, b in ARROW.findall(section)}
    every = {(a, b) for a, following in TRANSITIONS.items() for b in following}
    discarded = {(a, State.DISCARDED) for a in State}
    assert arrows - discarded == every - discarded

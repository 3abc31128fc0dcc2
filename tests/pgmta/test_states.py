"""Compare the states of Python, SQL (tests/sql/test_migrations.py) and the docs."""

from __future__ import annotations

import re
from pathlib import Path

from pgmta.states import TRANSITIONS, Event, Status

DOCS = Path(__file__).parents[2] / "docs" / "states.md"
ARROW = re.compile(r"^    ([A-Z]+|\[\*\]) --> ([A-Z]+|\[\*\]): (.+)$", re.MULTILINE)
ROW = re.compile(r"^\| `([A-Z]+)` \| `([^`]+)` \| `([^`]+)` \|", re.MULTILINE)


def test_transitions_are_those_of_the_documentation() -> None:
    rows = ROW.findall(DOCS.read_text(encoding="utf-8"))
    assert len(rows) == len(TRANSITIONS)
    assert {
        (Status(source), Event(event)): None if target == "(gone)" else Status(target)
        for source, event, target in rows
    } == TRANSITIONS


def test_transitions_are_those_of_the_diagram() -> None:
    arrows = ARROW.findall(DOCS.read_text(encoding="utf-8"))
    assert arrows[0] == ("[*]", "QUEUED", "accepted")
    assert {
        (Status(source), Event(event)): None if target == "[*]" else Status(target)
        for source, target, event in arrows[1:]
    } == TRANSITIONS


def test_every_status_is_explained_and_every_event_moves_a_row() -> None:
    explained = re.findall(r"^\| ([A-Z]+) \|", DOCS.read_text(encoding="utf-8"), re.MULTILINE)
    assert explained == [status.value for status in Status]
    assert {event for _, event in TRANSITIONS} == set(Event)

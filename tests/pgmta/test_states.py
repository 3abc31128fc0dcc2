"""Compare the states of Python, SQL (tests/sql/test_migrations.py) and the docs."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

from pgmta.states import GONE, TRANSITIONS, Event, Status, after

DOCS = Path(__file__).parents[2] / "docs" / "develop" / "states.md"
ARROW = re.compile(r"^    ([A-Z]+|\[\*\]) --> ([A-Z]+|\[\*\]): (.+)$", re.MULTILINE)
ROW = re.compile(r"^\| `([A-Z]+)` \| `([^`]+)` \| `([^`]+)` \|", re.MULTILINE)


EVERY = {
    (source, event, target)
    for (source, event), targets in TRANSITIONS.items()
    for target in targets
}


def test_transitions_are_those_of_the_documentation() -> None:
    """Both in its table and in its diagram."""
    text = DOCS.read_text(encoding="utf-8")
    rows, (first, second, *arrows) = ROW.findall(text), ARROW.findall(text)
    assert [first, second] == [("[*]", state, "accepted") for state in ("QUEUED", "SCHEDULED")]
    assert len(rows) == len(arrows) == len(EVERY)
    for triples in (rows, [(source, event, target) for source, target, event in arrows]):
        assert {
            (Status(source), Event(event), GONE if target in ("(gone)", "[*]") else Status(target))
            for source, event, target in triples
        } == EVERY


def test_once_and_on_failed_choose_among_the_targets_of_an_event() -> None:
    final = {"hold": Status.HOLD, "remove": GONE, "bounce": Status.REPORT}
    lost = {"hold": Status.HOLD, "remove": GONE, "bounce": Status.HOLD}
    chosen = set()
    for event in (event for status, event in TRANSITIONS if status is Status.SENDING):
        plain = TRANSITIONS[Status.SENDING, event][0]
        for once, policy, report in itertools.product((False, True), final, ("", "relayed")):
            target = after(event, once=once, on_failed=policy, report=report)
            chosen.add((Status.SENDING, event, target))
            if event is Event.FAIL:
                assert target is final[policy]
            elif event is Event.SUPPRESS:
                assert target is (Status.REPORT if policy == "bounce" else GONE)
            elif once and event in (Event.UNKNOWN, Event.TAKEOVER):
                assert target is lost[policy]
            else:
                assert target is (Status.REPORT if report and event is Event.DELIVERED else plain)
    assert chosen == {each for each in EVERY if each[0] is Status.SENDING}


def test_every_status_is_explained_and_every_event_moves_a_row() -> None:
    explained = re.findall(r"^\| ([A-Z]+) \|", DOCS.read_text(encoding="utf-8"), re.MULTILINE)
    assert explained == [status.value for status in Status]
    assert {event for _, event in TRANSITIONS} == set(Event)

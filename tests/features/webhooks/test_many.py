"""A hundred endpoints of which many misbehave: the others get their events within a second."""

from __future__ import annotations

import statistics
import time
from collections import defaultdict
from functools import partial
from typing import Any

import psycopg
import pytest

from tests.features.providers.scripted_server import CUT, HANG, Got, said
from tests.features.webhooks.conftest import Add
from tests.features.webhooks.receiver import OK, Receiver, events_of
from tests.support.system import System
from tests.support.waiting import until

BAD = {
    "hang": [HANG],
    "fail": said("500 x"),
    "reset": [CUT],
    "gone": said("410 Gone"),
    "inward": said("302 Found", b"", "Location: http://127.0.0.1:22/"),
}
GOOD = 75
MAILS = 100


def said_to(parts: list[bytes], _: Got) -> list[bytes]:
    return parts


@pytest.mark.slow
def test_others_get_their_events_within_a_second(
    system: System, db: psycopg.Connection, add: Add, receiver: Receiver, settings: dict[str, Any]
) -> None:
    came: dict[str, dict[str, float]] = defaultdict(dict)

    def answer(got: Got) -> list[bytes]:
        for event in events_of(got):
            came[got.line.split()[1]].setdefault(event["recipients"][0], time.monotonic())
        return OK

    for kind, parts in BAD.items():
        for number in range(5):
            path = f"/{kind}{number}"
            add(receiver.url(path), path[1:], kinds=["accepted"])
            receiver.answering[path] = partial(said_to, parts)
    for number in range(GOOD):
        add(receiver.url(f"/good{number}"), f"good{number}", kinds=["accepted"])
        receiver.answering[f"/good{number}"] = answer
    system.queued(system.hop(), **settings)
    system.enqueue("first@c.example")
    until(lambda: len(came) == GOOD)
    put: dict[str, float] = {}
    for number in range(MAILS):
        recipient = f"{number}@c.example"
        system.enqueue(recipient)
        put[recipient] = time.monotonic()
        until(partial(came["/good0"].__contains__, recipient))
    until(lambda: all(len(each) == MAILS + 1 for each in came.values()))
    waits = sorted(each[to] - at for each in came.values() for to, at in put.items())
    print(f"p50 {statistics.median(waits):.3f} s, p99 {waits[int(len(waits) * 0.99)]:.3f} s,"
          f" most {waits[-1]:.3f} s")  # fmt: skip
    disabled = "SELECT count(*) FROM pgmta.webhooks WHERE state = 'disabled'"
    assert db.execute(disabled).fetchone() == (5,)

"""From rows to envelopes: what goes together, and errors of our own."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, cast

import pytest

from queued.config.queued import QueuedConfig
from queued.delivery.envelope import Envelope
from queued.delivery.lane import Lane
from queued.model import Item, Message, Outcome
from queued.states import Event
from queued.worker.dispatch import Dispatch

NOW = datetime.now(UTC)
CONFIG = QueuedConfig.model_validate({"delivery": {"recipients": 2}})


def item(number: int, message: int, sender: str = "s@a.example") -> Item:
    return Item(number, message, sender, f"r{number}@b.example", "b.example", 1, NOW, number)


class Unknown:
    """Neither true nor false."""

    def __bool__(self) -> bool:
        raise ValueError("unknown")


class Kept(Lane):
    """Keeps what it is given."""

    envelopes: list[Envelope]

    def put(self, envelope: Envelope) -> None:
        self.envelopes.append(envelope)


@pytest.mark.parametrize("fails", ["message", "envelope"])
def test_group_that_can_not_be_built_is_deferred_alone(fails: str) -> None:
    found: list[Outcome] = []

    class Here(Kept):
        envelopes: list[Envelope] = []  # noqa: RUF012 - of this test

    dispatch = Dispatch(
        CONFIG, cast(Any, None), lambda _: True, found.append, Here, lambda *_: None
    )
    good = Message(1, 10, False, "Trace: x\r\n", 0, b"x" * 10)
    bad = Message(2, 10, False, "", 0, b"x" * 10)
    if fails == "message":
        bad.trace = cast(Any, None)
    else:
        bad.utf8 = cast(Any, Unknown())
    room = dispatch.room
    items = [item(1, 2), item(2, 1), item(3, 2, "t@a.example"), item(4, 1), item(5, 1)]
    dispatch.dispatch(items, {1: good, 2: bad})
    assert [[i.id for i in envelope.items] for envelope in Here.envelopes] == [[2, 4], [5]]
    assert [(outcome.item.id, outcome.event) for outcome in found] == [
        (1, Event.DEFER),
        (3, Event.DEFER),
    ]
    assert found[0].reply.text.startswith("internal error: ")
    assert found[0].delay > 1
    assert room - dispatch.room == 20

"""From rows to envelopes: rows that share one, and errors of the program."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any, cast

import pytest

from pgmta.model import Item, Message, Outcome
from pgmta.states import Event
from queued.config import QueuedConfig
from queued.delivery.destination_queue import DestinationQueue
from queued.delivery.transport.envelope import Envelope
from queued.delivery.transports import Transports
from queued.worker.dispatch import Dispatch
from tests.support.leases import ALWAYS

NOW = datetime.now(UTC)
CONFIG = QueuedConfig.model_validate({"delivery": {"recipients": 2}})


def item(number: int, message: int, sender: str = "s@a.example") -> Item:
    return Item(number, message, sender, f"r{number}@b.example", "b.example", 1, NOW, number)


class Unknown:
    """Neither true nor false."""

    def __bool__(self) -> bool:
        raise ValueError("unknown")


class Outcomes:
    """Keeps the outcomes that a Settler would write."""

    def __init__(self) -> None:
        self.found: list[Outcome] = []

    def put_outcome(self, outcome: Outcome) -> None:
        self.found.append(outcome)


def dispatcher(config: QueuedConfig, outcomes: Outcomes) -> Dispatch:
    transports = Transports("client.example", config.delivery)
    return Dispatch(config, cast(Any, None), ALWAYS, cast(Any, outcomes), transports)


@pytest.mark.parametrize("fails", ["message", "envelope"])
async def test_group_that_can_not_be_built_is_deferred_alone(
    fails: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    envelopes: list[Envelope] = []
    monkeypatch.setattr(
        DestinationQueue, "put_envelope", lambda _, envelope: envelopes.append(envelope)
    )
    outcomes = Outcomes()
    found = outcomes.found
    dispatch = dispatcher(CONFIG, outcomes)
    good = Message(1, 10, False, "Trace: x\r\n", 0, b"x" * 10)
    bad = Message(2, 10, False, "", 0, b"x" * 10)
    if fails == "message":
        bad.trace = cast(Any, None)
    else:
        bad.utf8 = cast(Any, Unknown())
    room = dispatch.stages.context.room
    items = [item(1, 2), item(2, 1), item(3, 2, "t@a.example"), item(4, 1), item(5, 1)]
    dispatch.dispatch(items, {1: good, 2: bad})
    assert [[i.id for i in envelope.items] for envelope in envelopes] == [[2, 4], [5]]
    assert [(outcome.item.id, outcome.event) for outcome in found] == [
        (1, Event.DEFER),
        (3, Event.DEFER),
    ]
    assert found[0].reply.text.startswith("internal error: ")
    assert found[0].delay > 1
    assert room - dispatch.stages.context.room == 20


async def test_rows_share_an_envelope_if_they_have_the_same_deadline(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    envelopes: list[Envelope] = []
    monkeypatch.setattr(
        DestinationQueue, "put_envelope", lambda _, envelope: envelopes.append(envelope)
    )
    outcomes = Outcomes()
    dispatch = dispatcher(CONFIG, outcomes)
    texts = [
        None,
        "2100-01-01T00:00:00Z",
        "2000-01-01T00:00:00Z",
        "soon",
        "2100-01-01T01:00:00+01:00",
    ]
    items = [item(number, 1) for number in range(len(texts))]
    for each, text in zip(items, texts, strict=True):
        each.metadata = json.dumps({"_deadline": text}) if text else None
    dispatch.dispatch(items, {1: Message(1, 10, False, "Trace: x\r\n", 0, b"x" * 10)})
    later = datetime(2100, 1, 1, tzinfo=UTC)
    assert [([i.id for i in each.items], each.deadline) for each in envelopes] == [
        ([0, 3], None),
        ([1, 4], later),
    ]
    (late,) = outcomes.found
    assert (late.item.id, late.event, late.answer_class) == (2, Event.FAIL, "expired")


async def test_one_next_hop_gets_its_share_of_reserved_slots(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    outcomes = Outcomes()
    found = outcomes.found
    config = QueuedConfig.model_validate(
        {"routes": {"*": "127.0.0.1:1", "other.example": "127.0.0.1:2"}, "urgent": {"bound": 3}}
    )

    def opens_none(queue: DestinationQueue) -> None:
        assert not queue.backlog.waiting

    monkeypatch.setattr(DestinationQueue, "grow", opens_none)  # the next hop hangs
    dispatch = dispatcher(config, outcomes)
    messages = {n: Message(n, 1, False, "", 0, b"x") for n in range(9)}

    def urgent(number: int, domain: str) -> Item:
        return Item(number, number, "s@a.example", f"r@{domain}", domain, 1, NOW, 1, True)

    assert dispatch.dispatch([urgent(n, f"d{n}.example") for n in range(2)], messages, True) == 0
    assert dispatch.left_out.crowded(50) == []
    assert dispatch.left_out.crowded(2) == ["d0.example", "d1.example"], "half of the rest"
    # domains that no queue knows yet, with the same next hop
    more = [urgent(n, f"d{n}.example") for n in range(2, 6)]
    assert dispatch.dispatch([*more, urgent(6, "other.example")], messages, True) == 3
    assert [(outcome.item.id, outcome.event) for outcome in found] == [
        (n, Event.HAND_BACK) for n in (3, 4, 5)
    ]
    assert dispatch.left_out.crowded(50) == [f"d{n}.example" for n in range(6)]
    assert dispatch.dispatch([urgent(7, "d7.example")], messages) == 0, "in an ordinary place"

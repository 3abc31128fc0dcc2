"""From rows to envelopes: rows that share one, and errors of the program."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any, cast

import pytest

from pgmta.model import Item, Message, Outcome, Reply
from pgmta.states import Event
from queued.config import QueuedConfig
from queued.delivery.destination_queue import DestinationQueue
from queued.delivery.transport.envelope import Envelope
from queued.delivery.transport.result import Result
from queued.delivery.transports import Transports
from queued.outgoing.stage import Means
from queued.worker.dispatch import Dispatch
from tests.support.leases import Always

NOW = datetime.now(UTC)
MESSAGE = Message(1, 10, False, "Trace: x\r\n", 0, b"x" * 10)
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


@pytest.fixture
def envelopes(monkeypatch: pytest.MonkeyPatch) -> list[Envelope]:
    """Those that the destinations got."""
    found: list[Envelope] = []
    monkeypatch.setattr(DestinationQueue, "put_envelope", lambda _, each: found.append(each))
    return found


def dispatcher(config: QueuedConfig, outcomes: Outcomes) -> Dispatch:
    transports = Transports("client.example", config.delivery)
    means = Means(contents=cast(Any, None), transports=transports)
    return Dispatch(config, means, Always(), cast(Any, outcomes))


@pytest.mark.parametrize("fails", ["message", "envelope"])
async def test_group_that_can_not_be_built_is_deferred_alone(
    fails: str, envelopes: list[Envelope]
) -> None:
    outcomes = Outcomes()
    found = outcomes.found
    dispatch = dispatcher(CONFIG, outcomes)
    bad = Message(2, 10, False, "", 0, b"x" * 10)
    if fails == "message":
        bad.trace = cast(Any, None)
    else:
        bad.utf8 = cast(Any, Unknown())
    room = dispatch.stages.context.free_octets
    items = [item(1, 2), item(2, 1), item(3, 2, "t@a.example"), item(4, 1), item(5, 1)]
    dispatch.dispatch(items, {1: MESSAGE, 2: bad})
    assert [[i.id for i in envelope.items] for envelope in envelopes] == [[2, 4], [5]]
    assert [(outcome.item.id, outcome.event) for outcome in found] == [
        (1, Event.DEFER),
        (3, Event.DEFER),
    ]
    assert found[0].reply.text.startswith("internal error: ")
    assert found[0].delay > 1
    assert room - dispatch.stages.context.free_octets == 20


async def test_rows_share_an_envelope_if_they_have_the_same_deadline(
    envelopes: list[Envelope],
) -> None:
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
    dispatch.dispatch(items, {1: MESSAGE})
    assert [([i.id for i in each.items], each.deadline is None) for each in envelopes] == [
        ([0, 3], True),
        ([1, 4], False),
    ]
    (late,) = outcomes.found
    assert (late.item.id, late.event, late.answer_class) == (2, Event.FAIL, "expired")


async def test_mail_for_a_next_hop_that_is_down_waits_until_it_is_tried_again(
    envelopes: list[Envelope],
) -> None:
    """An attempt that never begins is in no log, and does not count."""
    outcomes = Outcomes()
    dispatch = dispatcher(CONFIG, outcomes)
    dispatch.dispatch([item(1, 1)], {1: MESSAGE})
    (queue,) = dispatch._queues.values()
    down = Result(Event.DEFER, Reply(0, "no route to host"))
    dispatch.exclusions.pause = 20.0
    dispatch.unreachable(queue.destination, {"b.example"}, down)
    dispatch.dispatch([item(2, 1)], {1: MESSAGE})
    (outcome,) = outcomes.found
    assert (outcome.event, outcome.item.id) == (Event.POSTPONE, 2)
    assert 0 < outcome.delay <= 20
    assert "no route to host" in outcome.reply.text
    dispatch.exclusions.pause = -1.0
    dispatch.unreachable(queue.destination, {"b.example"}, down)
    dispatch.dispatch([item(3, 1)], {1: MESSAGE})
    assert len(outcomes.found) == 1
    assert [each.items[0].id for each in envelopes] == [1, 3]


async def test_an_error_of_a_destination_ends_only_the_rows_that_it_did_not_take(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    outcomes = Outcomes()
    dispatch = dispatcher(CONFIG, outcomes)
    taken: list[Item] = []

    def put(_: object, envelope: Envelope) -> None:
        if taken:
            raise RuntimeError("a defect")
        taken.extend(envelope.items)

    monkeypatch.setattr(DestinationQueue, "put_envelope", put)
    monkeypatch.setattr(DestinationQueue, "rows", lambda _: taken)
    room = dispatch.stages.context.free_octets
    dispatch.dispatch([item(number, 1) for number in range(4)], {1: MESSAGE})  # two envelopes
    assert [each.id for each in taken] == [0, 1]
    assert [(each.item.id, each.event) for each in outcomes.found] == [
        (2, Event.DEFER),
        (3, Event.DEFER),
    ]
    assert room - dispatch.stages.context.free_octets == 10


async def test_one_next_hop_gets_its_share_of_reserved_slots(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("queued.worker.claim_exclusions.MAX_URGENT", 3)
    outcomes = Outcomes()
    found = outcomes.found
    config = QueuedConfig.model_validate(
        {"routes": {"*": "127.0.0.1:1", "other.example": "127.0.0.1:2"}}
    )

    def opens_none(queue: DestinationQueue) -> None:
        assert not queue.backlog.waiting

    monkeypatch.setattr(DestinationQueue, "grow", opens_none)  # the next hop hangs
    dispatch = dispatcher(config, outcomes)
    messages = {n: Message(n, 1, False, "", 0, b"x") for n in range(9)}

    def urgent(number: int, domain: str) -> Item:
        return Item(number, number, "s@a.example", f"r@{domain}", domain, 1, NOW, 1, True)

    assert dispatch.dispatch([urgent(n, f"d{n}.example") for n in range(2)], messages, True) == 0
    assert dispatch.exclusions.crowded(50) == []
    assert dispatch.exclusions.crowded(2) == ["d0.example", "d1.example"], "half of the rest"
    # domains that no queue knows yet, with the same next hop
    more = [urgent(n, f"d{n}.example") for n in range(2, 6)]
    assert dispatch.dispatch([*more, urgent(6, "other.example")], messages, True) == 3
    assert [(outcome.item.id, outcome.event) for outcome in found] == [
        (n, Event.HAND_BACK) for n in (3, 4, 5)
    ]
    assert dispatch.exclusions.crowded(50) == [f"d{n}.example" for n in range(6)]
    assert dispatch.dispatch([urgent(7, "d7.example")], messages) == 0, "in an ordinary place"

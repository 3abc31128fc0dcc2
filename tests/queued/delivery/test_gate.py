"""Rows that the gate ends for good: while they wait, and while their beginning is noted."""

from __future__ import annotations

from collections.abc import Sequence

from pgmta.model import Item, ReasonToWait
from pgmta.states import Event
from queued.delivery.transport.destination import Destination
from queued.delivery.transport.envelope import Envelope
from queued.delivery.transport.gate import Gate, Keeper
from tests.queued.delivery.sending import envelope
from tests.queued.delivery.test_destination import Trial, play
from tests.support.leases import Always
from tests.support.rawhop import RawHop
from tests.support.waiting import eventually

WORDS = "suppressed since 2026-11-03 14:02 UTC: complained (message 123)"


class EndingKeeper(Keeper):
    """Ends the rows of some messages, from the moment of `end` on."""

    def __init__(self) -> None:
        super().__init__()
        self.messages: set[int] = set()

    def end(self, message: int) -> None:
        self.messages.add(message)
        self.active = True
        self.changed()

    def find_rows(
        self, items: Sequence[Item], destination: Destination, host: str = ""
    ) -> dict[int, ReasonToWait]:
        return {
            place: ReasonToWait("suppressed", 0, WORDS)
            for place, item in enumerate(items)
            if item.message_id in self.messages
        }


def send(hop: RawHop, keeper: EndingKeeper, *mails: Envelope) -> Trial:
    """Send over one connection; return the results."""

    async def act(trial: Trial) -> None:
        trial.queue._gate = Gate([keeper])
        for mail in mails:
            trial.queue.put_envelope(mail)
        await eventually(lambda: len(trial.results) == len(mails))

    return play(hop, act, connections=1)


def test_a_row_that_waits_behind_a_slow_transaction_ends() -> None:
    keeper = EndingKeeper()

    def begins(number: int) -> None:
        keeper.end(2)

    trial = send(RawHop({"MAIL": begins}), keeper, envelope(1), envelope(2), envelope(3))
    assert {n: each.event for n, each in trial.results.items()} == {
        1: Event.DELIVERED, 2: Event.SUPPRESS, 3: Event.DELIVERED
    }  # fmt: skip
    assert str(trial.results[2].reply) == WORDS
    assert trial.hop.taken == {"r0@b.example": 2}


def test_a_row_with_once_ends_although_its_beginning_is_noted() -> None:
    keeper = EndingKeeper()
    withdrawn: list[int] = []

    class Guard(Always):
        async def begin(self, items: list[Item]) -> bool:
            keeper.end(items[0].message_id)
            return True

        async def withdraw(self, items: list[Item]) -> None:
            withdrawn.extend(item.message_id for item in items)

    mail = envelope(1)
    mail.guard = Guard()
    mail.items[0].once = True
    trial = send(RawHop(), keeper, mail)
    assert trial.results[1].event is Event.SUPPRESS
    assert withdrawn == [1]
    assert trial.hop.taken == {}

"""The connections of one destination: refused, hanging, closed, and broken by ourselves."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import cast

import pytest

from pgmta.errors import DeliveryError, Stage
from pgmta.states import Event
from queued.config import Delivery, Timeouts
from queued.delivery import connection_pacing
from queued.delivery.destination_queue import DestinationQueue
from queued.delivery.dns.hop import Hop
from queued.delivery.smtp.client_session import ClientSession
from queued.delivery.smtp.smtp_parameters import SmtpParameters
from queued.delivery.smtp.smtp_transport import SmtpTransport
from queued.delivery.transport.destination import Destination
from queued.delivery.transport.envelope import Envelope
from queued.delivery.transport.result import Result
from queued.delivery.transport.transport import Transport
from tests.queued.delivery.sending import envelope
from tests.support.rawhop import DROP, HANG, RawHop, run, serving
from tests.support.waiting import eventually, let_others_run


@dataclass
class Trial:
    """A queue to a hop, and what it reports."""

    hop: RawHop
    delivery: Delivery
    transport: object = None
    results: dict[int, Result] = field(default_factory=dict)
    down: list[Result] = field(default_factory=list)
    queue: DestinationQueue = field(init=False)

    def __post_init__(self) -> None:
        transport = cast(Transport, self.transport or smtp(self.delivery))
        destination = Destination("smtp", SmtpParameters((Hop("127.0.0.1", self.hop.port),)))
        self.queue = DestinationQueue(destination, transport, self, self.delivery)

    def report(self, envelope: Envelope, results: list[Result]) -> None:
        (item,), (result,) = envelope.items, results
        assert item.message_id not in self.results, "reported twice"
        self.results[item.message_id] = result

    def dropped(self, envelope: Envelope) -> None:
        raise AssertionError(f"dropped: {envelope}")

    def unreachable(self, destination: Destination, domains: set[str], result: Result) -> None:
        assert domains == {"b.example"}
        self.down.append(result)

    def closed(self, destination: Destination) -> None:
        assert not self.queue._tasks

    def events(self) -> dict[Event, int]:
        found = [result.event for result in self.results.values()]
        return {event: found.count(event) for event in found}

    async def end(self) -> None:
        self.queue.drain()
        self.queue.abort()
        await self.queue.wait()


def smtp(delivery: Delivery) -> SmtpTransport:
    return SmtpTransport("client.example", delivery)


def play(
    hop: RawHop,
    act: Callable[[Trial], Awaitable[None]],
    transport: object = None,
    **delivery: object,
) -> Trial:
    """Let `act` use a queue to the hop; return what the queue reported."""

    async def main() -> Trial:
        async with serving(hop):
            trial = Trial(hop, Delivery.model_validate(delivery), transport)
            await act(trial)
            await trial.end()
            return trial

    return run(main())


def put(number: int) -> Callable[[Trial], Awaitable[None]]:
    """Put `number` envelopes at once, and wait until all have a result."""

    async def act(trial: Trial) -> None:
        for n in range(number):
            trial.queue.put_envelope(envelope(n))
        await eventually(lambda: len(trial.results) == number)

    return act


@pytest.mark.parametrize("busy", [b"421 4.7.0 Too many connections\r\n" + DROP, DROP])
def test_host_that_admits_five_connections_of_twenty(busy: bytes) -> None:
    """Without an attempt that fails, a destination that rests, or many that knock."""
    hop = RawHop()
    hop.says["greeting"] = lambda number: busy if hop.open > 5 else None
    trial = play(hop, put(1000))
    assert trial.events() == {Event.DELIVERED: 1000}
    assert trial.down == []
    assert 5 <= hop.connections <= 10
    assert hop.taken == {"r0@b.example": 1000}


def test_limit_of_a_host_costs_little() -> None:
    """2,000 messages to a host that refuses the sixth connection."""
    hop = RawHop(pause=0.002)
    hop.says["greeting"] = lambda number: (
        b"421 4.7.0 Too many connections\r\n" + DROP if hop.open > 5 else None
    )
    trial = play(hop, put(2000), connections=20)
    assert trial.events() == {Event.DELIVERED: 2000}
    assert hop.connections <= 15


def test_pause_after_a_refused_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """One connection tries again when it is over, and growth goes on when that succeeds."""
    monkeypatch.setattr(connection_pacing, "_FIRST_PAUSE_S", 0.05)
    limit = [1]
    hop = RawHop({"MAIL": lambda number: HANG if limit[0] == 1 else None})
    hop.says["greeting"] = lambda number: DROP if hop.open > limit[0] else None

    async def act(trial: Trial) -> None:
        for n in range(20):
            trial.queue.put_envelope(envelope(n))
        await eventually(lambda: hop.connections >= 6)  # four, and then one after each pause
        assert hop.open <= 2
        await eventually(
            lambda: trial.queue._pacing.pause >= 0.2
        )  # each is longer than the one before
        limit[0] = 100
        await eventually(lambda: len(trial.results) == 19)  # but the first connection hangs
        assert trial.queue._pacing.pause == 0.0
        assert trial.queue._pacing.limit > 1

    trial = play(hop, act)
    assert trial.down == []
    assert hop.connections < 40


@pytest.mark.parametrize(
    ("says", "text"),
    [
        ({"greeting": b"554 5.7.1 Blocked\r\n" + DROP}, "554 5.7.1 Blocked"),
        ({"greeting": DROP}, "connection closed by peer"),
        ({"EHLO": b"250 Hello\r\n" * 2}, "reply without a command: 250 Hello"),
    ],
)
def test_nobody_admits_us(says: dict[str, bytes], text: str) -> None:
    hop = RawHop({**says})
    trial = play(hop, put(100))
    assert trial.events() == {Event.DEFER: 100}
    assert {str(result.reply) for result in trial.results.values()} == {text}
    assert len(trial.down) == 1
    assert hop.connections <= 4


def test_host_that_closes_when_it_has_admitted_us() -> None:
    """Every connection costs one envelope an attempt, so that connections come to an end."""
    hop = RawHop({"EHLO": b"250 Hello and bye\r\n" + DROP})
    trial = play(hop, put(100))
    assert trial.events() == {Event.DEFER: 100}
    assert hop.connections <= 104


def test_connection_that_hangs_holds_no_mail() -> None:
    hop = RawHop({"greeting": lambda number: HANG if number == 1 else None})

    async def act(trial: Trial) -> None:
        trial.queue.put_envelope(envelope(0))
        await eventually(lambda: hop.connections)
        for n in range(1, 3):
            trial.queue.put_envelope(envelope(n))
        await eventually(lambda: len(trial.results) == 3)

    trial = play(hop, act)
    assert trial.events() == {Event.DELIVERED: 3}


def test_mail_that_waits_when_the_last_connection_goes() -> None:
    """Others were refused meanwhile: one connection is tried at once, and it answers for all."""
    hop = RawHop({"MAIL": b"421 4.3.2 Down\r\n" + DROP})
    hop.says["greeting"] = lambda number: None if number == 1 else DROP
    trial = play(hop, put(50))
    assert trial.events() == {Event.DEFER: 50}
    assert len(trial.down) == 1
    assert hop.connections <= 6


@pytest.mark.parametrize("point", ["MAIL", "RCPT", "DATA"])
def test_421_on_a_kept_connection_is_no_attempt(point: str) -> None:
    """A host takes three messages per connection; on a fresh one, 421 is a deferral."""
    usual = {"MAIL": b"250 Ok\r\n", "RCPT": b"250 Ok\r\n", "DATA": b"354 Go\r\n"}[point]
    seen: dict[int, int] = {}

    def say(number: int) -> bytes:
        seen[number] = seen.get(number, 0) + 1
        return usual if seen[number] <= 3 else b"421 4.7.0 Enough\r\n" + DROP

    hop = RawHop({point: say})
    trial = play(hop, put(30), connections=1)
    assert trial.events() == {Event.DELIVERED: 30}
    assert hop.connections == 10
    hop = RawHop({point: b"421 4.7.0 Enough\r\n" + DROP})
    trial = play(hop, put(3), connections=1)
    assert trial.events() == {Event.DEFER: 3}
    assert {str(result.reply) for result in trial.results.values()} == {"421 4.7.0 Enough"}
    assert hop.connections == 3


def test_kept_connection_that_ends_is_no_attempt() -> None:
    """But a reply too many is one: it answers no command."""
    seen: dict[int, int] = {}
    last = b""

    def say(number: int) -> bytes:
        seen[number] = seen.get(number, 0) + 1
        return b"250 Ok\r\n" if seen[number] <= 3 else last + DROP

    trial = play(RawHop({"MAIL": say}), put(12), connections=1)
    assert trial.events() == {Event.DELIVERED: 12}
    seen.clear()
    last = b"250 Ok\r\n" * 4
    trial = play(RawHop({"MAIL": say}), put(12), connections=1)
    assert trial.events() == {Event.DELIVERED: 9, Event.DEFER: 3}


class Faulty:
    """Some sessions fail by an error of the program, before or after the dot."""

    async def open(
        self,
        destination: Destination,
        tried: frozenset[str] = frozenset(),
        earlier: int = 0,
    ) -> ClientSession:
        session = await smtp(Delivery(connections=2)).open(destination, tried)
        send = session.send

        async def fail(envelope: Envelope) -> list[Result]:
            number = envelope.items[0].message_id
            if number % 3 == 1:
                raise ValueError("a\x1b[31m\nb")
            results = await send(envelope)
            if number % 3 == 2:
                session.connection.past_dot = True
                raise KeyError(number)
            return results

        session.send = fail  # type: ignore[method-assign]
        return session


def test_error_of_our_own_concerns_one_envelope() -> None:
    trial = play(RawHop(), put(9), Faulty(), connections=2)
    for number, result in trial.results.items():
        event, text = [
            (Event.DELIVERED, "250 2.0.0 Ok"),
            (Event.DEFER, "internal error: ValueError: a\x1b[31m\nb"),
            (Event.UNKNOWN, f"internal error: KeyError: {number}"),
        ][number % 3]
        assert (result.event, str(result.reply)) == (event, text)
        assert result.host == f"127.0.0.1:{trial.hop.port}"


class Failing:
    """Opens no session."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    async def open(
        self,
        destination: Destination,
        tried: frozenset[str] = frozenset(),
        earlier: int = 0,
    ) -> ClientSession:
        raise self.error


def test_error_of_our_own_while_connecting() -> None:
    trial = play(RawHop(), put(9), Failing(RuntimeError("resolver broke")))
    assert trial.events() == {Event.DEFER: 9}
    texts = {result.reply.text for result in trial.results.values()}
    assert texts == {"internal error: RuntimeError: resolver broke"}
    assert len(trial.down) == 1


def test_drain_hands_back_what_waits_for_a_connection() -> None:
    hop = RawHop({"greeting": HANG})

    async def act(trial: Trial) -> None:
        for n in range(9):
            trial.queue.put_envelope(envelope(n))
        await eventually(lambda: hop.open)
        assert len(trial.queue.drain()) == 9
        await trial.queue.wait()  # for no greeting
        assert trial.queue.backlog.load == 0

    trial = play(hop, act, timeouts=Timeouts(greeting=300))
    assert trial.results == {}


def test_envelope_given_right_before_the_end_is_handed_back() -> None:
    async def act(trial: Trial) -> None:
        trial.queue.put_envelope(envelope(0))
        await eventually(lambda: 0 in trial.results)
        await let_others_run()  # its connection waits for more
        trial.queue.put_envelope(envelope(1))
        assert trial.queue.drain() == []
        trial.queue.abort()
        await trial.queue.wait()

    trial = play(RawHop(), act)
    assert trial.events() == {Event.DELIVERED: 1, Event.HAND_BACK: 1}
    assert trial.queue.backlog.load == 0


def test_null_mx_is_final() -> None:
    null = DeliveryError("5.1.10 null MX", Stage.MX, permanent=True)
    trial = play(RawHop(), put(5), Failing(null))
    assert trial.events() == {Event.FAIL: 5}
    assert trial.down == []


def test_urgent_mail_goes_first_and_has_connections_of_its_own() -> None:
    """Ordinary mail hangs on all that it may use; urgent mail passes, on no more than the limit."""
    hop = RawHop({"MAIL": HANG})

    async def act(trial: Trial) -> None:
        trial.queue.configure(trial.delivery, 2)
        for n in range(10):
            trial.queue.put_envelope(envelope(n))
        await eventually(lambda: trial.queue.backlog.ordinary == 3)
        hop.says["MAIL"] = lambda number: None if number > 3 else HANG
        for n in range(10, 30):
            trial.queue.put_envelope(replace(envelope(n), urgent=True))
            assert trial.queue.backlog.urgent_load
        await eventually(lambda: len(trial.results) == 20)
        assert (
            trial.queue.backlog.urgent_load,
            trial.queue.backlog.load,
            trial.queue.backlog.ordinary,
        ) == (0, 10, 3)
        assert hop.connections <= 5

    trial = play(hop, act, connections=5)
    delivered = {n for n, result in trial.results.items() if result.event is Event.DELIVERED}
    assert delivered == set(range(10, 30))


def test_ordinary_mail_uses_connections_that_urgent_mail_leaves() -> None:
    """In any mix everything comes, and ordinary mail keeps within its share."""
    hop = RawHop()
    most = []

    async def act(trial: Trial) -> None:
        trial.queue.configure(trial.delivery, 2)
        for n in range(300):
            trial.queue.put_envelope(replace(envelope(n), urgent=n % 7 == 3))
            most.append(trial.queue.backlog.ordinary)
            if n % 20 == 0:
                await eventually(lambda: len(trial.results) >= n // 2)  # noqa: B023
        await eventually(lambda: len(trial.results) == 300)
        assert trial.queue.backlog.ordinary == 0

    trial = play(hop, act, connections=4)
    assert trial.events() == {Event.DELIVERED: 300}
    assert max(most) == 2

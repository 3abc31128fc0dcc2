"""One message and several hosts: fallback, too many recipients, limits that a host announces."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import cast

import pytest

from pgmta.errors import DeliveryError, NoHostLeft, Stage
from pgmta.states import Event
from queued.config import Delivery, Timeouts
from queued.delivery.destination_queue import DestinationQueue
from queued.delivery.dns.hosts import Host
from queued.delivery.smtp.client_session import ClientSession
from queued.delivery.smtp.connection import ClientProtocol
from queued.delivery.smtp.smtp_parameters import SmtpParameters
from queued.delivery.transport.destination import Destination
from queued.delivery.transport.envelope import Envelope
from queued.delivery.transport.gate import Gate
from queued.delivery.transport.result import Result
from queued.delivery.transport.transport import Transport
from tests.queued.delivery import sending
from tests.support.keeper import CLOSED, HostKeeper
from tests.support.rawhop import DROP, HANG, LOCK_STEP, PIPED, RawHop, run, serving
from tests.support.waiting import eventually

envelope = partial(sending.envelope, content_octets=9)
SLOW = Timeouts(command=0.2, final=0.2, greeting=0.2)


@dataclass
class Hosts:
    """Opens sessions with the first host that answers, as Connector does; mx0, mx1 and so on."""

    hops: list[RawHop]
    delivery: Delivery
    opened: list[str] = field(default_factory=list)
    then: Callable[[str], object] = lambda name: None
    """Is called with the host of each session before its mail."""

    async def open(
        self,
        destination: Destination,
        tried: frozenset[str] = frozenset(),
        earlier: int = 0,
    ) -> ClientSession:
        left = [(n, hop) for n, hop in enumerate(self.hops) if f"mx{n}:25" not in tried]
        if not left:
            raise NoHostLeft("4.4.4 no other host", Stage.MX)
        problem = DeliveryError("no host")
        for n, hop in left:
            connection = ClientProtocol(self.delivery.timeouts)
            session = ClientSession(
                connection, Host(f"mx{n}", 25, best=n == 0), None, self.delivery
            )
            loop = asyncio.get_running_loop()
            await loop.create_connection(lambda c=connection: c, "127.0.0.1", hop.port)  # type: ignore[misc]
            self.opened.append(f"mx{n}")
            try:
                await session.open("client.example")
            except DeliveryError as error:
                problem = error
                connection.abort()
                continue
            self.then(f"mx{n}")
            return session
        raise problem


class Trial:
    """A queue to hosts, and what it reports."""

    def __init__(self, hops: list[RawHop], delivery: Delivery) -> None:
        self.hops = hops
        self.hosts = Hosts(hops, delivery)
        self.results: dict[int, Result] = {}
        self.room = 0
        destination = Destination("smtp", SmtpParameters(), "b.example")
        transport = cast(Transport, self.hosts)
        self.keeper = HostKeeper()
        self.queue = DestinationQueue(
            destination, transport, self, delivery, gate=Gate([self.keeper])
        )

    def report(self, envelope: Envelope, results: list[Result]) -> None:
        self.room += envelope.content_octets
        for item, result in zip(envelope.items, results, strict=True):
            assert item.id not in self.results, "reported twice"
            self.results[item.id] = result

    def dropped(self, envelope: Envelope) -> None:
        raise AssertionError(f"dropped: {envelope}")

    def unreachable(self, destination: Destination, domains: set[str], result: Result) -> None:
        pass

    def closed(self, destination: Destination) -> None:
        assert self.queue.backlog.load == 0
        assert self.queue.backlog.ordinary == 0

    def has(self, number: int) -> bool:
        return len(self.results) == number

    def events(self) -> dict[Event, int]:
        found = [result.event for result in self.results.values()]
        return {event: found.count(event) for event in found}


def play(
    hops: list[RawHop],
    mail: list[Envelope],
    **keys: object,
) -> Trial:
    """Send the mail; return what the queue reported."""

    async def main() -> Trial:
        async with AsyncExitStack() as stack:
            for hop in hops:
                await stack.enter_async_context(serving(hop))
            trial = Trial(hops, Delivery.model_validate(keys))
            number = sum(len(each.items) for each in mail)
            for each in mail:
                trial.queue.put_envelope(each)
            await eventually(lambda: len(trial.results) == number)
            trial.queue.drain()
            await trial.queue.wait()
            assert trial.room == 9 * len(mail)
            assert not trial.queue._open
            return trial

    return run(main())


both = pytest.mark.parametrize("ehlo", [PIPED, LOCK_STEP], ids=["piped", "lock-step"])
PASSING = {
    "4xx to MAIL": {"MAIL": b"451 4.3.0 Later\r\n"},
    "4xx to RCPT": {"RCPT": b"450 4.2.0 Greylisted\r\n"},
    "4xx to DATA": {"DATA": b"451 4.3.0 Later\r\n"},
    "4xx to the dot": {"dot": b"451 4.3.0 Later\r\n"},
    "421 to MAIL": {"MAIL": b"421 4.3.2 Bye\r\n" + DROP},
    "421 to RCPT": {"RCPT": b"421 4.3.2 Bye\r\n" + DROP},
    "421 to the dot": {"dot": b"421 4.3.2 Bye\r\n" + DROP},
    "closed at MAIL": {"MAIL": DROP},
    "closed at DATA": {"DATA": DROP},
    "silent at MAIL": {"MAIL": HANG},
    "silent at DATA": {"DATA": HANG},
    "silent at the greeting": {"greeting": HANG},
    "554 in the greeting": {"greeting": b"554 5.7.1 No\r\n" + DROP},
    "530 to MAIL": {"MAIL": b"530 5.7.0 Must issue a STARTTLS command first\r\n"},
    "503 to RCPT": {"RCPT": b"503 5.5.1 Bad sequence\r\n"},
    "501 to RCPT": {"RCPT": b"501 5.5.2 Syntax\r\n"},
}


@both
@pytest.mark.parametrize("says", PASSING.values(), ids=PASSING.keys())
def test_next_host_gets_what_one_does_not_take_for_now(says: dict[str, bytes], ehlo: bytes) -> None:
    hops = [RawHop({**says}, ehlo), RawHop({**says}, ehlo), RawHop(ehlo=ehlo)]
    trial = play(hops, [envelope(1)], timeouts=SLOW)
    assert trial.events() == {Event.DELIVERED: 1}
    assert trial.hosts.opened == ["mx0", "mx1", "mx2"]
    assert trial.results[1000].host == "mx2:25"
    assert sum(hops[2].taken.values()) == 1


def test_final_replies_are_final_at_any_host() -> None:
    for says in ({"RCPT": b"550 5.1.1 No\r\n"}, {"dot": b"554 5.7.1 Spam\r\n"},
                 {"RCPT": b"501 5.1.3 Syntax\r\n"}, {"MAIL": b"553 5.1.7 No\r\n"}):  # fmt: skip
        trial = play([RawHop({**says}), RawHop()], [envelope(1)])
        assert trial.events() == {Event.FAIL: 1}
        assert trial.hosts.opened == ["mx0"]


def test_unknown_outcome_is_never_sent_to_another_host() -> None:
    for words in (DROP, HANG, b"what?\r\n"):
        trial = play([RawHop({"dot": words}), RawHop()], [envelope(1)], timeouts=SLOW)
        assert trial.events() == {Event.UNKNOWN: 1}
        assert trial.hosts.opened == ["mx0"]


def test_result_counts_after_the_last_host_and_keeps_what_the_others_said() -> None:
    says = [b"450 4.2.0 Greylisted\r\n", b"451 4.3.0 Disk\r\n", b"452 4.2.2 Full\r\n"]
    trial = play([RawHop({"RCPT": words}) for words in says], [envelope(1)])
    result = trial.results[1000]
    assert result.event is Event.DEFER
    assert str(result.reply) == (
        "452 4.2.2 Full (other hosts: mx0:25 450 4.2.0 Greylisted; mx1:25 451 4.3.0 Disk)"
    )
    assert result.host == "mx2:25"
    trial = play([RawHop({"RCPT": words}) for words in says], [envelope(1)], hosts=2)
    assert trial.hosts.opened == ["mx0", "mx1"]
    assert len(trial.results[1000].reply.text) < 1000


def test_only_recipients_that_are_left_go_to_the_next_host() -> None:
    first = RawHop({"RCPT 2": b"450 4.2.0 Later\r\n", "RCPT 3": b"550 5.1.1 No\r\n"})
    second = RawHop({"RCPT": b"550 5.2.1 Off\r\n"})
    trial = play([first, second], [envelope(1, 4)])
    assert [trial.results[1000 + n].event for n in range(4)] == [
        Event.DELIVERED, Event.FAIL, Event.FAIL, Event.DELIVERED,
    ]  # fmt: skip
    assert first.messages[0][0] == ["r0@b.example", "r3@b.example"]
    assert "other hosts: mx0:25 450" in trial.results[1001].reply.text
    assert second.connections == 1


def test_size_of_one_host_is_not_final() -> None:
    small = b"250-hop\r\n250-SIZE 10\r\n250 PIPELINING\r\n"
    trial = play([RawHop(ehlo=small), RawHop()], [envelope(1)])
    assert trial.events() == {Event.DELIVERED: 1}
    trial = play([RawHop(ehlo=small), RawHop(ehlo=small)], [envelope(1)])
    assert trial.events() == {Event.FAIL: 1}
    assert "5.3.4" in trial.results[1000].reply.text


def test_sessions_with_other_hosts_are_kept() -> None:
    """All mail of a destination whose best host says 4xx; only one connection at a time."""
    hops = [RawHop({"RCPT": b"450 4.2.0 Later\r\n"}), RawHop()]
    trial = play(hops, [envelope(n) for n in range(1, 101)], connections=1)
    assert trial.events() == {Event.DELIVERED: 100}
    assert trial.hosts.opened == ["mx0", "mx1"]
    # and one that closes after each message
    hops = [RawHop({"RCPT": b"450 4.2.0 Later\r\n"}), RawHop({"dot": b"250 Ok\r\n" + DROP})]
    trial = play(hops, [envelope(n) for n in range(1, 21)])
    assert trial.events() == {Event.DELIVERED: 20}
    assert set(hops[1].taken.values()) == {20}


TOO_MANY = [
    b"452 4.5.3 Too many\r\n",
    b"452 Too many\r\n",
    b"552 5.5.3 Too many\r\n",
    b"552 Many\r\n",
]


@both
@pytest.mark.parametrize("words", TOO_MANY)
def test_rest_of_too_many_recipients_goes_in_the_next_transaction(
    words: bytes, ehlo: bytes
) -> None:
    hop = RawHop({f"RCPT {n}": words for n in range(21, 101)}, ehlo)
    trial = play([hop, RawHop()], [envelope(1, 100), envelope(2, 50)], connections=1)
    assert trial.events() == {Event.DELIVERED: 150}
    assert hop.connections == 1
    # 20 of 100, then 20 at a time, because the session has learned the number
    assert [len(names) for names, _ in hop.messages] == [20, 20, 20, 20, 20, 20, 20, 10]
    assert trial.hosts.opened == ["mx0"]


def test_full_mailboxes_are_not_too_many_recipients() -> None:
    """The host says the same to each of them in every transaction."""
    hop = RawHop({"RCPT 2": b"452 4.2.2 Full\r\n", "RCPT 3": b"552 5.2.2 Full\r\n"})
    trial = play([hop], [envelope(1, 4)])
    assert [trial.results[1000 + n].event for n in range(4)] == [
        Event.DELIVERED, Event.DEFER, Event.FAIL, Event.DELIVERED,
    ]  # fmt: skip
    hop = RawHop({"RCPT": b"452 Full\r\n"})
    assert play([hop], [envelope(1, 4)]).events() == {Event.DEFER: 4}


def test_announced_limits_are_kept() -> None:
    ehlo = b"250-hop.example\r\n250-LIMITS RCPTMAX=7 MAILMAX=3\r\n250 PIPELINING\r\n"
    counts: dict[int, int] = {}

    def say(number: int) -> bytes:
        counts[number] = counts.get(number, 0) + 1
        return b"250 Ok\r\n"

    hop = RawHop({"MAIL": say, "RCPT 8": b"550 5.5.3 Too many\r\n"}, ehlo)
    trial = play([hop], [envelope(n, 10) for n in range(1, 11)], connections=2)
    assert trial.events() == {Event.DELIVERED: 100}
    assert max(counts.values()) == 3


def test_421_on_a_fresh_connection_beside_one_that_works_is_no_attempt() -> None:
    """A host that limits connections at MAIL."""
    hop = RawHop()
    hop.says["MAIL"] = lambda number: b"421 4.7.0 Too many\r\n" + DROP if number > 2 else None
    hop.says["dot"] = lambda number: b"250 Ok\r\n"
    trial = play([hop], [envelope(n) for n in range(1, 201)], start=2)
    assert trial.events() == {Event.DELIVERED: 200}
    assert hop.connections <= 6


def test_mail_that_waits_for_other_hosts_when_the_worker_stops() -> None:
    async def main() -> None:
        hops = [RawHop({"RCPT": b"450 4.2.0 Later\r\n"}), RawHop({"dot": HANG})]
        async with serving(hops[0]), serving(hops[1]):
            trial = Trial(hops, Delivery(hosts=3))
            trial.queue.put_envelope(envelope(1, 3))
            await eventually(lambda: hops[1].messages)
            trial.queue.drain()
            trial.queue.abort()
            await trial.queue.wait()
            assert trial.events() == {Event.UNKNOWN: 3}
            assert trial.room == 9

    run(main())


@pytest.mark.parametrize(("late_at", "opened"), [("RCPT", ["mx0"]), ("greeting", ["mx0", "mx1"])])
def test_no_host_gets_mail_whose_deadline_is_over(late_at: str, opened: list[str]) -> None:
    mail = envelope(1)

    def end(_: int) -> bytes | None:
        mail.deadline = time.monotonic()
        return b"450 4.2.0 Later\r\n" if late_at == "RCPT" else None

    hops = [RawHop({"RCPT": b"450 4.2.0 Later\r\n"}), RawHop()]
    hops[opened != ["mx0"]].says[late_at] = end
    trial = play(hops, [mail])
    assert trial.hosts.opened == opened
    assert str(trial.results[1000].reply) == "450 4.2.0 Later"
    assert not hops[1].messages


def test_a_closed_backup_gets_no_mail_over_an_open_session() -> None:
    """The best host refused one connection; it takes the mail once the backup is closed."""

    async def main() -> None:
        hops = [RawHop({"greeting": lambda n: b"421 4.3.2 No\r\n" if n == 1 else None}), RawHop()]
        async with serving(hops[0]), serving(hops[1]):
            trial = Trial(hops, Delivery(connections=1))
            for number, known in enumerate(([], ["mx1"], ["mx0", "mx1"]), 1):
                trial.keeper.close(*known)
                trial.queue.put_envelope(envelope(number))
                await eventually(partial(trial.has, number))
            trial.queue.drain()
            await trial.queue.wait()
        assert trial.hosts.opened == ["mx0", "mx1", "mx0"]
        assert [sum(hop.taken.values()) for hop in hops] == [1, 1]
        assert trial.results[3000].reason_to_wait == CLOSED

    run(main())


def test_no_further_host_gets_mail_once_it_is_closed() -> None:
    """It is closed while its session opens; another time between two transactions."""

    async def main(before: int) -> None:
        few = b"250-hop\r\n250-LIMITS RCPTMAX=1\r\n250 PIPELINING\r\n"
        hops = [RawHop({"RCPT": b"450 4.2.0 Later\r\n"}), RawHop(ehlo=few), RawHop()]
        async with serving(hops[0]), serving(hops[1]), serving(hops[2]):
            trial = Trial(hops, Delivery(connections=1))

            def close(number: int) -> None:
                if number == before:
                    trial.keeper.close("mx1")

            trial.hosts.then = lambda name: close(0) if name == "mx1" else None
            hops[1].says["dot"] = lambda _: close(len(hops[1].messages))
            trial.queue.put_envelope(envelope(1, 3))
            await eventually(lambda: len(trial.results) == 3)
            trial.queue.drain()
            await trial.queue.wait()
        assert len(hops[1].messages) == before
        assert trial.events().get(Event.DELIVERED, 0) == before
        assert trial.events()[Event.DEFER] == 3 - before
        assert hops[2].connections == 0

    run(main(0))
    run(main(1))

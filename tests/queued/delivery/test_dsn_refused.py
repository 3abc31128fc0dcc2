"""Hosts that offer DSN and refuse its parameters: the mail goes once more without them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pgmta.states import Event
from queued.delivery.transport.envelope import Envelope
from tests.queued.delivery.test_other_hosts import envelope, play
from tests.support.rawhop import DROP, RawHop

PIPED = b"250-hop.example\r\n250-DSN\r\n250 PIPELINING\r\n"
LOCK_STEP = b"250-hop.example\r\n250 DSN\r\n"
WORDS = {b" NOTIFY=": b"555 5.5.4 Unsupported option\r\n"}
ENVID = {b" ENVID=": b"501 Syntax error in parameters\r\n"}
both = pytest.mark.parametrize("ehlo", [PIPED, LOCK_STEP], ids=["piped", "lock-step"])


def mail(recipients: int = 1, without: int = 0) -> Envelope:
    """Return a message with DSN parameters, without NOTIFY for the first recipients."""
    found = envelope(1, recipients)
    items = [replace(item, notify="SUCCESS" if n >= without else None)
             for n, item in enumerate(found.items)]  # fmt: skip
    return replace(found, items=items, message=replace(found.message, envid="x"))


def owed(recipients: int, hops: list[RawHop], sent: Envelope | None = None) -> list[str]:
    """Send to the hosts; return what queued itself confirms, per recipient. All are delivered."""
    trial = play(hops, [sent or mail(recipients)])
    assert trial.events() == {Event.DELIVERED: recipients}
    results = [trial.results[number] for number in sorted(trial.results)]
    return [result.facts.success_kind if result.facts else "?" for result in results]


@both
@pytest.mark.parametrize("refused", [WORDS, ENVID, WORDS | ENVID], ids=["RCPT", "MAIL", "both"])
def test_mail_goes_without_refused_parameters_in_the_same_session(
    ehlo: bytes, refused: dict[bytes, bytes]
) -> None:
    hop = RawHop(ehlo=ehlo, refuses=refused)
    assert owed(3, [hop]) == ["relayed"] * 3
    assert (hop.connections, len(hop.messages)) == (1, 1)


@both
def test_only_the_refused_recipients_go_again(ehlo: bytes) -> None:
    hop = RawHop(ehlo=ehlo, refuses=WORDS)
    assert owed(4, [hop], mail(4, without=2)) == ["", "", "relayed", "relayed"]
    assert set(hop.taken.values()) == {1}, "no second copy"
    assert hop.connections == 1


def test_host_that_closes_after_the_refusal_gets_a_new_connection() -> None:
    hop = RawHop(ehlo=LOCK_STEP, refuses={b" ENVID=": b"555 5.5.4 No\r\n" + DROP})
    assert owed(1, [hop]) == ["relayed"]
    assert hop.connections == 2


def test_other_host_gets_the_mail_without_refused_parameters() -> None:
    busy = RawHop({"RCPT": b"450 4.2.0 Greylisted\r\n"}, ehlo=PIPED)
    other = RawHop(ehlo=PIPED, refuses=WORDS)
    assert owed(3, [busy, other], mail(3, without=1)) == ["", "relayed", "relayed"]
    assert set(other.taken.values()) == {1}
    assert other.connections == 1


def asking(reply: bytes, ehlo: bytes) -> tuple[RawHop, list[int]]:
    """Return a host with this reply to each RCPT, and the list of connections that got it."""
    asked: list[int] = []

    def answer(number: int) -> bytes:
        asked.append(number)
        return reply

    return RawHop({"RCPT": answer}, ehlo=ehlo), asked


@both
@pytest.mark.parametrize(
    ("reply", "times", "event"),
    [
        (b"555 5.5.4 No\r\n", 2, Event.FAIL),
        (b"501 5.5.4 No\r\n", 2, Event.DEFER),
        (b"550 5.1.1 No such user\r\n", 1, Event.FAIL),
        (b"501 5.1.3 Bad address\r\n", 1, Event.FAIL),
    ],
)
def test_second_refusal_counts(ehlo: bytes, reply: bytes, times: int, event: Event) -> None:
    hop, asked = asking(reply, ehlo)
    assert play([hop], [mail()]).events() == {event: 1}
    assert len(asked) == times


def test_host_without_dsn_is_not_asked_again() -> None:
    hop, asked = asking(b"555 5.5.4 No\r\n", LOCK_STEP.replace(b"DSN", b"HELP"))
    assert play([hop], [mail()]).events() == {Event.FAIL: 1}
    assert len(asked) == 1

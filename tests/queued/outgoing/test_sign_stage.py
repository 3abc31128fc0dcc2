"""Between dispatch and the destinations: what waits for a signature, and what does not."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import pytest

from pgmta.errors import DeliveryError
from pgmta.model import Item, Message, Outcome
from pgmta.states import Event
from queued.config import QueuedConfig
from queued.delivery.destination_queue import DestinationQueue
from queued.delivery.transport.envelope import Envelope
from queued.delivery.transports import Transports
from queued.outgoing.sign_stage import SignStage
from queued.outgoing.stage import Means
from queued.signing.keyring import Keyring
from queued.signing.signers import Signers
from queued.signing.signing_key import SigningKey
from queued.worker.dispatch import Dispatch
from tests.support.dispatcher import outgoing
from tests.support.dkim import DOMAIN, Keys
from tests.support.leases import Always
from tests.support.rows import mail
from tests.support.waiting import PATIENCE, let_others_run

NOW = datetime.now(UTC)


class Site:
    """A dispatch that signs; its envelopes and outcomes are kept."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, **changes: Any) -> None:
        self.keys = Keys(folder)
        monkeypatch.setattr("queued.signing.signers.THREADS", 1)
        routes = {"*": "127.0.0.1:1", "c.example": "127.0.0.1:2"}
        signing = {
            "keys": [self.keys.entry("e", changes.pop("kind", "rsa"))],
            **changes,
        }
        config = QueuedConfig.model_validate({"routes": routes, "signing": signing})
        self.sent: list[Envelope] = []
        self.outcomes: list[Outcome] = []
        self.signatures = 0
        self.changed = asyncio.Event()
        self.free = threading.Event()
        """Threads wait for it."""
        self.free.set()
        sign = SigningKey.sign

        def slowly(key: SigningKey, data: bytes) -> bytes:
            self.signatures += 1
            assert self.free.wait(PATIENCE)
            return sign(key, data)

        def put(_: object, envelope: Envelope) -> None:
            self.sent.append(envelope)
            self.changed.set()

        monkeypatch.setattr(SigningKey, "sign", slowly)
        monkeypatch.setattr(DestinationQueue, "put_envelope", put)
        self.signers = Signers(Keyring(cast(Any, None)), config.signing)
        transports = Transports("client.example", config.delivery)
        self.dispatch = Dispatch(
            config,
            Means(contents=cast(Any, None), transports=transports, signers=self.signers),
            Always(),
            cast(Any, self),
        )
        self.room = self.dispatch.stages.context.free_octets

    def put_outcome(self, outcome: Outcome) -> None:
        self.outcomes.append(outcome)
        self.changed.set()

    async def until(self, sent: int = 0, outcomes: int = 0) -> None:
        """Wait for that many envelopes and outcomes."""
        async with asyncio.timeout(PATIENCE):
            while len(self.sent) < sent or len(self.outcomes) < outcomes:
                self.changed.clear()
                await self.changed.wait()

    @property
    def signed(self) -> list[bool]:
        return [each.trace.startswith(b"DKIM-Signature: ") for each in self.sent]


@pytest.fixture
async def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Site]:
    site = Site(tmp_path, monkeypatch)
    yield site
    site.free.set()
    site.signers.close()


@pytest.fixture(autouse=True)
def _no_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DestinationQueue, "grow", lambda _: None)


def message(number: int, domain: str = DOMAIN) -> Message:
    body = f"From: x@{domain}\r\n\r\ntext {number}\r\n".encode()
    return Message(number, len(body), False, "Trace: x\r\n", 0, body)


def item(number: int, of: int, domain: str = "b.example", metadata: str | None = None) -> Item:
    return Item(number, of, "s@s.example", f"r{number}@{domain}", domain, 1, NOW, number,
                metadata=metadata, origin="network")  # fmt: skip


async def test_message_is_signed_once_for_all_its_destinations(site: Site) -> None:
    items = [item(1, 1), item(2, 1, "c.example"), item(3, 2), item(4, 1)]
    site.dispatch.dispatch(items, {1: message(1), 2: message(2, "other.example")})
    await site.until(sent=3)
    assert sorted(site.signed) == [False, True, True]
    assert site.signatures == 1
    assert site.dispatch.stages.context.load == 0


async def test_ed25519_needs_no_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = Site(tmp_path, monkeypatch, kind="ed25519")
    site.signers.close()
    site.dispatch.dispatch([item(1, 1), item(2, 1, "c.example")], {1: message(1)})
    assert site.signed == [True, True]
    assert site.signatures == 1


async def test_slow_thread_stops_no_mail_that_is_not_signed(site: Site) -> None:
    site.free.clear()
    messages = {n: message(n) for n in range(1, 40)} | {99: message(99, "other.example")}
    site.dispatch.dispatch([item(n, n) for n in range(1, 40)], messages)
    site.dispatch.dispatch([item(99, 99, "c.example")], messages)
    await site.until(sent=1)
    assert site.sent[0].items[0].id == 99
    # claims leave out the domains that wait, once they have half of the slots
    assert site.dispatch.exclusions.busy(39) == (["b.example"], 39)
    assert site.dispatch.exclusions.busy(40) == ([], 0)
    site.free.set()
    await site.until(sent=40)
    assert site.signed == [False, *[True] * 39]
    assert site.dispatch.exclusions.busy(1) == ([], 0)


async def test_drain_hands_back_what_waits_for_a_signature(site: Site) -> None:
    site.free.clear()
    messages = {n: message(n) for n in range(1, 40)}
    site.dispatch.dispatch([item(n, n) for n in range(1, 40)], messages)
    await let_others_run()
    await let_others_run()  # the first is with a thread
    site.dispatch.drain()
    await site.until(outcomes=39)
    assert {outcome.event for outcome in site.outcomes} == {Event.HAND_BACK}
    assert sorted(outcome.item.id for outcome in site.outcomes) == list(range(1, 40))
    assert site.dispatch.stages.context.free_octets == site.room
    site.free.set()
    site.dispatch.dispatch([item(50, 50)], {50: message(50)})
    await site.until(outcomes=40)
    assert site.outcomes[-1].event is Event.HAND_BACK
    await asyncio.get_running_loop().run_in_executor(site.signers._pool, lambda: None)
    await let_others_run()
    assert site.sent == []


async def test_rows_of_one_message_may_match_different_rules(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = Site(tmp_path, monkeypatch, rules=[{"metadata.kind": "bulk"}])
    bulk = '{"kind": "bulk"}'
    items = [item(1, 1), item(2, 1, metadata=bulk), item(3, 1), item(4, 1, metadata=bulk)]
    site.dispatch.dispatch(items, {1: message(1)})
    await site.until(sent=2)
    found = {tuple(i.id for i in each.items): signed
             for each, signed in zip(site.sent, site.signed, strict=True)}  # fmt: skip
    assert found == {(1, 3): False, (2, 4): True}
    used = site.room - site.dispatch.stages.context.free_octets
    assert sum(envelope.content_octets for envelope in site.sent) == used
    site.signers.close()


class Broken:
    """Content that can't be read to its end."""

    def __init__(self, parts: list[bytes], error: Exception | None = None) -> None:
        self.parts = parts
        self.error = error
        self.passes = 0

    async def __aiter__(self) -> AsyncIterator[bytes]:
        self.passes += 1
        for part in self.parts:
            yield part
        if self.error:
            raise self.error


async def test_content_that_streams(site: Site) -> None:
    (signing,) = [each for each in site.dispatch.stages.all if isinstance(each, SignStage)]
    routed = site.dispatch._routes.find(mail("b.example"))

    def take(number: int, content: Broken) -> None:
        row = item(number, number)
        assert signing.prepare(outgoing(row, message(number), content, routed)) is None

    head = f"From: x@{DOMAIN}\r\nSubject: x\r".encode()
    good = Broken([head, b"\n\r", b"\nbody", b" \r\n"])
    take(1, good)
    take(2, good)
    await site.until(sent=2)
    assert site.signed == [True, True]
    assert (good.passes, site.signatures) == (2, 1), "for the header, and for the body"
    sent = site.sent[0].trace + b"".join(good.parts)
    assert site.keys.signers(sent) == ["a.example/e"]

    other = Broken([b"From: x@other.example\r\n\r\n", b"body"])
    take(3, other)
    await site.until(sent=3)
    assert (site.signed[-1], other.passes) == (False, 1)
    take(4, Broken([b"\r\nno header"]))
    await site.until(sent=4)
    take(5, Broken([head, b"\n\r\n"], DeliveryError("is gone")))
    await site.until(outcomes=1)
    assert (site.outcomes[0].event, site.outcomes[0].reply.text) == (Event.DEFER, "is gone")
    take(6, Broken([head + b"\n" + b"x" * (1 << 20), b"y"]))
    await site.until(outcomes=2)
    assert site.outcomes[1].reply.text == "5.6.0 not signed: the header is over 1 MB"
    assert site.outcomes[1].event is Event.FAIL, "no later attempt would be better"
    assert site.dispatch.exclusions.busy(1) == ([], 0)
    foreign = b"From: x@other.example\r\n" + b"x" * (1 << 20)
    take(7, Broken([foreign, b"y"]))
    await site.until(sent=5)
    assert (site.signed[-1], len(site.outcomes)) == (False, 2), "it needs no signature"


async def test_a_header_of_thousands_of_fields(site: Site) -> None:
    """A signature names each field, and a header of one message must not become that large."""
    head = f"From: x@{DOMAIN}\r\n".encode()
    contents = [head + b"To:\r\n" * number + b"\r\nx" for number in (900, 1000)]
    contents.append(b"From: x@other.example\r\n" + b"To:\r\n" * 1000 + b"\r\nx")
    for number, body in enumerate(contents):
        found = Message(number, len(body), False, "Trace: x\r\n", 0, body)
        site.dispatch.dispatch([item(number, number)], {number: found})
    await site.until(sent=2, outcomes=1)
    assert sorted(site.signed) == [False, True]
    words = "5.6.0 not signed: the header has 1001 fields for a signature, over 1000"
    assert site.outcomes[0].reply.text == words


async def test_no_later_attempt_finds_a_domain_in_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rules = [
        {"metadata.kind": "bulk", "missing": "send"},
        {"metadata.kind": "report", "sign": "none"},
        {"sender_domain": "s.example"},
    ]
    site = Site(tmp_path, monkeypatch, rules=rules)
    twice = message(2, f"{DOMAIN}\r\nFrom: y@{DOMAIN}")
    site.dispatch.dispatch([item(9, 2)], {2: twice})
    await site.until(outcomes=1)
    outcome = site.outcomes.pop()
    assert outcome.reply.text == "5.6.0 not signed: the header has 2 fields From"
    assert outcome.event is Event.FAIL
    kinds = [None, '{"kind": "bulk"}', '{"kind": "report"}']
    items = [item(n, 1, metadata=kind) for n, kind in enumerate(kinds)]
    site.dispatch.dispatch(items, {1: message(1, "b.example, y@c.example")})
    await site.until(sent=2, outcomes=1)
    (outcome,) = site.outcomes
    assert (outcome.event, outcome.item.id) == (Event.FAIL, 0)
    words = "5.6.0 not signed: signing.rules[2] signs by from, which has no domain"
    assert outcome.reply.text == words
    assert {row.id for each in site.sent for row in each.items} == {1, 2}
    assert site.signed == [False, False]
    site.signers.close()

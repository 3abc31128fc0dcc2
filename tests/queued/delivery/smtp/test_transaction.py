"""Parameters of MAIL and RCPT, LMTP, the limit of a transaction, and QUIT."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from pgmta.errors import DeliveryError, Stage
from pgmta.states import Event
from queued.config import Delivery, Timeouts
from queued.delivery.dns.hosts import Host
from queued.delivery.smtp.client_session import ClientSession
from queued.delivery.smtp.connection import ClientProtocol
from queued.delivery.smtp.mail_commands import limit, mail_command, rcpt_command
from queued.delivery.transport.result import Result
from queued.delivery.transport.transport import UNLIMITED
from queued.outgoing.stages import header_needs_utf8
from tests.queued.delivery.sending import attempt, envelope
from tests.support.rawhop import DROP, HANG, RawHop, run
from tests.support.waiting import SLACK, take_time_async

ITEM = envelope().items[0]


class Parts:
    """Content that comes in parts."""

    def __init__(self, *parts: bytes) -> None:
        self.parts = parts

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for part in self.parts:
            yield part


# -- parameters --


def test_parameters_of_rfc_3461_go_to_hosts_that_know_them() -> None:
    mail = envelope()
    mail.message = replace(mail.message, envid="QQ+2B314159", ret="HDRS")
    assert (
        mail_command(mail, {}, 0, dsn=True) == "MAIL FROM:<s@a.example> RET=HDRS ENVID=QQ+2B314159"
    )
    assert mail_command(mail, {}, 0) == "MAIL FROM:<s@a.example>"
    row = replace(ITEM, notify="SUCCESS,DELAY", orcpt="rfc822;Bob+2Bx@b.example")
    assert rcpt_command(row, dsn=True) == (
        "RCPT TO:<r0@b.example> NOTIFY=SUCCESS,DELAY ORCPT=rfc822;Bob+2Bx@b.example"
    )


@pytest.mark.parametrize(
    "evil",
    ["x\r\nRSET", "x y", "NEVER,SUCCESS", "", "+zz", "a=b", "é", "rfc822;a b", "SUCCESS,", "\0"],
)
def test_what_is_no_parameter_is_left_out(evil: str) -> None:
    """Rows may come by SQL."""
    assert (
        rcpt_command(replace(ITEM, notify=evil, orcpt=evil), dsn=True) == "RCPT TO:<r0@b.example>"
    )
    mail = envelope()
    mail.message = replace(mail.message, ret=evil, envid=f"=\0{evil}")
    assert mail_command(mail, {}, 0, dsn=True) == "MAIL FROM:<s@a.example>"


def test_limits_of_rfc_9422() -> None:
    words = "RCPTMAX=20 mailmax=5 RCPTDOMAINMAX=1 X=1=2"
    assert (limit(words, "RCPTMAX"), limit(words, "MAILMAX")) == (20, 5)
    for odd in (
        "",
        "RCPTMAX",
        "RCPTMAX=",
        "RCPTMAX=0",
        "RCPTMAX=-1",
        "RCPTMAX=1234567",
        "RCPTMAX=²",
    ):
        assert limit(odd, "RCPTMAX") == UNLIMITED


def test_smtputf8_only_where_it_is_needed() -> None:
    trace = b"Received: x\r\n"
    assert not header_needs_utf8(trace, "Subject: x\r\n\r\nköpfe\r\n".encode())
    assert header_needs_utf8(trace, "Subject: ü\r\n\r\nx\r\n".encode())
    assert header_needs_utf8(trace, "Subject: ü".encode())
    assert header_needs_utf8("Received: for ü\r\n".encode(), b"Subject: x\r\n\r\n")
    assert header_needs_utf8(trace, Parts(b"")) is None, "the channel looks"


HEAD = b"Subject: x\r\nTo: y\r"


@pytest.mark.parametrize(
    ("parts", "needed"),
    [
        ([HEAD, b"\n\r", "\nüber\r\n".encode()], False),
        ([HEAD, "\nX: ü\r\n\r\n".encode()], True),
        (["Subject: ü".encode()], True),
        ([b""], False),
    ],
)
def test_the_header_of_content_that_streams(parts: list[bytes], needed: bool) -> None:
    """A host without SMTPUTF8 gets it if its header is ASCII, whatever the client said."""
    mail = replace(envelope(content=Parts(*parts)), utf8=None)
    asyncio.run(mail.look_at_header())
    assert mail.utf8 is needed
    if needed:
        with pytest.raises(DeliveryError, match=r"^5\.6\.7 "):
            mail_command(mail, {}, 0)
    else:
        assert mail_command(mail, {}, 0) == "MAIL FROM:<s@a.example>"


@pytest.mark.parametrize("content", ["é\r\n".encode(), Parts(b"x\r\n", "é\r\n".encode())])
def test_eight_bit_content_for_a_host_without_8bitmime(content: bytes | Parts) -> None:
    mail = envelope(content=content, size=4)
    hop = RawHop()
    (result,) = run(attempt(hop, mail))
    assert result.event is Event.DELIVERED
    (result,) = run(attempt(hop, mail, Delivery(eightbit="bounce")))
    assert result.event is Event.FAIL
    assert result.reply.text == "5.6.3 the next hop does not know 8BITMIME"
    assert len(hop.messages) == 1
    hop.ehlo = b"250-hop.example\r\n250 8BITMIME\r\n"
    (result,) = run(attempt(hop, mail, Delivery(eightbit="bounce")))
    assert result.event is Event.DELIVERED


# -- LMTP --

LHLO = {"LHLO": b"250-hop.example\r\n250 PIPELINING\r\n"}


@pytest.mark.parametrize(
    ("dot", "events"),
    [
        (b"250 Ok\r\n550 5.2.1 Off\r\n452 Full\r\n", [Event.DELIVERED, Event.FAIL, Event.DEFER]),
        (b"250-a\r\n250 Ok\r\n" + DROP, [Event.DELIVERED, Event.UNKNOWN, Event.UNKNOWN]),
        (DROP, [Event.UNKNOWN] * 3),
        (b"250 Ok\r\n550 No\r\n" + HANG, [Event.DELIVERED, Event.FAIL, Event.UNKNOWN]),
        (b"250 Ok\r\nwhat?\r\n250 Ok\r\n", [Event.UNKNOWN] * 3),
        (b"250 Ok\r\n354 Go\r\n250 Ok\r\n", [Event.DELIVERED, Event.UNKNOWN, None]),
        (b"421 4.3.2 Bye\r\n" * 3 + DROP, [Event.DEFER] * 3),
    ],
)  # fmt: skip
def test_lmtp_has_an_outcome_for_each_recipient(dot: bytes, events: list[Event | None]) -> None:
    """The second of four recipients is refused, and gets no reply to the dot."""
    hop = RawHop({**LHLO, "dot": dot, "RCPT 2": b"550 5.1.1 No\r\n"})
    quick = Delivery(timeouts=Timeouts(final=0.2))
    results = run(attempt(hop, envelope(recipients=4), quick, lmtp=True))
    found = [result.event for result in results]
    assert found.pop(1) is Event.FAIL
    for event, wanted in zip(found, events, strict=True):
        assert event is (wanted or event)


def test_lmtp_server_is_never_greeted_by_ehlo_or_helo() -> None:
    hop = RawHop({"LHLO": b"500 What?\r\n"})
    (result,) = run(attempt(hop, envelope(), lmtp=True))
    assert (result.stage, result.event) == (Stage.LHLO, Event.DEFER)

    async def at_port_25() -> None:
        session = ClientSession(ClientProtocol(Timeouts()), Host("hop", 25), lmtp=True)
        with pytest.raises(DeliveryError, match="port 25"):
            await session.greet("client.example")

    run(at_port_25())


# -- time --


class Dripping(asyncio.Protocol):
    """Takes all commands, and says its replies one octet every 20 ms."""

    def __init__(self) -> None:
        self.task: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        self.task = asyncio.get_running_loop().create_task(self.drip())

    async def drip(self) -> None:
        for octet in b"220 x\r\n250 x\r\n" + b"250 all right, so it is\r\n" * 100:
            self.transport.write(bytes([octet]))  # type: ignore[attr-defined]
            await take_time_async(0.02)


def test_one_octet_at_a_time_ends_with_the_transaction(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("queued.delivery.smtp.client_session.TRANSACTION_S", 1.0)

    async def main() -> Result:
        loop = asyncio.get_running_loop()
        server = await loop.create_server(Dripping, "127.0.0.1", 0)
        async with server:
            session = ClientSession(ClientProtocol(Timeouts()), Host("hop", 2525))
            port = server.sockets[0].getsockname()[1]
            await loop.create_connection(lambda: session.connection, "127.0.0.1", port)
            await session.open("client.example")
            began = time.monotonic()
            result, *_ = await session.send(envelope(recipients=100))
            assert 0.9 < time.monotonic() - began < 1 + SLACK  # its replies take a minute
            return result

    result = run(main())
    assert result.reply.text == "timeout, the transaction took too long"
    assert result.event is Event.DEFER


def test_limit_of_a_transaction_does_not_cut_off_the_reply_to_the_dot(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("queued.delivery.smtp.client_session.TRANSACTION_S", 0.1)
    hop = RawHop({"dot": HANG})
    delivery = Delivery(timeouts=Timeouts(final=0.5))
    began = time.monotonic()
    (result,) = run(attempt(hop, envelope(), delivery))
    assert time.monotonic() - began >= 0.5
    assert result.event is Event.UNKNOWN


@pytest.mark.parametrize(("answer", "patience"), [(b"221 Bye\r\n", 300.0), (HANG, 0.5)])
def test_quit_waits_a_moment_for_its_answer(
    monkeypatch: pytest.MonkeyPatch, answer: bytes, patience: float
) -> None:
    monkeypatch.setattr("queued.config.delivery.QUIT_S", patience)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 x\r\n")
        await reader.readline()
        writer.write(b"250 x\r\n")
        assert await reader.readline() == b"QUIT\r\n"
        if answer != HANG:
            writer.write(answer)
        await reader.read()
        writer.close()

    async def main() -> float:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        async with server:
            session = ClientSession(ClientProtocol(Timeouts()), Host("hop", 2525))
            port = server.sockets[0].getsockname()[1]
            loop = asyncio.get_running_loop()
            await loop.create_connection(lambda: session.connection, "127.0.0.1", port)
            await session.open("client.example")
            began = time.monotonic()
            session.connection.quit()
            assert session.connection.closed
            await session.connection.wait_closed()
            return time.monotonic() - began

    took = run(main())
    assert took < SLACK
    assert answer != HANG or took >= 0.4

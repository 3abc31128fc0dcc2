"""A session that an operator ends within its content, and one that no destination has."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from weakref import WeakSet

from pgmta.errors import Stage
from pgmta.states import Event
from queued.config import Delivery
from queued.delivery.smtp.client_session import ClientSession
from queued.delivery.transport.open_connections import OF_DESTINATION, Connections
from tests.queued.delivery.sending import connect, envelope
from tests.support.rawhop import RawHop, run, serving
from tests.support.waiting import eventually


class SlowContent:
    """Content whose second part comes when `go_on` is set."""

    def __init__(self) -> None:
        self.go_on = asyncio.Event()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield b"Subject: x\r\n\r\n"
        await self.go_on.wait()
        yield b"x\r\n"


async def session_with(hop: RawHop) -> ClientSession:
    session = await connect(hop, Delivery())
    await session.open("client.example")
    return session


def test_within_the_content_nothing_has_happened() -> None:
    async def main() -> None:
        known: Connections = WeakSet()
        OF_DESTINATION.set(known)
        hop = RawHop()
        async with serving(hop):
            session = await session_with(hop)
            assert [*known] == [session]
            mail = envelope()
            mail.content = content = SlowContent()
            sending = asyncio.create_task(session.send(mail))
            await eventually(lambda: (s := session.state()) and s.phase == Stage.CONTENT)
            state = session.state()
            assert state
            assert (state.envelope, state.sent) == (mail, 0)
            session.end_by_operator()
            assert session.state() is None
            content.go_on.set()
            (result,) = await sending
            assert result.event is Event.DEFER
            assert result.reply.text == "ended by operator"
            assert not session.vain  # it is an attempt
        assert hop.messages == []

    run(main())


def test_mail_that_comes_after_the_end_of_an_idle_session_has_no_attempt() -> None:
    """It had none when the operator looked."""

    async def main() -> None:
        hop = RawHop()
        async with serving(hop):
            session = await session_with(hop)
            (result,) = await session.send(envelope())
            assert result.event is Event.DELIVERED
            session.end_by_operator()
            await session.send(envelope())
            assert session.vain
        assert len(hop.messages) == 1

    run(main())


def test_a_session_of_no_destination_is_in_no_list() -> None:
    """`queuectl route --probe` opens such ones."""

    async def main() -> None:
        hop = RawHop()
        async with serving(hop):
            session = await session_with(hop)
            session.close()
            state = session.state()
            assert state
            assert state.phase == "QUIT"
            await session.wait_closed()
            assert session.state() is None

    run(main())

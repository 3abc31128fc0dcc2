"""A message, and one transaction with a hop that says exactly the given octets."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any

from pgmta.errors import DeliveryError
from pgmta.model import Item, Message
from queued.config import Delivery
from queued.delivery.dns.hosts import Host
from queued.delivery.smtp.client_session import ClientSession
from queued.delivery.smtp.connection import ClientProtocol
from queued.delivery.transport.envelope import Envelope
from queued.delivery.transport.result import Result
from tests.support.leases import ALWAYS
from tests.support.rawhop import RawHop, serving
from tests.support.waiting import eventually

NOW = datetime.now(UTC)
CONTENT = b"Subject: x\r\n\r\nbody\r\n"


def envelope(
    number: int = 0,
    recipients: int = 1,
    *,
    content: Any = CONTENT,
    size: int = len(CONTENT),
    **more: Any,
) -> Envelope:
    """A message to r0@b.example and so on; the ids of its rows begin with 1000 * number."""
    items = [
        Item(1000 * number + n, number, "s@a.example", f"r{n}@b.example", "b.example", 1, NOW, n)
        for n in range(recipients)
    ]
    message = Message(number, size, False, "X-Trace: y\r\n", 0, None)
    trace = message.trace.encode()
    return Envelope(items, message, "s@a.example", trace, size, False, content, ALWAYS, NOW, **more)


async def connect(hop: RawHop, delivery: Delivery, *, lmtp: bool = False) -> ClientSession:
    """Connect, and say nothing yet."""
    host = Host("hop", hop.port if lmtp else 25)
    session = ClientSession(ClientProtocol(delivery.timeouts), host, None, delivery, lmtp=lmtp)
    loop = asyncio.get_running_loop()
    await loop.create_connection(lambda: session.connection, "127.0.0.1", hop.port)
    return session


async def attempt(
    hop: RawHop, mail: Envelope, delivery: Delivery | None = None, *, lmtp: bool = False
) -> list[Result]:
    """Send the message over a session of its own; return the result of each recipient."""
    async with serving(hop):
        session = await connect(hop, delivery or Delivery(), lmtp=lmtp)
        try:
            await session.open("client.example")
            return await session.send(mail)
        except DeliveryError as error:
            return [Result.from_error(error, "hop")] * len(mail.items)
        finally:
            session.connection.quit()
            await eventually(lambda: not hop.open)  # the hop reads what has come to it

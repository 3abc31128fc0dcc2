"""From a destination to a session with one of its hosts."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from pgmta.config.types import HostPort
from pgmta.errors import DeliveryError
from queued.config import Delivery
from queued.delivery.mx import Resolver
from queued.delivery.route import Destination
from queued.delivery.session import Session


@dataclass(frozen=True, slots=True)
class Means:
    """What every lane delivers with; of its connections, `reserved` are for urgent mail only."""

    hostname: str
    delivery: Delivery
    resolver: Resolver
    reserved: int = 0


async def connect(
    destination: Destination, means: Means, sessions: set[Session]
) -> tuple[Session, str]:
    """Connect to the first host and address that answers; return the session and its host.

    A session is in `sessions` from its connection on, unless its greeting or EHLO failed. Raises
    DeliveryError.
    """
    problem: DeliveryError | None = None
    for host in await means.resolver.hosts(destination):
        try:
            addresses = await means.resolver.addresses(host.host)
        except DeliveryError as error:
            problem = error
            continue
        for address in addresses:
            try:
                at = HostPort(address, host.port)
                return await _connect(at, means, sessions), str(host)
            except DeliveryError as error:
                problem = error
    raise problem or DeliveryError(f"4.4.4 no host for {destination}", command="MX")


async def _connect(at: HostPort, means: Means, sessions: set[Session]) -> Session:
    timeouts = means.delivery.timeouts
    session = Session(timeouts)
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(timeouts.connect):
            await loop.create_connection(lambda: session, at.host, at.port)
    except TimeoutError:
        raise DeliveryError(f"4.4.1 connect to {at}: timeout", command="connect") from None
    except OSError as error:
        reason = error.strerror or str(error)
        raise DeliveryError(f"4.4.1 connect to {at}: {reason}", command="connect") from None
    sessions.add(session)
    try:
        await session.open(means.hostname)
    except BaseException:
        session.abort()
        sessions.discard(session)
        raise
    return session

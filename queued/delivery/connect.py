"""From a destination to a session with one of its hosts."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Protocol

from pgmta.config.types import HostPort
from pgmta.errors import DeliveryError, NoHostLeft, Stage
from queued.config import Delivery
from queued.delivery.facts import ConnectionFacts
from queued.delivery.hosts import Host
from queued.delivery.mx import Resolver
from queued.delivery.protocol import ClientProtocol
from queued.delivery.route import Destination
from queued.delivery.sasl import authenticate
from queued.delivery.session import Session
from queued.delivery.tls_policy import TlsMode


class Opener(Protocol):
    """Opens sessions with the hosts of a destination."""

    async def open(
        self,
        destination: Destination,
        sessions: set[Session],
        tried: frozenset[str] = frozenset(),
    ) -> Session:
        """Return a session that is ready for a transaction, with none of the hosts in `tried`.

        The session is in `sessions` from its connection on, unless the greeting or EHLO failed.
        Raises DeliveryError: NoHostLeft if every host that may be tried is in `tried`.
        """


@dataclass(frozen=True, slots=True)
class DeliveryContext:
    """The means of every destination; `reserved` connections are for urgent mail only."""

    delivery: Delivery
    opener: Opener
    reserved: int = 0
    most_ordinary: int = field(init=False)
    """The number of connections that mail which is not urgent may use."""

    def __post_init__(self) -> None:
        most = max(1, self.delivery.connections - self.reserved)
        object.__setattr__(self, "most_ordinary", most)


class Connector:
    """Opens sessions by SMTP, with the first host and address that answers."""

    def __init__(self, hostname: str, delivery: Delivery, resolver: Resolver) -> None:
        self._hostname = hostname
        self._delivery = delivery
        self._timeouts = delivery.timeouts
        self._resolver = resolver

    async def open(
        self,
        destination: Destination,
        sessions: set[Session],
        tried: frozenset[str] = frozenset(),
    ) -> Session:
        """Return a session, as Opener says. Raises DeliveryError, that of the last host tried."""
        problem: DeliveryError | None = None
        left = False
        for host in await self._resolver.hosts(destination):
            if host.host in tried:
                continue
            left = True
            try:
                addresses = await self._resolver.addresses(host.host)
            except DeliveryError as error:
                problem = error
                continue
            for address in addresses:
                try:
                    at = HostPort(address, host.port)
                    return await self._connect(at, host, destination, sessions)
                except DeliveryError as error:
                    problem = error
        if tried and not left:
            raise NoHostLeft(f"4.4.4 no other host for {destination}", Stage.MX)
        raise problem or DeliveryError(f"4.4.4 no host for {destination}", Stage.MX)

    async def _connect(
        self, at: HostPort, host: HostPort, destination: Destination, sessions: set[Session]
    ) -> Session:
        session = Session(
            ClientProtocol(self._timeouts),
            Host(host.host, host.port),
            ConnectionFacts(host.host, at.host),
            self._delivery,
            lmtp=destination.protocol == "lmtp",
        )
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._timeouts.connect):
                await loop.create_connection(lambda: session.connection, at.host, at.port)
        except TimeoutError:
            raise DeliveryError(f"4.4.1 connect to {at}: timeout", Stage.CONNECT) from None
        except OSError as error:
            reason = error.strerror or str(error)
            raise DeliveryError(f"4.4.1 connect to {at}: {reason}", Stage.CONNECT) from None
        sessions.add(session)
        try:
            await session.open(self._hostname)
            if login := destination.login:
                await authenticate(session, login, clear=destination.tls is TlsMode.NONE)
        except BaseException:
            session.connection.abort()
            sessions.discard(session)
            raise
        return session

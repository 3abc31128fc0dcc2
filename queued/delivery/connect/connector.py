"""From a destination to a session with one of its hosts."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from pgmta.config.types import HostPort
from pgmta.errors import DeliveryError, NoHostLeft, Stage
from pgmta.logs import get
from queued.config import Delivery
from queued.delivery.connect.sasl import authenticate
from queued.delivery.connect.security import Security
from queued.delivery.connect.tries import Tries
from queued.delivery.dns.dns import Questions
from queued.delivery.dns.hosts import Host, Hosts
from queued.delivery.dns.unresponsive import SLOW, Unresponsive
from queued.delivery.smtp.protocol import ClientProtocol
from queued.delivery.smtp.session import Session
from queued.delivery.tls.tls_memory import Memory, NoMemory
from queued.delivery.transport.destination import Destination
from queued.delivery.transport.facts import ConnectionFacts
from queued.delivery.transport.result import internal
from queued.delivery.transport.tls_policy import HostPolicy, TlsMode

log = get("delivery")


class Opener(Protocol):
    """Opens sessions with the hosts of a destination."""

    async def open(
        self,
        destination: Destination,
        sessions: set[Session],
        tried: frozenset[HostPort] = frozenset(),
        earlier: int = 0,
    ) -> Session:
        """Return a session that is ready for a transaction, with none of the hosts in `tried`.

        After this number of `earlier` attempts it begins after their hosts, if there are more.
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
    """Opens sessions by SMTP, with the first host and address that answers.

    One connector serves all workers of a process, so that they share `questions`. Without `memory`
    nothing is kept of the TLS of hosts and domains.
    """

    def __init__(self, hostname: str, delivery: Delivery, memory: Memory | None = None) -> None:
        self._memory = memory or NoMemory()
        self.questions = Questions(delivery.dns)
        self._dns = delivery.dns
        self._hostname = hostname
        self._unresponsive = Unresponsive()
        self.configure(delivery)

    def configure(self, delivery: Delivery) -> None:
        """Use other settings from now on."""
        if delivery.dns != self._dns:
            self._dns = delivery.dns
            self.questions.configure(delivery.dns)
        self._delivery = delivery
        self._timeouts = delivery.timeouts
        self._hosts = Hosts(self._hostname, delivery, self.questions, self._unresponsive)
        self.security = Security(delivery.tls, self.questions, self._web_server, self._memory)

    async def _web_server(self, name: str) -> list[str]:
        return await self._hosts.web_addresses(name)

    @property
    def hosts(self) -> Hosts:
        """The means to find the hosts of destinations."""
        return self._hosts

    async def open(
        self,
        destination: Destination,
        sessions: set[Session],
        tried: frozenset[HostPort] = frozenset(),
        earlier: int = 0,
    ) -> Session:
        """Return a session, as Opener says. Raises DeliveryError with what each host said."""
        tries = Tries()
        began = time.monotonic()
        further: list[Host] = []
        async for host in self._hosts.of(destination, tried, earlier, further):
            if session := await self._try(destination, host, sessions, tries, began):
                return session
        if tried and not tries:
            raise NoHostLeft(f"4.4.4 no other host for {destination}", Stage.MX)
        error = tries.error(f"4.4.4 no host for {destination}")
        if further:  # the next attempt begins with one of them
            error.permanent = False
        raise error

    async def open_at(
        self, destination: Destination, host: Host, sessions: set[Session]
    ) -> Session:
        """Return a session with this host of the destination, as `open` does."""
        tries = Tries()
        if session := await self._try(destination, host, sessions, tries, time.monotonic()):
            return session
        raise tries.error(f"4.4.4 no address of {host.name}")

    async def _try(
        self,
        destination: Destination,
        host: Host,
        sessions: set[Session],
        tries: Tries,
        began: float,
    ) -> Session | None:
        """Return a session with the host; None if there is none, and `tries` has the reasons.

        The search for a host began at `began`.
        """
        where = host.place
        try:
            policy = await self.security.policy(destination, host)
            addresses = await self._hosts.addresses(host)
        except Exception as error:
            tries.add(where, "", _problem(error, host))
            return None
        silent = 0
        for address in addresses:
            begun = time.monotonic()
            facts = ConnectionFacts(host.name, address, dns_seconds=begun - began - tries.seconds)
            connect = partial(self._connect, destination, host, facts, sessions)
            try:
                session = await self.security.session(policy, host, connect)
            except Exception as error:
                problem = _problem(error, host)
                problem.facts = facts
                took = time.monotonic() - begun
                facts.count(problem.stage, took)
                tries.add(where, address, problem, took)
                if took >= SLOW and not problem.code:
                    self._unresponsive.add(address)
                    silent += 1
            else:
                self._unresponsive.remove(address)
                self._unresponsive.remove(host.name)
                return session
        if silent == len(addresses):
            self._unresponsive.add(host.name)
        return None

    async def _connect(
        self,
        destination: Destination,
        host: Host,
        facts: ConnectionFacts,
        sessions: set[Session],
        policy: HostPolicy,
    ) -> Session:
        session = Session(
            ClientProtocol(self._timeouts),
            host,
            facts,
            self._delivery,
            lmtp=destination.protocol == "lmtp",
        )
        where = f"4.4.1 connect to {host.name}[{facts.address}]:{host.port}"
        if host.name == facts.address:
            where = f"4.4.1 connect to {host.place}"
        loop = asyncio.get_running_loop()
        begun = time.monotonic()
        try:
            async with asyncio.timeout(self._timeouts.connect):
                await loop.create_connection(lambda: session.connection, facts.address, host.port)
        except TimeoutError:
            raise DeliveryError(f"{where}: timeout", Stage.CONNECT) from None
        except OSError as error:
            reason = error.strerror or str(error)
            raise DeliveryError(f"{where}: {reason}", Stage.CONNECT) from None
        facts.connect_seconds = time.monotonic() - begun
        sessions.add(session)
        try:
            if destination.implicit:
                await self.security.shake_hands(session, policy)
            await session.open(self._hostname)
            spent = time.monotonic() - begun
            facts.greeting_seconds = spent - facts.connect_seconds - facts.tls_seconds
            await self.security.secure(session, policy, self._hostname)
            if login := destination.login:
                await authenticate(session, login, clear=destination.tls is TlsMode.NONE)
        except BaseException:
            session.connection.abort()
            sessions.discard(session)
            raise
        return session


def _problem(error: Exception, host: Host) -> DeliveryError:
    """Return the error of a connection; one of this program is logged, and stops no other host."""
    if isinstance(error, DeliveryError):
        return error
    log.error("can't connect", host=str(host.place), exc_info=error)
    return internal(error)

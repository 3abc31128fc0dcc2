"""SMTP and LMTP: from a destination to a session with one of its hosts."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator

from pgmta.errors import DeliveryError, NoHostLeft, Stage
from pgmta.logs import get
from pgmta.model import Item
from queued.config import Delivery
from queued.delivery.dns.dns import Questions
from queued.delivery.dns.hosts import Host, Hosts
from queued.delivery.dns.unresponsive import SLOW, Unresponsive
from queued.delivery.smtp.connector import Connector
from queued.delivery.smtp.parameters import demand_of, parameters_of
from queued.delivery.smtp.session import Session
from queued.delivery.smtp.tries import Tries
from queued.delivery.smtp.wire import PLAIN, address_problem
from queued.delivery.tls.security import Security
from queued.delivery.tls.tls_memory import Memory, NoMemory
from queued.delivery.transport.destination import Destination
from queued.delivery.transport.facts import ConnectionFacts
from queued.delivery.transport.result import internal

log = get("delivery")


class SmtpTransport:
    """Opens sessions by SMTP or LMTP, with the first host and address that answers.

    One transport serves all workers of a process, so that they share `questions`. Without `memory`
    nothing is kept of the TLS of hosts and domains.
    """

    def __init__(self, hostname: str, delivery: Delivery, memory: Memory | None = None) -> None:
        self._memory = memory or NoMemory()
        self.questions = Questions(delivery.dns)
        self._dns = delivery.dns
        self._hostname = hostname
        self._unresponsive = Unresponsive()
        self.configure(delivery)

    sends_lines = True

    def find_unfit(self, items: list[Item]) -> dict[int, str]:
        """Return the rows whose addresses can't be arguments of MAIL and RCPT, and why."""
        unfit: dict[int, str] = {}
        for item in items:
            # mostly nothing in the addresses has to be looked at
            if (
                PLAIN.fullmatch(item.sender + item.recipient)
                and item.recipient
                and item.domain.isascii()
            ):
                continue
            if problem := address_problem(item):
                unfit[item.id] = problem
        return unfit

    def configure(self, delivery: Delivery) -> None:
        """Use other settings from now on."""
        if delivery.dns != self._dns:
            self._dns = delivery.dns
            self.questions.configure(delivery.dns)
        self._delivery = delivery
        self._hosts = Hosts(self._hostname, delivery, self.questions, self._unresponsive)
        self.security = Security(delivery.tls, self.questions, self._web_server, self._memory)

    async def _web_server(self, name: str) -> list[str]:
        return await self._hosts.web_addresses(name)

    @property
    def hosts(self) -> Hosts:
        """The means to find hosts and their addresses."""
        return self._hosts

    def hosts_of(
        self,
        destination: Destination,
        tried: frozenset[str] = frozenset(),
        earlier: int = 0,
        further: list[Host] | None = None,
    ) -> AsyncIterator[Host]:
        """Iterate over the hosts of a destination, as `Hosts.of` says."""
        parameters = parameters_of(destination)
        target = parameters.hops or destination.domain
        return self._hosts.of(target, parameters.port, tried, earlier, further)

    async def open(
        self, destination: Destination, tried: frozenset[str] = frozenset(), earlier: int = 0
    ) -> Session:
        """Return a session, as Transport says. Raises DeliveryError with what each host said."""
        tries = Tries()
        began = time.monotonic()
        further: list[Host] = []
        async for host in self.hosts_of(destination, tried, earlier, further):
            if session := await self._try(destination, host, tries, began):
                return session
        if tried and not tries:
            raise NoHostLeft(f"4.4.4 no other host for {destination}", Stage.MX)
        error = tries.error(f"4.4.4 no host for {destination}")
        if further:  # the next attempt begins with one of them
            error.permanent = False
        raise error

    async def open_at(self, destination: Destination, host: Host) -> Session:
        """Return a session with this host of the destination, as `open` does."""
        tries = Tries()
        if session := await self._try(destination, host, tries, time.monotonic()):
            return session
        raise tries.error(f"4.4.4 no address of {host.name}")

    async def _try(
        self, destination: Destination, host: Host, tries: Tries, began: float
    ) -> Session | None:
        """Return a session with the host; None if there is none, and `tries` has the reasons.

        The search for a host began at `began`.
        """
        where = host.place
        try:
            policy = await self.security.policy(demand_of(destination), host)
            addresses = await self._hosts.addresses(host)
        except Exception as error:
            tries.add(where, "", _problem(error, host))
            return None
        connector = Connector(self._hostname, self._delivery, self.security)
        parameters, lmtp = parameters_of(destination), destination.transport == "lmtp"
        silent = 0
        for address in addresses:
            begun = time.monotonic()
            facts = ConnectionFacts(host.name, address, dns_seconds=begun - began - tries.seconds)
            try:
                session = await connector.connect_host(parameters, host, facts, policy, lmtp=lmtp)
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


def _problem(error: Exception, host: Host) -> DeliveryError:
    """Return the error of a connection; one of this program is logged, and stops no other host."""
    if isinstance(error, DeliveryError):
        return error
    log.error("can't connect", host=str(host.place), exc_info=error)
    return internal(error)

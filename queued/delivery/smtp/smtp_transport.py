"""SMTP and LMTP: from a destination to a session with a host, or one error for all tries."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import AsyncIterator
from dataclasses import replace
from time import monotonic

from pgmta.config.types import HostPort
from pgmta.errors import DeliveryError, NoHostLeft, Stage
from pgmta.logs import get
from pgmta.model import Item
from queued.config import Delivery
from queued.delivery.dns.hosts import Host, Hosts
from queued.delivery.dns.resolver import Questions
from queued.delivery.dns.unresponsive import SLOW_S, Unresponsive
from queued.delivery.smtp.client_session import ClientSession
from queued.delivery.smtp.connector import Connector
from queued.delivery.smtp.mail_commands import PLAIN_ARGUMENT, address_problem
from queued.delivery.smtp.smtp_parameters import demand_of, parameters_of
from queued.delivery.tls.policy_finder import PolicyFinder
from queued.delivery.tls.tls_memory import TlsMemory
from queued.delivery.transport.connection_facts import ConnectionFacts
from queued.delivery.transport.destination import Destination
from queued.delivery.transport.gate import Gate, HostClosed
from queued.delivery.transport.result import internal
from queued.delivery.transport.transcript import MAX_ENTRIES, NOTE, Entry

log = get("delivery")


_QUOTED_CHARACTERS = 200  # of each error, in the error of all addresses


class Tries:
    """The hosts and addresses that were tried without success."""

    def __init__(self) -> None:
        self._failed: list[tuple[str, DeliveryError]] = []
        self.seconds = 0.0
        """The time of the connections that failed."""

    def __len__(self) -> int:
        return len(self._failed)

    def add_failure(
        self, host: HostPort, address: str, error: DeliveryError, seconds: float = 0.0
    ) -> None:
        """Note that a connection to an address, or the search for addresses, has failed."""
        error.host, error.address = str(host), address
        self._failed.append((f"{host.host}[{address}]" if address else host.host, error))
        self.seconds += seconds

    def error(self, otherwise: str) -> DeliveryError:
        """Return one error for all; `otherwise` is its text if nothing was tried.

        It is the last reply of a host or, without any, the last error. The others follow, with
        their hosts. It is permanent only if all are.
        """
        if not self._failed:
            return DeliveryError(otherwise, Stage.MX)
        replies = [each for each in self._failed if each[1].code]
        main = (replies or self._failed)[-1]
        place, error = main
        others = [_shown(*each) for each in self._failed if each is not main]
        line = f"{error.line} (of {place})" if others and error.code else error.line
        whole = DeliveryError(
            "; ".join([line, *others]),
            error.stage,
            code=error.code,
            permanent=all(each.permanent for _, each in self._failed),
            host=error.host,
            address=error.address,
        )
        whole.facts = _facts_of(error, [each for _, each in self._failed])
        return whole


def _facts_of(main: DeliveryError, errors: list[DeliveryError]) -> ConnectionFacts | None:
    """Return the facts of an error with the dialogues of all."""
    said: deque[Entry] = deque(maxlen=MAX_ENTRIES)
    for error in errors:
        if isinstance(error.facts, ConnectionFacts):
            said.extend(error.facts.dialogue)
        if not error.code:
            said.append((monotonic(), NOTE, error.line))
    if not isinstance(main.facts, ConnectionFacts):
        return ConnectionFacts(address=main.address, dialogue=said) if said else None
    return replace(main.facts, dialogue=said)


def _shown(place: str, error: DeliveryError) -> str:
    """Return an error with its place; texts of pgmta itself contain it already."""
    if error.code:
        return f"{place} {error.stage}: {error.code} {error.line}"[:_QUOTED_CHARACTERS]
    return (
        error.line[:_QUOTED_CHARACTERS]
        if place in error.line
        else f"{place}: {error.line}"[:_QUOTED_CHARACTERS]
    )


class SmtpTransport:
    """Opens sessions by SMTP or LMTP, with the first host and address that answers.

    One transport serves all workers of a process, so that they share `questions`. Without `memory`
    nothing is kept of the TLS of hosts and domains. No connection goes to a host that gets no mail
    by the `gate`.
    """

    def __init__(
        self,
        hostname: str,
        delivery: Delivery,
        memory: TlsMemory | None = None,
        gate: Gate | None = None,
    ) -> None:
        self._memory = memory or TlsMemory()
        self.questions = Questions(delivery.dns)
        self._dns = delivery.dns
        self._hostname = hostname
        self._unresponsive = Unresponsive()
        self._gate = gate or Gate()
        self.configure(delivery)

    sends_lines = True

    def find_unfit(self, items: list[Item]) -> dict[int, str]:
        """Return the rows whose addresses can't be arguments of MAIL and RCPT, and why."""
        unfit: dict[int, str] = {}
        for item in items:
            # mostly the addresses need no change
            if (
                PLAIN_ARGUMENT.fullmatch(item.sender + item.recipient)
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
        hosts = Hosts(self._hostname, delivery, self.questions, self._unresponsive)
        self.hosts = hosts
        """The means to find hosts and their addresses."""
        self.security = PolicyFinder(
            delivery.tls, self.questions, self.hosts.web_addresses, self._memory
        )

    def hosts_of(
        self,
        destination: Destination,
        tried: frozenset[str] = frozenset(),
        earlier: int = 0,
        further: list[Host] | None = None,
    ) -> AsyncIterator[Host]:
        """Iterate over the hosts of a destination, as `Hosts.find_hosts` says."""
        parameters = parameters_of(destination)
        target = parameters.hops or destination.domain
        return self.hosts.find_hosts(target, parameters.port, tried, earlier, further)

    async def open(
        self, destination: Destination, tried: frozenset[str] = frozenset(), earlier: int = 0
    ) -> ClientSession:
        """Return a session, as Transport says.

        Raises DeliveryError with what each host said; HostClosed if the next host gets no mail
        by the gate, and none of the domain is better. No host after it is tried.
        """
        tries = Tries()
        began = time.monotonic()
        further: list[Host] = []
        left = f"no host for {destination}"
        gate = self._gate
        async for host in self.hosts_of(destination, tried, earlier, further):
            if gate.active and (reason := gate.find_host(destination, host.name)):
                if not host.best:  # another host usually takes its mail
                    further.append(host)
                    left = f"{host.name} is {reason.kind}, and no better host was tried"
                    break
                if not tried:
                    gate.was_closed(destination, reason)
                raise HostClosed(f"{host.name} is {reason.kind}", Stage.MX, reason=reason)
            if session := await self._try(destination, host, tries, began):
                return session
        if tried and not tries:
            raise NoHostLeft(f"4.4.4 no other host for {destination}", Stage.MX)
        error = tries.error(f"4.4.4 {left}")
        if further:  # the next attempt begins with one of these hosts
            error.permanent = False
        raise error

    async def open_at(self, destination: Destination, host: Host) -> ClientSession:
        """Return a session with this host of the destination, as `open` does."""
        tries = Tries()
        if session := await self._try(destination, host, tries, time.monotonic()):
            return session
        raise tries.error(f"4.4.4 no address of {host.name}")

    async def _try(
        self, destination: Destination, host: Host, tries: Tries, began: float
    ) -> ClientSession | None:
        """Return a session with the host; None if there is none, and `tries` has the reasons.

        The search for a host began at `began`.
        """
        where = host.place
        try:
            policy = await self.security.policy(demand_of(destination), host)
            addresses = await self.hosts.addresses(host)
        except Exception as error:
            tries.add_failure(where, "", _problem(error, host))
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
                tries.add_failure(where, address, problem, took)
                if took >= SLOW_S and not problem.code:
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

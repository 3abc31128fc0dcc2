"""The hosts of a destination as deliveries see them, and their answers to a connection."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from pgmta.errors import DeliveryError
from queued.delivery.dns.hosts import Host
from queued.delivery.smtp.smtp_parameters import demand_of
from queued.delivery.smtp.smtp_transport import SmtpTransport
from queued.delivery.tls.tls_policy import HostPolicy
from queued.delivery.transport.connection_facts import ConnectionFacts
from queued.delivery.transport.destination import Destination

_HOST_TIMEOUT_S = 60.0  # all addresses of the host together


@dataclass(slots=True)
class HostAnswer:
    """The answer of a host to a connection, up to EHLO over TLS; or an error."""

    facts: ConnectionFacts = field(default_factory=ConnectionFacts)
    extensions: dict[str, str] = field(default_factory=dict)
    error: str = ""


@dataclass(slots=True)
class SurveyedHost:
    """A host with its addresses and its TLS policy, or the error that passes it over.

    `left_out` has the addresses that are not used, with the reasons.
    """

    host: Host
    addresses: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    policy: HostPolicy | None = None
    error: str = ""
    answer: HostAnswer | None = None


async def survey(
    smtp: SmtpTransport, destination: Destination, *, probe: bool
) -> list[SurveyedHost]:
    """Return the hosts of a destination in the order of one delivery.

    With `probe` each of them is connected to, up to EHLO, STARTTLS and AUTH, but gets no mail.
    Raises DeliveryError if the destination has no host.
    """
    hosts = [SurveyedHost(host) async for host in smtp.hosts_of(destination)]
    await asyncio.gather(*(_look(smtp, destination, each) for each in hosts))
    if probe:
        await asyncio.gather(*(_probe(smtp, destination, each) for each in hosts))
    return hosts


async def _look(smtp: SmtpTransport, destination: Destination, found: SurveyedHost) -> None:
    """Find the policy and the addresses of a host."""
    try:
        found.policy = await smtp.security.policy(demand_of(destination), found.host)
        found.left_out = await smtp.hosts.left_out(found.host)
        found.addresses = await smtp.hosts.addresses(found.host)
    except DeliveryError as error:
        found.error = error.line


async def _probe(smtp: SmtpTransport, destination: Destination, found: SurveyedHost) -> None:
    """Open a session with a host, and close it."""
    if found.error:
        return
    found.answer = HostAnswer()
    try:
        async with asyncio.timeout(_HOST_TIMEOUT_S):
            session = await smtp.open_at(destination, found.host)
    except DeliveryError as error:
        found.answer.error = error.line
        return
    except TimeoutError:
        found.answer.error = f"no answer in {_HOST_TIMEOUT_S:.0f} seconds"
        return
    session.close()
    await session.wait_closed()  # because the event loop may end right afterwards
    found.answer.facts = session.facts
    found.answer.extensions = session.extensions

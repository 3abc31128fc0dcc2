"""The transports, by the names that routes give them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from queued.config import Delivery
from queued.config.queued_config import Parsers
from queued.delivery.smtp.smtp_transport import SmtpTransport
from queued.delivery.tls.tls_memory import TlsMemory
from queued.delivery.transport.destination import TransportParameters
from queued.delivery.transport.gate import Gate
from queued.delivery.transport.transport import Transport

type MakeTransport = Callable[[str, Delivery, TlsMemory, Gate], Transport]


@dataclass(frozen=True, slots=True)
class TransportKind:
    """A transport that routes may name.

    `parse` returns the parameters of a route, and raises ValueError. Without it the keys of the
    route itself say where its mail goes.
    """

    make: MakeTransport
    parse: Callable[[Any], TransportParameters] | None = None


def _make_http(hostname: str, delivery: Delivery, memory: TlsMemory, gate: Gate) -> Transport:
    from queued.delivery.http.http_transport import HttpTransport

    return HttpTransport(hostname, delivery, memory)


def _parse_http(given: Any) -> TransportParameters:
    # a queued without such routes saves their memory; with some, the first mail shall not wait
    from queued.delivery.http import http_parameters, http_transport  # noqa: F401

    return http_parameters.parse_parameters(given)


_SMTP = TransportKind(SmtpTransport)

TRANSPORTS: dict[str, TransportKind] = {
    "smtp": _SMTP,
    "lmtp": _SMTP,
    "http": TransportKind(_make_http, _parse_http),
}
"""A new transport is a folder, and an entry here."""


def parsers() -> Parsers:
    """Return for each transport the function that reads its parameters."""
    return {name: kind.parse for name, kind in TRANSPORTS.items()}


class Transports:
    """The transports of one process, which all its workers share.

    `hostname` is that of this host. `memory` keeps the knowledge about the TLS of hosts. The `gate`
    knows which hosts get no mail now.
    """

    def __init__(
        self,
        hostname: str,
        delivery: Delivery,
        memory: TlsMemory | None = None,
        gate: Gate | None = None,
    ) -> None:
        self._hostname = hostname
        self._delivery = delivery
        self._memory = memory or TlsMemory()
        self._gate = gate or Gate()
        self._made: dict[TransportKind, Transport] = {}

    def configure(self, delivery: Delivery) -> None:
        """Use other settings from now on."""
        self._delivery = delivery
        for transport in self._made.values():
            transport.configure(delivery)

    def find_transport(self, name: str) -> Transport:
        """Return the transport of this name; it is made at its first use."""
        kind = TRANSPORTS[name]
        found = self._made.get(kind)
        if found is None:
            found = kind.make(self._hostname, self._delivery, self._memory, self._gate)
            self._made[kind] = found
        return found

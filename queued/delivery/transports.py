"""The transports, by the names that routes give them."""

from __future__ import annotations

from collections.abc import Callable

from queued.config import Delivery
from queued.delivery.smtp.smtp_transport import SmtpTransport
from queued.delivery.tls.tls_memory import Memory, NoMemory
from queued.delivery.transport.transport import Transport

type MakeTransport = Callable[[str, Delivery, Memory], Transport]

TRANSPORTS: dict[str, MakeTransport] = {
    "smtp": SmtpTransport,
    "lmtp": SmtpTransport,
}
"""A new transport is a folder, and a line here."""


class Transports:
    """The transports of one process, which all its workers share.

    `hostname` is that of this host. `memory` keeps the knowledge about the TLS of hosts.
    """

    def __init__(self, hostname: str, delivery: Delivery, memory: Memory | None = None) -> None:
        self._hostname = hostname
        self._delivery = delivery
        self._memory = memory or NoMemory()
        self._made: dict[MakeTransport, Transport] = {}

    def configure(self, delivery: Delivery) -> None:
        """Use other settings from now on."""
        self._delivery = delivery
        for transport in self._made.values():
            transport.configure(delivery)

    def find(self, name: str) -> Transport:
        """Return the transport of this name; it is made at its first use."""
        make = TRANSPORTS[name]
        found = self._made.get(make)
        if found is None:
            found = self._made[make] = make(self._hostname, self._delivery, self._memory)
        return found

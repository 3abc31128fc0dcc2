"""The transports, by the names that routes give them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from pydantic import BaseModel

from pgmta.features import ImportPath, load, named_paths
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
    route itself say where its mail goes. `keys` is the model of its parameters, for the manual.
    """

    make: MakeTransport
    parse: Callable[[Any], TransportParameters] | None = None
    keys: type[BaseModel] | None = None


_SMTP_KIND = TransportKind(SmtpTransport)

TRANSPORTS: dict[str, TransportKind] = {"smtp": _SMTP_KIND, "lmtp": _SMTP_KIND}
"""The transports of the core. Features add theirs by the field `transports` of Feature."""


def parsers() -> Parsers:
    """Return for each transport the function that reads its parameters.

    Those of features load the whole transport at the first route that names it: a queued without
    such a route saves its memory, and with one the first mail does not wait.
    """
    of_features = {name: partial(_parse, path) for name, path in _paths().items()}
    return {name: kind.parse for name, kind in TRANSPORTS.items()} | of_features


def _paths() -> dict[str, ImportPath]:
    """Return the paths of the transports of features by their names. Raises FeatureError."""
    return named_paths("transports", TRANSPORTS, "transport")


def _parse(path: ImportPath, given: Any) -> Any:
    kind: TransportKind = load(path)
    return kind.parse(given) if kind.parse else given


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
        kind: TransportKind = TRANSPORTS.get(name) or load(_paths()[name])
        transport = self._made.get(kind)
        if transport is None:
            transport = kind.make(self._hostname, self._delivery, self._memory, self._gate)
            self._made[kind] = transport
        return transport

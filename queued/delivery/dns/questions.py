"""The questions of TLS policies to the DNS, and the records in its answers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

from dns.rdtypes.ANY.TLSA import TLSA
from dns.rdtypes.ANY.TXT import TXT

from queued.delivery.dns.dns import Answer
from queued.delivery.transport.tls_policy import Tlsa


class Questions(Protocol):
    """Asks the name servers."""

    async def ask(self, name: str, kind: str) -> Answer:
        """Return the answer. Raises DeliveryError if there is none for now."""

    async def validating(self) -> bool:
        """Return whether the name servers validate (RFC 4035)."""


def tlsa_records(records: Iterable[Any]) -> tuple[Tlsa, ...]:
    """Return the TLSA records of an answer."""
    return tuple(
        (each.usage, each.selector, each.mtype, bytes(each.cert))
        for each in records
        if isinstance(each, TLSA)
    )


def texts(records: Iterable[Any]) -> list[str]:
    """Return the TXT records of an answer, each with its strings joined."""
    return [
        b"".join(each.strings).decode("ascii", "replace")
        for each in records
        if isinstance(each, TXT)
    ]

"""The records in answers of the DNS that TLS policies and keys are read from (pure)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from dns.rdtypes.ANY.TLSA import TLSA
from dns.rdtypes.ANY.TXT import TXT


def tlsa_records(records: Iterable[Any]) -> tuple[tuple[int, int, int, bytes], ...]:
    """Return the TLSA records: usage, selector, matching type and data (RFC 6698, section 2.1)."""
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

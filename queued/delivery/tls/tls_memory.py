"""The knowledge about the TLS of hosts and domains that workers share."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from pgmta.model import StsPolicy, TlsResult


async def _nothing(*_: object) -> None:
    """Know nothing, and keep nothing."""


async def _unknown(host: str) -> bool:
    return False


@dataclass(frozen=True, slots=True)
class TlsMemory:
    """The functions that read and note the knowledge.

    By default nothing is kept for later sessions, as in a program that opens a few of them. The
    functions of policies raise StoreUnavailable.
    """

    find_policy: Callable[[str], Awaitable[StsPolicy | None]] = _nothing
    """Returns the MTA-STS policy of a domain that counts now."""
    keep_policy: Callable[[StsPolicy], Awaitable[None]] = _nothing
    """Keeps a policy that was fetched now."""
    is_broken: Callable[[str], Awaitable[bool]] = _unknown
    """Returns whether the TLS of a host, as host:port, failed twice a while ago."""
    note_failure: Callable[[str, str, float], Awaitable[None]] = _nothing
    """Notes a host, the reason, and when the connection began whose TLS failed."""
    note_success: Callable[[str], None] = lambda host: None
    """Notes that TLS with a host works."""
    count: Callable[[TlsResult], None] = lambda result: None
    """Counts the result of a session (RFC 8460)."""

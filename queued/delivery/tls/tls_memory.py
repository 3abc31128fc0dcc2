"""The knowledge about the TLS of hosts and domains that workers share, as delivery asks for it."""

from __future__ import annotations

from typing import Protocol

from pgmta.model import StsPolicy, TlsResult


class PolicyStore(Protocol):
    """Keeps the policies for all workers."""

    async def find(self, domain: str) -> StsPolicy | None:
        """Return the policy of a domain that counts now. Raises StoreUnavailable."""

    async def keep(self, policy: StsPolicy) -> None:
        """Keep a policy that was fetched now. Raises StoreUnavailable."""


class HostMemory(Protocol):
    """Remembers hosts whose TLS failed twice."""

    async def known(self, host: str) -> bool:
        """Return whether the host's TLS failed twice a while ago."""

    async def failed(self, host: str, reason: str, begun: float) -> None:
        """Note that TLS failed on a connection that began then; a second time is remembered."""

    def worked(self, host: str) -> None:
        """Note that TLS with the host works."""


class ResultCounter(Protocol):
    """Counts the results of TLS sessions (RFC 8460)."""

    def count(self, result: TlsResult) -> None:
        """Count a result."""


class Memory(Protocol):
    """The knowledge of all workers about the TLS of hosts and domains."""

    policies: PolicyStore
    broken: HostMemory
    results: ResultCounter


class NoMemory:
    """Keeps nothing for later sessions, for a program that opens a few of them.

    `reasons` has why the TLS of a host failed, by host:port.
    """

    def __init__(self) -> None:
        self.reasons: dict[str, str] = {}
        self.policies: PolicyStore = self
        self.broken: HostMemory = self
        self.results: ResultCounter = self

    async def find(self, domain: str) -> StsPolicy | None:
        """Return None."""
        return None

    async def keep(self, policy: StsPolicy) -> None:
        """Do nothing."""

    async def known(self, host: str) -> bool:
        """Return False."""
        return False

    async def failed(self, host: str, reason: str, begun: float) -> None:
        """Keep the reason."""
        self.reasons[host] = reason

    def worked(self, host: str) -> None:
        """Do nothing."""

    def count(self, result: TlsResult) -> None:
        """Do nothing."""

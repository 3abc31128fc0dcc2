"""The knowledge of workers about TLS, for `queuectl route`, which writes nothing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import psycopg

from pgmta.config.environment import Environment
from pgmta.errors import StoreUnavailable
from pgmta.model import StsPolicy
from pgmta.postgres.embedded import OWNER
from pgmta.postgres.locate import running
from pgmta.store.tls_knowledge import BrokenHost, TlsKnowledge
from queued.delivery.tls_memory import NoMemory


class RouteMemory(NoMemory):
    """The policies and the broken hosts of the database; without `knowledge` there are none."""

    def __init__(self, knowledge: TlsKnowledge | None = None, minimum: str = "") -> None:
        super().__init__()
        self._knowledge = knowledge
        self.hosts: dict[str, BrokenHost] = knowledge.broken(minimum) if knowledge else {}
        """Hosts whose TLS failed twice a while ago, by host:port."""
        self.kept: StsPolicy | None = None
        """The MTA-STS policy that was found in the database."""

    async def find(self, domain: str) -> StsPolicy | None:
        """Return the policy of a domain."""
        try:
            self.kept = self._knowledge.policy(domain) if self._knowledge else None
        except psycopg.Error as error:
            raise StoreUnavailable(" ".join(str(error).split())) from error
        return self.kept

    async def known(self, host: str) -> bool:
        """Return whether the host's TLS failed twice a while ago."""
        return host in self.hosts


@contextmanager
def route_memory(environment: Environment, minimum: str) -> Iterator[tuple[RouteMemory, str]]:
    """Yield the memory, and why it is not that of the workers, or ''.

    `minimum` is the lowest version of TLS.
    """
    uri = running(environment, OWNER)
    if not uri:
        yield RouteMemory(), "the embedded PostgreSQL does not run"
        return
    try:
        knowledge = TlsKnowledge(uri)
    except StoreUnavailable as error:
        yield RouteMemory(), " ".join(str(error).split())
        return
    try:
        try:
            memory, problem = RouteMemory(knowledge, minimum), ""
        except psycopg.Error as error:
            memory, problem = RouteMemory(), " ".join(str(error).split())
        yield memory, problem
    finally:
        knowledge.close()

"""Who asks: a key of the API."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from pgmta.password import KEY_PREFIX

ANY_TENANT = "*"
"""The tenant of a key that may name any tenant in its requests."""

ANY_CREDENTIAL = "*"
"""Among the credentials of a key that may name any."""


@dataclass(frozen=True, slots=True)
class Caller:
    """A key whose secret was proven.

    `senders` are addresses and domains (`@example.org`) that sender and From of its mail have.
    `sees` is own, tenant or all. It may name `credentials` as metadata.credential, and ask for
    `priorities` from the first to the last.
    """

    name: str
    tenant: str
    scopes: frozenset[str]
    senders: tuple[str, ...]
    sees: str
    expires_at: datetime | None = None
    credentials: tuple[str, ...] = ()
    priorities: tuple[int, int] = (5, 5)

    @property
    def acting(self) -> str:
        """Its identity in the database, as acting() returns it."""
        return f"{KEY_PREFIX}{self.name}"

    @property
    def owner(self) -> str:
        """Whose share of the process its requests take: its tenant's; its own if it has none."""
        alone = self.tenant in ("", ANY_TENANT)
        return self.acting if alone else self.tenant  # no tenant has a colon

    def has(self, scope: str) -> bool:
        """Return whether it may do what needs this scope; '' needs none."""
        return not scope or scope in self.scopes

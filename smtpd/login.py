"""The user as which a session has logged in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Login:
    """A user of the table `users`, or one whom a hook has accepted.

    `senders` are addresses and domains (`@example.org`); None: any sender. `priorities` are the
    lowest and the highest number of a row's priority that the user may ask for. `reply` is that to
    AUTH, if a hook has its own.
    """

    user: str
    mechanism: str
    tenant: str = ""
    senders: tuple[str, ...] | None = None
    priorities: tuple[int, int] = (5, 5)
    metadata: Mapping[str, str] = field(default_factory=dict)
    reply: str = ""
    version: int = 0
    """That of the user's row; 0 for a user whom a hook has accepted."""

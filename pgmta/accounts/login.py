"""A login: the user that it gives a session, and what judges a name and a password."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from pgmta.errors import AddressError, PgmtaError
from pgmta.mail.address import normalise_domain, unquoted
from pgmta.model import ANY_SENDER


@dataclass(frozen=True, slots=True)
class Login:
    """A user of the table `users`, or one whom a hook has accepted.

    `senders` are addresses and domains (`@example.org`), or `any`. `priorities` are the
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

    @property
    def addresses(self) -> tuple[str, ...]:
        """The senders; without any the name alone, if it is an address."""
        given: Any = self.senders or ()  # any value, because a hook may have made the login
        # A user named `any` or `@example.org` may not send as all, or as the whole domain.
        named = (self.user,) if self.user.find("@") > 0 else ()
        return ((given,) if isinstance(given, str) else tuple(given)) or named

    def may_send_from(self, mailbox: str, domain: str) -> bool:
        """Return whether the user may send from a mailbox with this normalised domain.

        Upper and lower case are the same, and so are all spellings of a local part (RFC 6409,
        section 6.1).
        """
        senders = self.addresses
        if ANY_SENDER in senders:
            return True
        allowed = normalised(senders)
        local = unquoted(mailbox.rpartition("@")[0]).lower()
        return f"@{domain}" in allowed or f"{local}@{domain}" in allowed


@lru_cache(maxsize=1024)
def normalised(senders: tuple[str, ...]) -> frozenset[str]:
    """Return senders as they are compared: in lower case, and without needless quotes."""
    found = set()
    for sender in senders:
        local, at, domain = sender.rpartition("@")
        if not at:
            continue
        try:
            found.add(f"{unquoted(local).lower()}@{normalise_domain(domain)}")
        except AddressError:
            continue  # no mail has it
    return frozenset(found)


class AuthUnavailable(PgmtaError):
    """It can't be judged now: the client gets 454 4.7.0 and tries again later.

    The text is for the log. It names no password.
    """


class AuthRefused(PgmtaError):
    """A hook refuses the user with its own reply, which is the text.

    It counts as a wrong password if it is a 5xx.
    """


type Authenticate = Callable[[str, str, bytes, str], Awaitable[Login | None]]
"""Judges a password of PLAIN or LOGIN: a hook of the operator's.

It gets the mechanism in upper case, the name, the password, and the address of the client. It
returns the user, or None if there is none of that name and password. The caller slows down failures
and counts them. Raises AuthUnavailable or AuthRefused.
"""

"""Authenticators: the parts that judge a name and a password."""

from __future__ import annotations

from typing import Protocol

from pgmta.accounts.login import Login
from pgmta.errors import PgmtaError


class AuthUnavailable(PgmtaError):
    """It can't be judged now: the client gets 454 4.7.0 and tries again later.

    The text is for the log. It names no password.
    """


class AuthRefused(PgmtaError):
    """A hook refuses the user with its own reply, which is the text.

    It counts as a wrong password if it is a 5xx.
    """


class Authenticator(Protocol):
    """Judges the passwords of PLAIN and LOGIN: the table of users, or a hook of the operator's."""

    async def authenticate(
        self, mechanism: str, login: str, password: bytes, client: str
    ) -> Login | None:
        """Return the user, or None if there is none of that name and password.

        `mechanism` is in upper case, and `client` the address of the client. The caller slows down
        failures and counts them. Raises AuthUnavailable or AuthRefused.
        """

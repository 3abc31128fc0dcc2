"""AUTH in a session: by a hook, by the authenticator of a hook, or by the table of users."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from pgmta.accounts.authenticator import Authenticator
from pgmta.accounts.logins import Logins
from smtpd.hooks.session_hooks import SessionHooks
from smtpd.protocol import replies
from smtpd.session.exchange import AuthExchange, Owner
from smtpd.session.exchange import Wire as ExchangeWire
from smtpd.session.renewal import Renewal

_WORDS = 2  # a mechanism and an initial response


class Session(Owner, Protocol):
    """The session, as far as AUTH needs it."""

    hooks: SessionHooks | None

    def line(self, line: bytes) -> None:
        """Do the command in a line."""


class Wire(ExchangeWire, Protocol):
    """The connection, as far as AUTH needs it."""

    busy: bool

    def resume(self) -> None:
        """Go on with the next command."""


class AuthCommand:
    """Has the exchange of a session, and the hooks beside it."""

    def __init__(self, session: Session, wire: Wire, logins: Logins | None) -> None:
        assert logins  # noqa: S101 - a listener of the process offers AUTH
        self._session = session
        self._wire = wire
        self._hooks = hooks = session.hooks.logins if session.hooks else None
        others = hooks.mechanisms if hooks else ()
        self._exchange = AuthExchange(
            session, wire, logins, hooks if hooks and hooks.judges else None, others
        )
        self._renewal = Renewal(logins, wire.closing.fail)
        self._argument = ""

    def begin(self, argument: str) -> None:
        """Do AUTH with the words behind it."""
        words = argument.split()
        mechanism = words[0].upper() if words else ""
        known = mechanism in self._exchange.offered and len(words) <= _WORDS
        if known and self._hooks and self._hooks.takes(mechanism):
            self._argument = argument
            self._exchange.mechanism = mechanism
            self._hooks.begin(mechanism, words, self, self)
        else:
            self._exchange.begin(argument)

    # -- as hooks need it --

    def ask(self, reply: str, reader: Any) -> None:
        """Send a reply, and give the next line to the reader."""
        self._session.reply(reply)
        self._session.reader = reader
        self._wire.resume()

    def pause(self) -> None:
        """Do no more commands until the hook asks, or until `go_on`."""
        self._session.reader = None
        self._wire.busy = True

    def go_on(self, first: Callable[[], None] = lambda: None) -> None:
        """Do `first`, then the next commands."""
        self._wire.busy = False
        first()
        if not self._wire.busy:
            self._wire.resume()

    async def judge(self, authenticator: Authenticator) -> None:
        """Have this authenticator judge, behind the limits on failures; send the reply."""
        await self._exchange.judge(authenticator)

    def default(self) -> None:
        """Do the mechanism that smtpd has."""
        self._exchange.begin(self._argument)

    # -- later --

    def delays(self, line: bytes) -> bool:
        """Return whether MAIL, in this line, has to wait for a look at the user.

        `line` of the session gets it again then, if the user is as it was at its login.
        """
        login = self._session.commands.login
        if not login or not self._renewal.needed(login):
            return False
        self._wire.busy = True

        def looked(refusal: str) -> None:
            if refusal is replies.LOGIN_CHANGED:
                self._wire.closing.refuse(refusal)
            elif refusal:
                self.go_on(lambda: self._session.reply(refusal))
            else:
                self.go_on(lambda: self._session.line(line))

        self._renewal.look(login, looked)
        return True

    def abandon(self) -> None:
        """Wait for nothing any more: the session has ended."""
        self._renewal.abandon()

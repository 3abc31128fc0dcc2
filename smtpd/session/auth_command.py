"""AUTH in a session: by a hook, by the authenticator of a hook, or by the table of users."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from pgmta.accounts.logins import Logins
from pgmta.accounts.mechanisms import LINE
from smtpd.hooks.hook_server import Take
from smtpd.hooks.login_hooks import LoginHooks
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
    """Has the exchange of a session, and the hooks beside it.

    It is the reader of the answers to questions of hooks.
    """

    most = LINE
    """Octets of a line, at most."""

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
        self._asked: asyncio.Task[None] | None = None  # the hooks
        self._take: Take | None = None  # gets the next line

    def begin(self, argument: str) -> None:
        """Do AUTH with the words behind it."""
        words = argument.split()
        mechanism = words[0].upper() if words else ""
        known = mechanism in self._exchange.offered and len(words) <= _WORDS
        if known and self._hooks and self._hooks.takes(mechanism):
            self._exchange.mechanism = mechanism
            self._wire.busy = True
            self._asked = asyncio.create_task(self._ask_hooks(self._hooks, argument))
            self._asked.add_done_callback(self._ended)
        else:
            self._exchange.begin(argument)

    async def _ask_hooks(self, hooks: LoginHooks, argument: str) -> None:
        """Have hooks answer AUTH; the session goes on after the reply."""
        words = argument.split()
        authenticator = await hooks.answer(words[0].upper(), words, self._question)
        if authenticator:
            await self._exchange.judge(authenticator)
        self._session.reader = None  # of a question whose answer the hook did not wait for
        if authenticator:
            self._go_on()
        else:
            self._go_on(lambda: self._exchange.begin(argument))

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and isinstance(error := task.exception(), Exception):
            self._wire.closing.fail(error)

    def _go_on(self, first: Callable[[], None] = lambda: None) -> None:
        """Do `first`, then the next commands."""
        self._wire.busy = False
        first()
        if not self._wire.busy:
            self._wire.resume()

    # -- questions of hooks --

    def _question(self, reply: str, take: Take) -> None:
        """Send a reply; `take` gets the next line, or None if it is too long."""
        self._take = take
        self._session.reply(reply)
        self._session.reader = self
        self._wire.resume()

    def line(self, line: bytes) -> None:
        """Give the hook the client's answer."""
        self._answer(line)

    def overlong(self) -> None:
        """Say to the hook that the answer was too long."""
        self._answer(None)

    def _answer(self, line: bytes | None) -> None:
        """Do no more commands until the hook asks again, or has answered."""
        self._session.reader = None
        self._wire.busy = True
        take, self._take = self._take, None
        if take:
            take(line)

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
                self._go_on(lambda: self._session.reply(refusal))
            else:
                self._go_on(lambda: self._session.line(line))

        self._renewal.look(login, looked)
        return True

    def abandon(self) -> None:
        """Wait for nothing any more: the session has ended."""
        self._renewal.abandon()
        if self._asked:
            self._asked.cancel()

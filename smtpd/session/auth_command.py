"""AUTH in a session: by a hook, by the authenticator of a hook, or by the table of users."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from pgmta.accounts.login import AuthUnavailable, Login
from pgmta.accounts.logins import Logins
from pgmta.accounts.mechanisms import LINE
from smtpd.hooks.hook_server import Take
from smtpd.hooks.login_hooks import LoginHooks
from smtpd.protocol import replies
from smtpd.session.auth_exchange import AuthExchange

if TYPE_CHECKING:
    from smtpd.session.connection import Connection
    from smtpd.session.session import SmtpSession

_WORDS = 2  # a mechanism and an initial response


class AuthCommand:
    """Has the exchange of a session, and the hooks beside it.

    It is the reader of the answers to questions of hooks.
    """

    most = LINE
    """Octets of a line, at most."""

    def __init__(self, session: SmtpSession, connection: Connection, logins: Logins | None) -> None:
        assert logins  # noqa: S101 - a listener of the process offers AUTH
        self._session = session
        self._connection = connection
        self._hooks = hooks = session.hooks.logins if session.hooks else None
        others = hooks.mechanisms if hooks else ()
        self._exchange = AuthExchange(
            session, connection, logins, hooks if hooks and hooks.judges else None, others
        )
        self._renewal = Renewal(logins, connection.closing.fail)
        self._asked: asyncio.Task[None] | None = None  # the hooks
        self._take: Take | None = None  # gets the next line

    def begin(self, argument: str) -> None:
        """Do AUTH with the words behind it."""
        words = argument.split()
        mechanism = words[0].upper() if words else ""
        known = mechanism in self._exchange.offered and len(words) <= _WORDS
        if known and self._hooks and self._hooks.takes(mechanism):
            self._connection.begin_wait()
            self._asked = asyncio.create_task(self._ask_hooks(self._hooks, argument))
            self._asked.add_done_callback(self._ended)
        else:
            self._exchange.begin(argument)

    async def _ask_hooks(self, hooks: LoginHooks, argument: str) -> None:
        """Have hooks answer AUTH; the session goes on after the reply."""
        words = argument.split()
        mechanism = words[0].upper()
        authenticator = await hooks.answer(mechanism, words, self._question)
        if authenticator:
            await self._exchange.judge(authenticator, mechanism)
        self._session.read_commands()  # of a question whose answer the hook did not wait for
        if authenticator:
            self._connection.resume()
        else:
            self._connection.go_on(lambda: self._exchange.begin(argument))

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and isinstance(error := task.exception(), Exception):
            self._connection.closing.fail(error)

    # -- questions of hooks --

    def _question(self, reply: str, take: Take) -> None:
        """Send a reply; `take` gets the next line, or None if it is too long."""
        self._take = take
        self._session.reply(reply)
        self._session.read_lines(self)
        self._connection.resume()

    def line(self, line: bytes) -> None:
        """Give the hook the client's answer."""
        self._answer(line)

    def overlong(self) -> None:
        """Say to the hook that the answer was too long."""
        self._answer(None)

    def _answer(self, line: bytes | None) -> None:
        """Do no more commands until the hook asks again, or has answered."""
        self._session.read_commands()
        self._connection.begin_wait()
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
        self._connection.begin_wait()

        def looked(refusal: str) -> None:
            if refusal is replies.LOGIN_CHANGED:
                self._connection.closing.refuse(refusal)
            elif refusal:
                self._connection.go_on(lambda: self._session.reply(refusal))
            else:
                self._connection.go_on(lambda: self._session.line(line))

        self._renewal.look(login, looked)
        return True

    def abandon(self) -> None:
        """Wait for nothing any more: the session has ended."""
        self._renewal.abandon()
        if self._asked:
            self._asked.cancel()


class Renewal:
    """Looks before a mail if some user has changed since the last one, of all sessions.

    `fail` gets an error of the program, in a look or in what follows it.
    """

    def __init__(self, logins: Logins, fail: Callable[[Exception], None]) -> None:
        self._logins = logins
        self._fail = fail
        self._login: Login | None = None
        self._changes = 0  # the version of all users, as of which the user holds
        self._task: asyncio.Task[None] | None = None

    def needed(self, login: Login) -> bool:
        """Return whether the user may have changed."""
        users = self._logins.users
        if login is not self._login:
            self._login, self._changes = login, users.as_of(login)
        return bool(login.version) and not (users.fresh and users.changes == self._changes)

    def look(self, login: Login, done: Callable[[str], None]) -> None:
        """Look; `done` gets nothing, or the reply of a refusal, later."""
        self._task = asyncio.create_task(self._look(login, done))

    async def _look(self, login: Login, done: Callable[[str], None]) -> None:
        try:
            done(await self._refusal(login))
        except Exception as error:  # of this session alone, which would wait for ever
            self._fail(error)

    async def _refusal(self, login: Login) -> str:
        try:
            return "" if await self._holds(login) else replies.LOGIN_CHANGED
        except AuthUnavailable as error:
            self._logins.unavailable(error)
            return replies.UNAVAILABLE

    async def _holds(self, login: Login) -> bool:
        users = self._logins.users
        if not users.fresh:
            await users.refresh()
        changes = users.changes
        if changes != self._changes:
            entry, _ = await users.find_user(login.user)
            if entry.verifier.version != login.version:
                return False
            self._changes = changes
        return True

    def abandon(self) -> None:
        """Wait for nothing any more: the session has ended."""
        if self._task:
            self._task.cancel()

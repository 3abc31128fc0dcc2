"""AUTH in a session: by a hook, by the authenticator of a hook, or by the table of users.

RFC 4954, section 4. A user who has logged in is looked at again before later mail.
"""

from __future__ import annotations

import asyncio
from base64 import b64encode
from collections.abc import Callable, Coroutine
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

from structlog.contextvars import bound_contextvars

from pgmta.accounts.login import AuthRefused, AuthUnavailable, Login
from pgmta.accounts.logins import Logins, TooManyFailures
from pgmta.accounts.mechanisms import (
    PASSWORD,
    SCRAM,
    USERNAME,
    Credentials,
    Malformed,
    OtherIdentity,
    credentials,
    decode,
    offered,
    plain,
)
from pgmta.accounts.scram import ScramExchange
from smtpd.commands.commands import Commands
from smtpd.hooks.hook_server import Take
from smtpd.hooks.login_hooks import LoginHooks
from smtpd.protocol import replies
from smtpd.server.server import Server
from smtpd.session.connection import Connection
from smtpd.session.phase import Phase
from smtpd.session.replier import Replier

MAX_ARGUMENTS = 2  # a mechanism and an initial response
FAILURE_DELAY_S = 1.0  # until the reply to a failed login, at least; the same for unknown users
BLOCKED_DELAY_S = 5.0  # until the reply to a login that is not checked after earlier failures
MAX_FAILURES = 5  # logins of a session; then smtpd hangs up


class AuthCommand:
    """Does AUTH, and reads the client's responses.

    The session has seen to it that AUTH may come now. An authenticator of a hook judges names and
    passwords in place of the table of users; there is no SCRAM then.
    """

    def __init__(
        self,
        server: Server,
        connection: Connection,
        commands: Commands,
        replier: Replier,
        hooks: LoginHooks | None,
    ) -> None:
        logins = server.logins
        assert logins  # noqa: S101 - a listener of the process offers AUTH
        self._figures = server.figures
        self._connection = connection
        self._commands = commands
        self._replier = replier
        self._logins = logins
        self._hooks = hooks
        self._authenticator = hooks if hooks and hooks.judges else None
        others = hooks.mechanisms if hooks else ()
        judged = bool(self._authenticator)
        self._offered = offered(logins.mechanisms, authenticator=judged, others=others)
        self._renewal = Renewal(logins)
        self._asked: asyncio.Task[None] | None = None  # in which hooks are asked
        self._take: Take | None = None  # receives the client's answer to the question of a hook
        self._next: Callable[[bytes], None] = self._plain  # takes the next response
        self._mechanism = ""  # the mechanism of the AUTH under way
        self._name = b""
        self._scram: ScramExchange | None = None
        self._login: Login | None = (
            None  # the user, until the client has sent SCRAM's last response
        )
        self._failures = 0

    def begin_auth(self, argument: str) -> None:
        """Do AUTH with the words behind it."""
        words = argument.split()
        mechanism = words[0].upper() if words else ""
        known = mechanism in self._offered and len(words) <= MAX_ARGUMENTS
        if known and self._hooks and self._hooks.takes(mechanism):
            self._connection.begin_wait()
            self._asked = asyncio.create_task(self._ask_hooks(self._hooks, words, argument))
            self._asked.add_done_callback(self._ended)
        else:
            self._begin_exchange(argument)

    # -- hooks --

    async def _ask_hooks(self, hooks: LoginHooks, words: list[str], argument: str) -> None:
        """Have hooks answer AUTH; the session goes on after the reply."""
        logins, mechanism, client = self._logins, words[0].upper(), self._connection.client
        authenticator = await hooks.answer(mechanism, words, self._question)
        if authenticator:
            await self._answer(partial(logins.other, authenticator, mechanism, None, client))
        self._connection.read_commands()  # the hook may not have waited for an answer
        if not authenticator and self._connection.phase is Phase.BUSY:
            self._begin_exchange(argument)
        self._connection.resume()

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and isinstance(error := task.exception(), Exception):
            self._connection.fail(error)

    def _question(self, reply: str, take: Take) -> None:
        """Send a reply; `take` gets the next line, or None if it is too long."""
        self._take = take
        self._replier.reply(reply)
        self._connection.read_lines(self._answered)
        self._connection.resume()

    def _answered(self, line: bytes | None) -> None:
        """Do no more commands until the hook asks again, or has answered."""
        self._connection.read_commands()
        self._connection.begin_wait()
        take, self._take = self._take, None
        if take:
            take(line)

    # -- lines --

    def _begin_exchange(self, argument: str) -> None:
        mechanism, _, initial = argument.partition(" ")
        self._mechanism, self._login = mechanism.upper(), None
        if not mechanism or " " in initial.strip():
            self._replier.reply(replies.SYNTAX_AUTH)
            return
        if self._mechanism not in self._offered:
            self._replier.reply(replies.UNKNOWN_MECHANISM.format(" ".join(self._offered)))
            return
        self._next = {
            "PLAIN": self._plain,
            "LOGIN": self._login_name,
            SCRAM: self._scram_first,
        }[self._mechanism]
        text = initial.strip()
        if not text:
            self._ask(USERNAME if self._mechanism == "LOGIN" else b"")
        elif text == "=":  # an empty response (RFC 4954, section 4)
            self._respond(b"")
        else:
            self._decode(text.encode("utf-8", "surrogateescape"))

    def _line(self, line: bytes | None) -> None:
        """Take a response of the client; None is one that is too long."""
        self._connection.read_commands()
        if line is None:
            self._replier.reply(replies.AUTH_TOO_LONG)
        elif line == b"*":
            self._replier.reply(replies.AUTH_CANCELLED)
        else:
            self._decode(line)

    def _decode(self, text: bytes) -> None:
        try:
            response = decode(text)
        except Malformed:
            self._replier.reply(replies.AUTH_MALFORMED)
            return
        self._respond(response)

    def _respond(self, response: bytes) -> None:
        try:
            self._next(response)
        except Malformed:
            self._replier.reply(replies.AUTH_MALFORMED)
        except OtherIdentity:
            with self._logging():
                self._logins.refuse_identity(self._mechanism, self._connection.client)
            self._connection.suspend(self._answer(_no_one))

    def _ask(self, challenge: bytes) -> None:
        self._replier.reply(f"334 {b64encode(challenge).decode()}")
        self._connection.read_lines(self._line)

    # -- responses --

    def _plain(self, response: bytes) -> None:
        self._judge(plain(response))

    def _login_name(self, response: bytes) -> None:
        self._name = response
        self._next = self._login_password
        self._ask(PASSWORD)

    def _login_password(self, response: bytes) -> None:
        self._judge(credentials(self._name, response))

    def _scram_first(self, response: bytes) -> None:
        self._scram = ScramExchange(response)
        self._connection.suspend(self._scram_challenge(self._scram))

    def _scram_final(self, response: bytes) -> None:
        if self._scram:
            self._connection.suspend(self._answer(partial(self._scram_end, self._scram, response)))

    def _scram_ended(self, response: bytes) -> None:
        login, self._login = self._login, None
        if response or not login:
            raise Malformed("SCRAM has no further response")
        self._succeed(login)

    def _judge(self, given: Credentials) -> None:
        self._connection.suspend(self._answer(partial(self._password, given)))

    # -- what has to be waited for --

    async def _password(self, given: Credentials) -> Login | None:
        logins, client = self._logins, self._connection.client
        if self._authenticator:
            return await logins.other(
                self._authenticator.authenticate, self._mechanism, given, client
            )
        return await logins.password(self._mechanism, given, client)

    async def _scram_challenge(self, exchange: ScramExchange) -> None:
        try:
            with self._logging():
                challenge = await self._logins.scram(exchange, self._connection.client)
        except AuthUnavailable as error:
            await asyncio.sleep(_pause(error))
            self._fail(error)
            return
        self._next = self._scram_final
        self._ask(challenge)

    async def _scram_end(self, exchange: ScramExchange, final: bytes) -> Login | None:
        login, message = await self._logins.scram_end(exchange, final, self._connection.client)
        if login:
            self._login, self._next = login, self._scram_ended
            self._ask(message)
        return login

    def _logging(self) -> AbstractContextManager[object]:
        """Give session and listener to the lines in the log meanwhile."""
        return bound_contextvars(
            session=self._connection.session_id, listener=self._connection.listener
        )

    async def _answer(self, judging: Callable[[], Coroutine[Any, Any, Login | None]]) -> None:
        """Reply to a complete exchange; each failure gets its reply after the same time."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        failure: Exception | None = None
        login = None
        try:
            with self._logging():
                # called in the task, which may be cancelled before it begins
                login = await judging()
        except (AuthUnavailable, AuthRefused) as error:
            failure = error
        except Malformed:
            self._replier.reply(replies.AUTH_MALFORMED)
            return
        if not login:
            await asyncio.sleep(began + _pause(failure) - loop.time())
            self._fail(failure)
        elif not self._login:
            self._succeed(login)

    def _succeed(self, login: Login) -> None:
        self._figures.count_login("ok")
        self._commands.log_in(login)
        self._replier.reply(login.reply or replies.AUTH_OK)

    def _fail(self, error: Exception | None) -> None:
        """Reply to a failed login; hang up after some."""
        unavailable = isinstance(error, AuthUnavailable) and not isinstance(error, TooManyFailures)
        self._figures.count_login("unavailable" if unavailable else "failed")
        if isinstance(error, AuthRefused):
            self._replier.reply(str(error))
        elif error:
            self._replier.reply(replies.AUTH_UNAVAILABLE)
            if not isinstance(error, TooManyFailures):
                self._logins.unavailable(error)
                return
        else:
            self._replier.reply(replies.AUTH_FAILED)
        self._failures += 1
        if self._failures >= MAX_FAILURES:
            self._connection.refuse(replies.TOO_MANY_LOGINS)

    # -- later --

    def delays(self, line: bytes, again: Callable[[bytes], None]) -> bool:
        """Return whether MAIL, in this line, has to wait for a look at the user.

        `again` gets the line then, if the user is as it was at its login.
        """
        login = self._commands.login
        if not login or not self._renewal.needed(login):
            return False
        self._connection.suspend(self._renew(login, partial(again, line)))
        return True

    async def _renew(self, login: Login, again: Callable[[], None]) -> None:
        refusal = await self._renewal.refusal(login)
        if self._connection.phase is not Phase.BUSY:
            return  # the session has begun to end
        if refusal is replies.LOGIN_CHANGED:
            self._connection.refuse(refusal)
        elif refusal:
            self._replier.reply(refusal)
        else:
            again()

    def abandon(self) -> None:
        """Wait for nothing any more: the session has ended."""
        if self._asked:
            self._asked.cancel()


class Renewal:
    """Looks before a mail if some user has changed since the last one, of all sessions."""

    def __init__(self, logins: Logins) -> None:
        self._logins = logins
        self._login: Login | None = None
        self._verified_version = 0  # version of the table of users when the user was last verified

    def needed(self, login: Login) -> bool:
        """Return whether the user may have changed."""
        users = self._logins.users
        if login is not self._login:
            self._login, self._verified_version = login, users.as_of(login)
        return bool(login.version) and not (users.fresh and users.changes == self._verified_version)

    async def refusal(self, login: Login) -> str:
        """Look; return nothing, or the reply of a refusal."""
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
        if changes != self._verified_version:
            entry, _ = await users.find_user(login.user)
            if entry.verifier.version != login.version:
                return False
            self._verified_version = changes
        return True


async def _no_one() -> None:
    """Return no user, as the answer to a login that is wrong without a look at its password."""


def _pause(failure: Exception | None) -> float:
    """Return the seconds after which a failed login gets its reply.

    A blocked client waits longer, because its next try costs the process more than the wait.
    """
    return BLOCKED_DELAY_S if isinstance(failure, TooManyFailures) else FAILURE_DELAY_S

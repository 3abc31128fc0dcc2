"""The AUTH commands of one session, with the lines that follow them (RFC 4954, section 4)."""

from __future__ import annotations

import asyncio
from base64 import b64encode
from collections.abc import Callable, Coroutine
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, Protocol

from structlog.contextvars import bound_contextvars

from pgmta.accounts.authenticator import Authenticator, AuthRefused, AuthUnavailable
from pgmta.accounts.login import Login
from pgmta.accounts.logins import Logins, TooManyFailures
from pgmta.accounts.mechanisms import (
    LINE,
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
from smtpd.protocol import replies

_SLOW = 1.0  # seconds until the reply to a failed login, at least; the same for unknown users
_BLOCKED = 5.0  # seconds until the reply to a login that is not checked because of earlier failures
_FAILURES = 5  # failed logins of a session until smtpd hangs up


class Bearer(Protocol):
    """Has the user of a session."""

    @property
    def login(self) -> Login | None:
        """Return the user, once AUTH has succeeded."""

    def log_in(self, login: Login) -> None:
        """Note that AUTH has succeeded."""


class Owner(Protocol):
    """The session, as far as AUTH needs it."""

    reader: Any

    @property
    def commands(self) -> Bearer:
        """Return the part of the session that gets the user."""

    def reply(self, reply: str) -> None:
        """Send a reply."""


class Refusing(Protocol):
    """Hangs up."""

    def refuse(self, reply: str) -> None:
        """Hang up on a client that is over a limit."""

    def fail(self, error: Exception) -> None:
        """Hang up after an error of this program."""


class Wire(Protocol):
    """The connection, as far as AUTH needs it."""

    client: str
    listener: str
    session_id: str

    @property
    def closing(self) -> Refusing:
        """Return its end."""

    def suspend(self, work: Coroutine[Any, Any, None]) -> None:
        """Wait for a coroutine; the commands that follow wait for it."""


class AuthExchange:
    """Does AUTH, and is the reader of the client's responses.

    The session has seen to it that AUTH may come now. `authenticator` judges names and passwords
    in place of the table of users; there is no SCRAM then.
    """

    most = LINE
    """Octets of a line, at most."""

    def __init__(
        self,
        session: Owner,
        wire: Wire,
        logins: Logins,
        authenticator: Authenticator | None = None,
        others: tuple[str, ...] = (),
    ) -> None:
        self._session = session
        self._wire = wire
        self._logins = logins
        self._authenticator = authenticator
        self._next: Callable[[bytes], None] = self._plain  # takes the next response
        self.mechanism = ""
        """The mechanism of the AUTH under way."""
        self._name = b""
        self._scram: ScramExchange | None = None
        self._login: Login | None = None  # the user, while SCRAM's last response is waited for
        self._failures = 0
        self.offered = offered(logins.mechanisms, authenticator=bool(authenticator), others=others)
        """All mechanisms; `others` are those of hooks, which this one does not do."""

    # -- lines --

    def begin(self, argument: str) -> None:
        """Do AUTH with the words behind it."""
        mechanism, _, initial = argument.partition(" ")
        self.mechanism, self._login = mechanism.upper(), None
        if not mechanism or " " in initial.strip():
            self._session.reply(replies.SYNTAX_AUTH)
            return
        if self.mechanism not in self.offered:
            self._session.reply(replies.UNKNOWN_MECHANISM.format(" ".join(self.offered)))
            return
        self._next = {
            "PLAIN": self._plain,
            "LOGIN": self._login_name,
            SCRAM: self._scram_first,
        }[self.mechanism]
        text = initial.strip()
        if not text:
            self._ask(USERNAME if self.mechanism == "LOGIN" else b"")
        elif text == "=":  # an empty response (section 4)
            self._take(b"")
        else:
            self._decode(text.encode("utf-8", "surrogateescape"))

    def line(self, line: bytes) -> None:
        """Take a response of the client."""
        self._session.reader = None
        if line == b"*":
            self._session.reply(replies.AUTH_CANCELLED)
        else:
            self._decode(line)

    def overlong(self) -> None:
        """End the exchange, because a line was too long."""
        self._session.reader = None
        self._session.reply(replies.AUTH_TOO_LONG)

    def _decode(self, text: bytes) -> None:
        try:
            response = decode(text)
        except Malformed:
            self._session.reply(replies.AUTH_MALFORMED)
            return
        self._take(response)

    def _take(self, response: bytes) -> None:
        try:
            self._next(response)
        except Malformed:
            self._session.reply(replies.AUTH_MALFORMED)
        except OtherIdentity:
            with self._logging():
                self._logins.refuse_identity(self.mechanism, self._wire.client)
            self._wire.suspend(self._answer(_no_one))

    def _ask(self, challenge: bytes) -> None:
        self._session.reply(f"334 {b64encode(challenge).decode()}")
        self._session.reader = self

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
        self._wire.suspend(self._scram_challenge(self._scram))

    def _scram_final(self, response: bytes) -> None:
        if self._scram:
            self._wire.suspend(self._answer(partial(self._scram_end, self._scram, response)))

    def _scram_ended(self, response: bytes) -> None:
        login, self._login = self._login, None
        if response or not login:
            raise Malformed("SCRAM has no further response")
        self._succeed(login)

    def _judge(self, given: Credentials) -> None:
        self._wire.suspend(self._answer(partial(self._password, given)))

    # -- what has to be waited for --

    async def judge(self, authenticator: Authenticator) -> None:
        """Have an authenticator judge that asks the client itself; send the reply."""
        logins, client = self._logins, self._wire.client
        await self._answer(partial(logins.other, authenticator, self.mechanism, None, client))

    async def _password(self, given: Credentials) -> Login | None:
        logins, client = self._logins, self._wire.client
        if self._authenticator:
            return await logins.other(self._authenticator, self.mechanism, given, client)
        return await logins.password(self.mechanism, given, client)

    async def _scram_challenge(self, exchange: ScramExchange) -> None:
        try:
            with self._logging():
                challenge = await self._logins.scram(exchange, self._wire.client)
        except AuthUnavailable as error:
            await asyncio.sleep(_pause(error))
            self._fail(error)
            return
        self._next = self._scram_final
        self._ask(challenge)

    async def _scram_end(self, exchange: ScramExchange, final: bytes) -> Login | None:
        login, message = await self._logins.scram_end(exchange, final, self._wire.client)
        if login:
            self._login, self._next = login, self._scram_ended
            self._ask(message)
        return login

    def _logging(self) -> AbstractContextManager[object]:
        """Give session and listener to the lines in the log meanwhile."""
        return bound_contextvars(session=self._wire.session_id, listener=self._wire.listener)

    async def _answer(self, judging: Callable[[], Coroutine[Any, Any, Login | None]]) -> None:
        """Reply to a complete exchange; each failure gets its reply after the same time."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        failure: Exception | None = None
        login = None
        try:
            with self._logging():
                login = await judging()  # not earlier: the session may end before this begins
        except (AuthUnavailable, AuthRefused) as error:
            failure = error
        except Malformed:
            self._session.reply(replies.AUTH_MALFORMED)
            return
        if not login:
            await asyncio.sleep(began + _pause(failure) - loop.time())
            self._fail(failure)
        elif not self._login:
            self._succeed(login)

    def _succeed(self, login: Login) -> None:
        self._session.commands.log_in(login)
        self._session.reply(login.reply or replies.AUTH_OK)

    def _fail(self, error: Exception | None) -> None:
        """Reply to a failed login; hang up after some."""
        if isinstance(error, AuthRefused):
            self._session.reply(str(error))
        elif error:
            self._session.reply(replies.AUTH_UNAVAILABLE)
            if not isinstance(error, TooManyFailures):
                self._logins.unavailable(error)
                return
        else:
            self._session.reply(replies.AUTH_FAILED)
        self._failures += 1
        if self._failures >= _FAILURES:
            self._wire.closing.refuse(replies.TOO_MANY_LOGINS)


async def _no_one() -> None:
    """Return no user, as the answer to a login that is wrong without a look at its password."""


def _pause(failure: Exception | None) -> float:
    """Return the seconds after which a failed login gets its reply.

    A blocked client waits longer, because its next try costs the process more than the wait.
    """
    return _BLOCKED if isinstance(failure, TooManyFailures) else _SLOW

"""One AUTH that a hook answers, with its questions to the client (RFC 4954, section 4)."""

from __future__ import annotations

import binascii
from base64 import b64decode
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from smtpd.hooks.call import HookCall
from smtpd.hooks.phases import Step
from smtpd.hooks.server import HookServer, Take

ABORTED = "501 5.7.0 Auth aborted"
NOT_BASE64 = "501 5.5.2 Can't decode base64"


class Reader(Protocol):
    """The session, as far as an AUTH needs it."""

    def ask(self, reply: str, reader: HookExchange) -> None:
        """Send a reply, and give the next line to the reader."""

    def pause(self) -> None:
        """Do no more commands until the hook asks, or until `go_on`."""

    def go_on(self, first: Callable[[], None] = lambda: None) -> None:
        """Do `first`, then the next commands."""


@dataclass(frozen=True, slots=True)
class Ending:
    """The end of an exchange: the answer of the method, or the error in its place."""

    answer: Any
    error: BaseException | None
    rescued: bool
    """Whether the answer is that of `handle_exception`."""
    aborted: str
    """The reply if the client has broken the exchange off, else nothing."""


class HookExchange:
    """Calls one method, and carries its challenges to the client and the answers back.

    `done` is called in the thread of the sessions, later.
    """

    most = 12288
    """Octets of a line, at most (RFC 4954, section 4)."""

    def __init__(
        self, step: Step, server: HookServer, session: Reader, done: Callable[[Ending], None]
    ) -> None:
        self._step = step
        self._server = server
        self._session = session
        self._done = done
        self._call: HookCall | None = None
        self._take: Take | None = None  # gets the client's answer
        self._aborted = ""

    def begin(self, args: list[str]) -> None:
        """Call the method with the words behind AUTH."""
        server, step = self._server, self._step
        server.pushed, server.asker = [], self
        arguments = (server, server.session, server.envelope, args)
        rescue = step.hook.methods.rescue
        self._call = step.hook.runner.call(step.method, rescue, arguments, self._came, asks=True)

    def challenge(self, text: str, take: Take) -> None:
        """Ask the client; after it has broken the exchange off there is no further answer."""
        if not self._call or self._aborted:
            take(None)
            return
        self._take = take
        self._step.hook.runner.pause(self._call)
        self._session.ask(f"334 {text}", self)

    def line(self, line: bytes) -> None:
        """Take the client's answer."""
        answer = line.strip()
        if answer == b"*":
            self._answer(None, ABORTED)
            return
        try:
            self._answer(b64decode(answer, validate=True))
        except binascii.Error:
            self._answer(None, NOT_BASE64)

    def overlong(self) -> None:
        """End the exchange, because a line was too long."""
        self._answer(None, NOT_BASE64)

    def _answer(self, octets: bytes | None, aborted: str = "") -> None:
        take, self._take, self._aborted = self._take, None, aborted
        if take and self._call:
            self._session.pause()
            self._step.hook.runner.go_on(self._call)
            take(octets)

    def abandon(self) -> None:
        """Cancel the method: the session has ended."""
        self._server.asker = None
        if self._call:
            self._call.abandon()
            self._call = None

    def _came(self, answer: Any, error: BaseException | None) -> None:
        rescued = bool(self._call and self._call.failed)
        self._call = None
        self._server.asker = None
        self._done(Ending(answer, error, rescued, self._aborted))

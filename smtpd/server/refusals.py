"""The line in the log for each reply that refuses something to a client."""

from __future__ import annotations

import time
from typing import Protocol

from pgmta.accounts.login import Login
from pgmta.logs import get
from smtpd.protocol import replies

_MOST = 20  # lines per second; clients can cause as many replies as they like
_SAID = frozenset((replies.AUTH_FAILED, replies.NO_MAIL, replies.NO_RCPT))
# they have a line `login failed`, or follow from another refusal

log = get("session")


class Wire(Protocol):
    """The connection, as far as a refusal needs it."""

    client: str
    listener: str
    session_id: str


class Refusing(Protocol):
    """The commands of a session, as far as a refusal is concerned."""

    login: Login | None
    path: str


class Refusals:
    """Logs refusals of one process, at most some per second, and the number of the others."""

    def __init__(self) -> None:
        self._second = 0
        self._lines = 0  # in this second
        self._left_out = 0

    def note(self, reply: str, wire: Wire, commands: Refusing) -> None:
        """Log a reply 4xx or 5xx with the path of the last MAIL or RCPT."""
        if reply in _SAID:
            return
        second = int(time.monotonic())
        if second != self._second:
            self._second, self._lines = second, 0
        self._lines += 1
        if self._lines > _MOST:
            self._left_out += 1
            return
        values: dict[str, object] = {"address": commands.path} if commands.path else {}
        if commands.login:
            values["user"] = commands.login.user
        if self._left_out:
            values["left_out"], self._left_out = self._left_out, 0
        log.info("refused", client=wire.client, listener=wire.listener, session=wire.session_id,
                 reply=reply, **values)  # fmt: skip

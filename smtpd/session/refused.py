"""The rest of a session that a hook has refused: all but QUIT is answered alike."""

from __future__ import annotations

from typing import Protocol

from smtpd.protocol import replies


class Ending(Protocol):
    """The end of a connection."""

    def hang_up(self, *, linger: bool = True) -> None:
        """Send the replies and close the socket."""


class RefusedSession(Protocol):
    """The session, as far as its refusal is concerned."""

    def reply(self, reply: str) -> None:
        """Send a reply; a 5xx counts as an error of the client."""


class Refused:
    """Reads the command lines of a session in which no command is done any more.

    The client has to hang up by itself (RFC 5321, section 3.1). Its errors are counted.
    """

    most = 2048
    """Octets of a line, at most."""

    def __init__(self, session: RefusedSession, closing: Ending, reply: str) -> None:
        self._session = session
        self._closing = closing
        self._reply = reply

    def overlong(self) -> None:
        """Answer a command that is too long."""
        self._session.reply(self._reply)

    def line(self, line: bytes) -> None:
        """Answer a command."""
        if line.strip().upper() == b"QUIT":
            self._session.reply(replies.BYE)
            self._closing.hang_up()
        else:
            self._session.reply(self._reply)

"""The connection as its session sees it, and commands that ask for further lines."""

from __future__ import annotations

from typing import Protocol

from smtpd.acknowledgement import Wire


class Restarting(Protocol):
    """The commands after which a session begins anew."""

    def start_tls(self) -> None:
        """Answer STARTTLS, and begin TLS if no input follows the command."""

    def identify(self, argument: str) -> None:
        """Do XCLIENT: go on with the client that it names."""


class SessionWire(Wire, Protocol):
    """The connection, as far as a session needs it."""

    delayed: bool
    unidentified: bool

    def reply(self, reply: str) -> None:
        """Add a reply."""

    @property
    def opening(self) -> Restarting:
        """The beginning of the connection."""


class LineReader(Protocol):
    """A command that asks for further lines, such as AUTH (RFC 4954)."""

    most: int
    """Octets of a line, at most."""

    def line(self, line: bytes) -> None:
        """Take a line, which has come without its line end."""

    def overlong(self) -> None:
        """Take note of a line that is too long."""

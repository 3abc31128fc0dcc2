"""SMTP between a program on standard input and smtpd (-bs)."""

from __future__ import annotations

import os
import re
import select
import socket
from collections import deque

from smtpd.sendmail.exits import DATA_ERROR, Exit

_READ_OCTETS = 1 << 16  # at once
_BDAT = re.compile(rb"BDAT\s+(\d{1,19})(\s+LAST)?\s*", re.IGNORECASE)  # RFC 3030, section 2
_LAST_LINE = re.compile(rb"(?:^|\n)(\d{3})(?: [^\n]*)?\n$")


class _Ended(Exception):
    """smtpd has closed the connection."""


class Relay:
    """Passes one command after the other, each with its reply.

    A program may write all of a dialogue into a pipe, and smtpd refuses clients that do not wait
    for its greeting, and its replies to EHLO and DATA. A dialogue whose first line ends with LF
    alone gets CRLF. Other line ends stay, because a bare LF may be a part of the content.
    """

    def __init__(self, server: socket.socket, source: int, target: int) -> None:
        self._server = server
        self._source = source
        self._target = target
        self._lines: deque[bytes] = deque()
        self._tail = b""  # the beginning of a line whose end has not come
        self._ended = False
        self._bare: bool | None = None
        server.settimeout(None)

    def run(self) -> None:
        """Go on until one of them ends. Raises OSError, and Exit for half a message."""
        try:
            self._reply()
            while line := self._line():
                self._server.sendall(line)
                word = line[:8].upper().split()[:1]
                if chunk := _BDAT.fullmatch(line):
                    self._pass_octets(int(chunk[1]))
                code = self._reply()
                if word == [b"DATA"] and code == b"354":
                    self._pass_content()
                    self._reply()
                elif word == [b"STARTTLS"] and code == b"220":
                    self._pass_all()
        except _Ended:
            return

    def _line(self) -> bytes:
        """Return the next line of the program, with its end; nothing at the end of all."""
        while not self._lines and not self._ended:
            self._read()
        if self._lines:
            line = self._lines.popleft()
        else:
            line, self._tail = self._tail, b""
            line += b"\r\n" if line else b""
        if self._bare is None:
            self._bare = not line.endswith(b"\r\n")
        if self._bare and line.endswith(b"\n") and not line.endswith(b"\r\n"):
            line = line[:-1] + b"\r\n"
        return line

    def _read(self) -> None:
        """Wait for octets of the program, and meanwhile pass on what smtpd says."""
        ready = select.select([self._source, self._server.fileno()], [], [])[0]
        if self._server.fileno() in ready:
            self._pass(self._server.recv(_READ_OCTETS))
            return
        octets = os.read(self._source, _READ_OCTETS)
        self._ended = not octets
        *lines, self._tail = (self._tail + octets).split(b"\n")
        self._lines.extend(line + b"\n" for line in lines)
        if len(self._tail) > _READ_OCTETS:  # passed on, because smtpd refuses such a line
            self._lines.append(self._tail)
            self._tail = b""

    def _pass(self, octets: bytes) -> None:
        if not octets:
            raise _Ended
        while octets:
            octets = octets[os.write(self._target, octets) :]

    def _reply(self) -> bytes:
        """Pass on a whole reply, and return its code."""
        said = b""
        while True:
            octets = self._server.recv(_READ_OCTETS)
            self._pass(octets)
            said = said[-_READ_OCTETS:] + octets
            if found := _LAST_LINE.search(said.replace(b"\r\n", b"\n")):
                return found[1]

    def _pass_content(self) -> None:
        """Send lines up to the one with only a dot."""
        part, begins = bytearray(), True
        while True:
            if (
                not self._lines and self._ended
            ):  # a last dot without a line end may be the beginning of a line that was cut off
                raise Exit(DATA_ERROR, "the input ended within a message")
            if not self._lines:
                self._read()
                continue
            line = self._line()
            part += line
            last = begins and line == b".\r\n"
            begins = line.endswith(b"\r\n")
            if last or len(part) >= _READ_OCTETS:
                self._server.sendall(part)
                part.clear()
            if last:
                return

    def _pass_octets(self, number: int) -> None:
        while number:
            while not self._lines and not self._tail:
                if self._ended:
                    raise Exit(DATA_ERROR, "the input ended within a message")
                self._read()
            if self._lines:
                octets = self._lines.popleft()
            else:
                octets, self._tail = self._tail, b""
            octets, rest = octets[:number], octets[number:]
            if rest:
                self._lines.appendleft(rest)
            self._server.sendall(octets)
            number -= len(octets)

    def _pass_all(self) -> None:
        """Pass octets in both directions: after STARTTLS nothing can be read."""
        self._server.sendall(b"".join((*self._lines, self._tail)))
        ways = [self._source, self._server.fileno()]
        while True:
            ready = select.select(ways, [], [])[0]
            if self._server.fileno() in ready:
                self._pass(self._server.recv(_READ_OCTETS))
            if self._source in ready:
                octets = os.read(self._source, _READ_OCTETS)
                if octets:
                    self._server.sendall(octets)
                else:
                    ways = [self._server.fileno()]
                    self._server.shutdown(socket.SHUT_WR)

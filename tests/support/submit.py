"""Mail submission: smtplib for ordinary mail, a raw socket for exact octets."""

from __future__ import annotations

import re
import smtplib
import socket
from typing import Self

from tests.support.waiting import PATIENCE

_LINE_DOT = re.compile(rb"(\A|(?<=\r\n))\.")


def stuff(content: bytes) -> bytes:
    """Add the transparency dots (RFC 5321, section 4.5.2)."""
    return _LINE_DOT.sub(b"..", content)


def unstuff(wire: bytes) -> bytes:
    return _LINE_DOT.sub(b"", wire)


class Reply(str):
    """A reply as text, all lines joined; `code` is its number."""

    __slots__ = ()

    @property
    def code(self) -> int:
        """Three digits."""
        return int(self[:3])


class Client:
    """A raw SMTP session: greeted by the constructor."""

    def __init__(self, port: int, timeout: float = PATIENCE) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=timeout)
        self._buffer = b""
        try:
            self.greeting = self.reply()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.socket.close()

    def write(self, data: bytes) -> None:
        self.socket.sendall(data)

    def reply(self) -> Reply:
        """Read one reply. Raises ConnectionError at the end of the connection."""
        lines = []
        while True:
            while b"\r\n" not in self._buffer:
                data = self.socket.recv(65536)
                if not data:
                    raise ConnectionResetError(f"closed after {self._buffer!r}")
                self._buffer += data
            line, self._buffer = self._buffer.split(b"\r\n", 1)
            lines.append(line.decode())
            if line[3:4] != b"-":
                return Reply("\n".join(lines))

    def command(self, line: str) -> Reply:
        """Send a line and return its reply."""
        self.write(line.encode() + b"\r\n")
        return self.reply()

    def begin(self, sender: str, recipients: list[str], mail: str = "") -> Self:
        """EHLO, MAIL, RCPT, DATA in one pipelined write; all must be accepted."""
        commands, replies = self._pipelined(sender, recipients, mail)
        for command, reply in zip(commands, replies, strict=True):
            assert reply.code == (354 if command == "DATA" else 250), f"{command}: {reply}"
        return self

    def _pipelined(
        self, sender: str, recipients: list[str], mail: str = ""
    ) -> tuple[list[str], list[Reply]]:
        commands = ["EHLO client.example", f"MAIL FROM:<{sender}>{mail}"]
        commands += [*(f"RCPT TO:<{recipient}>" for recipient in recipients), "DATA"]
        self.write("".join(f"{command}\r\n" for command in commands).encode())
        return commands, [self.reply() for _ in commands]

    def finish(self, content: bytes) -> Reply:
        """Send the content, or its rest, with the final dot; content ends with CRLF or is empty."""
        assert not content or content.endswith(b"\r\n")
        self.write(stuff(content) + b".\r\n")
        return self.reply()

    def send(self, sender: str, recipients: list[str], content: bytes) -> Reply:
        """One transaction; returns the reply to the end of data, or a 451 to MAIL or DATA."""
        commands, replies = self._pipelined(sender, recipients)
        if replies[-1].code == 354:
            return self.finish(content)
        refusal = next(reply for reply in replies if reply.code != 250)
        assert refusal.code == 451, list(zip(commands, replies, strict=True))
        return refusal


def queue_id(reply: Reply) -> int:
    """The message id in a 250 reply to the end of data."""
    assert reply.code == 250, reply
    return int(reply.split()[2])


def post(port: int, sender: str, recipients: list[str], content: bytes) -> int:
    """Send one message by smtplib in a new session; return its message id."""
    with smtplib.SMTP("127.0.0.1", port, "client.example", timeout=PATIENCE) as session:
        session.ehlo()
        assert session.mail(sender)[0] == 250
        for recipient in recipients:
            assert session.rcpt(recipient)[0] == 250
        code, text = session.data(content)
        return queue_id(Reply(f"{code} {text.decode()}"))

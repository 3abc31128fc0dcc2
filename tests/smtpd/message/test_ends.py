"""Octets that some server may take for the end of data: smtpd never sees two messages in them.

Each is cut at every octet, as the network may cut it. tests/smuggling has the servers behind smtpd.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import product
from typing import Any, cast

import pytest

from pgmta.intake.content import Content, DoneCallback
from pgmta.model import NewMessage
from smtpd.commands.listener import SmtpListener
from smtpd.config import Listener, SmtpdConfig
from smtpd.server.server import Server
from smtpd.session.opening import open_connection

NEWLINES = (b"\r\n", b"\n", b"\r")
_ODD = (b"\0", b"\t", b" ")
FILLERS = [(b"", b""), *((octet, b"") for octet in _ODD), *((b"", octet) for octet in _ODD)]
REAL = b"\r\n.\r\n"
ENDS = [
    before + left + b"." + right + after
    for before, after in product(NEWLINES, NEWLINES)
    for left, right in FILLERS
]
ENDS += [b"\r\n..\r\n", b"\n..\n", b"\n\n.\n\n", b"\r\r\n.\r\r\n", b"\n\r.\n\r", b"\r\n.\n.\r\n"]
EVIL = b"MAIL FROM:<evil@a.example>\r\nRCPT TO:<evil@b.example>\r\nDATA\r\nx\r\n"
START = b"EHLO c\r\nMAIL FROM:<s@a.example>\r\nRCPT TO:<r@b.example>\r\n"


def lenient_end(content: bytes) -> bool:
    """Whether a server that takes CR and LF for line ends, and drops NULs, sees an end in it.

    Dots after CRLF get another one on their way to it.
    """
    stuffed = re.sub(rb"(^|\r\n)\.", rb"\1..", content)
    return bool(re.search(rb"(?:^|[\r\n])\0*\.\0*[\r\n]", stuffed))


class Transport:
    """Keeps what smtpd writes."""

    def __init__(self) -> None:
        self.written = b""

    def write(self, data: bytes) -> None:
        self.written += data

    def get_extra_info(self, name: str) -> Any:
        return ("127.0.0.1", 25) if name == "peername" else None

    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return False

    def can_write_eof(self) -> bool:
        return True

    def close(self) -> None:
        pass

    abort = pause_reading = resume_reading = write_eof = close


class Committer:
    """Takes each message at once."""

    def __init__(self) -> None:
        self.ids = self.chunks = self
        self.available = [1] * 10
        self.taken: list[NewMessage] = []

    def commit(
        self, content: Content, message: NewMessage, done: DoneCallback, _: Sequence[str] = ()
    ) -> None:
        content.message, content.done, content.collected = message, done, 0
        self.taken.append(message)
        done(None)

    def drop_chunks(self, content: Content) -> None:
        pass


class Ids(list[int]):
    """Ids without an end."""

    def popleft(self) -> int:
        return 1

    def __bool__(self) -> bool:
        return True


def session(
    server: Server, listener: SmtpListener, parts: list[bytes]
) -> tuple[list[str], list[NewMessage]]:
    """Return the codes of the replies after the greeting, and the messages."""
    committer, transport = Committer(), Transport()
    committer.available = Ids()
    server.committer = cast(Any, committer)
    connection = open_connection(server, listener)
    connection.connection_made(cast(Any, transport))
    for part in parts:
        connection.data_received(part)
    connection.connection_lost(None)
    codes = re.findall(rb"^([0-9]{3}) ", transport.written, re.MULTILINE)
    return [code.decode() for code in codes[1:]], committer.taken


@pytest.mark.parametrize("role", ["relay", "internal"])
async def test_every_end_at_every_cut(role: str) -> None:
    config = SmtpdConfig.model_validate({"limits": {"errors": 100}})
    server = Server(config, "postgresql://nowhere")
    listener = SmtpListener(config, Listener.model_validate({"role": role, "early": "allow"}))
    assert len(ENDS) >= 60
    for end in ENDS:
        content = b"x" + end + EVIL
        received = re.sub(rb"(\r\n)\.", rb"\1", content)  # without the transparency dots
        for at in range(1, len(end) + 2):
            if end != REAL:
                data = [START + b"DATA\r\n" + content[:at], content[at:] + b".\r\nNOOP\r\n"]
                codes, taken = session(server, listener, data)
                judge(end, role, received, codes, taken, ["250"] * 3 + ["354"])
            sizes = b"BDAT %d\r\n" % at, b"BDAT %d LAST\r\n" % (len(content) - at)
            chunks = [START + sizes[0] + content[:at], sizes[1] + content[at:], b"NOOP\r\n"]
            codes, taken = session(server, listener, chunks)
            judge(end, role, content, codes, taken, ["250"] * 4)


def judge(
    end: bytes,
    role: str,
    content: bytes,
    codes: list[str],
    taken: list[NewMessage],
    before: list[str],
) -> None:
    """Check that one message came, or none, and that the session understood nothing else."""
    bare = re.search(rb"[\r\n]", content.replace(b"\r\n", b""))
    refused = lenient_end(content) or (role == "relay" and bool(bare))
    if codes[: len(before)] == before:  # otherwise the first chunk was refused already
        assert codes == [*before, "550" if refused else "250", "250"], (end, codes)
    else:
        assert refused, (end, codes)
        assert codes == [*before[:-1], "550", "503", "250"], (end, codes)
    assert [message.body for message in taken] == ([] if refused else [content]), end
    assert all(
        recipient == ("r@b.example", "b.example") for m in taken for recipient in m.recipients
    )

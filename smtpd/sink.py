"""A catch-all next hop for development: what it gets it keeps, octet for octet, in a Maildir."""

from __future__ import annotations

import asyncio
import itertools
import os
import socket
import time
from pathlib import Path
from typing import Any

from aiosmtpd.smtp import SMTP, Session

from pgmta.address import split_path
from pgmta.errors import AddressError, PgmtaError
from pgmta.service import Signals
from smtpd.end_of_data import EndOfData

_READ = 1 << 30
_LIMIT = 100 << 20


class Maildir:
    """Writes each message as one file, new/ after tmp/ as Maildir wants it.

    Only the user of the process reads it: files have mode 0600, folders 0700.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._count = itertools.count()
        folder.parent.mkdir(parents=True, exist_ok=True)
        folder.mkdir(mode=0o700, exist_ok=True)
        for name in ("tmp", "new", "cur"):
            (folder / name).mkdir(exist_ok=True)
            (folder / name).chmod(0o700)  # those of earlier versions were open

    def keep(self, sender: str, recipients: list[str], content: bytes) -> Path:
        """Store the content under Return-Path and Delivered-To lines, with its own CRLFs."""
        name = f"{time.time():.6f}.{os.getpid()}_{next(self._count)}.{socket.gethostname()}"
        envelope = f"Return-Path: <{sender}>\r\n"
        envelope += "".join(f"Delivered-To: {recipient}\r\n" for recipient in recipients)
        temporary = self._folder / "tmp" / name
        with open(temporary, "xb", opener=_private) as file:
            file.write(envelope.encode() + content)
        return temporary.rename(self._folder / "new" / name)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


class _Hooks:
    """No hooks."""


class Catcher(SMTP):
    """Accepts everything."""

    line_length_limit = 1 << 16
    command_size_limit = 2048
    session: Session
    _reader: asyncio.StreamReader

    def __init__(self, maildir: Maildir, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(
            _Hooks, hostname="sink.localhost", ident="ESMTP pgmta development sink",
            data_size_limit=_LIMIT, enable_SMTPUTF8=True, loop=loop,
        )  # fmt: skip
        self._maildir = maildir
        self._sender: str | None = None
        self._recipients: list[str] = []

    def _set_rset_state(self) -> None:
        super()._set_rset_state()  # type: ignore[no-untyped-call]
        self._sender = None
        self._recipients = []

    async def smtp_EHLO(self, hostname: str) -> None:
        """Tell what we can."""
        self._set_rset_state()
        self.session.extended_smtp = True
        self.session.host_name = hostname
        words = ("PIPELINING", "8BITMIME", "SMTPUTF8", "ENHANCEDSTATUSCODES")
        lines = "".join(f"250-{word}\r\n" for word in (self.hostname, *words))
        await self.push(f"{lines}250 SIZE {_LIMIT}")

    async def smtp_MAIL(self, arg: str | None) -> None:
        """Note the reverse-path."""
        try:
            self._sender, _ = split_path((arg or "").partition(":")[2])
            await self.push("250 2.1.0 Ok")
        except AddressError as error:
            await self.push(f"501 5.5.4 {error}")

    async def smtp_RCPT(self, arg: str | None) -> None:
        """Note a forward-path."""
        try:
            self._recipients.append(split_path((arg or "").partition(":")[2])[0])
            await self.push("250 2.1.5 Ok")
        except AddressError as error:
            await self.push(f"501 5.5.4 {error}")

    async def smtp_DATA(self, arg: str | None) -> None:
        """Keep the content."""
        if self._sender is None or not self._recipients:
            await self.push("503 5.5.1 Send MAIL and RCPT first")
            return
        await self.push("354 Go ahead")
        collector, pieces = EndOfData("guard"), []
        while not collector.done:
            data: Any = await self._reader.read(_READ)
            if not data:
                raise ConnectionResetError
            pieces.append(collector.feed(data))
        self._reader._buffer.extend(collector.rest)  # type: ignore[attr-defined]
        path = self._maildir.keep(self._sender, self._recipients, b"".join(pieces))
        self._set_rset_state()
        await self.push(f"250 2.0.0 kept as {path.name}")


async def serve(address: str, port: int, folder: Path, *, attached: bool = False) -> None:
    """Catch mail until SIGTERM or SIGINT, or until the parent of an `attached` process ends.

    Raises PgmtaError where it can't listen.
    """
    signals = Signals()
    if attached:
        signals.attach()
    loop = asyncio.get_running_loop()
    maildir = Maildir(folder)
    try:
        server = await loop.create_server(lambda: Catcher(maildir, loop), address, port)
    except OSError as error:
        raise PgmtaError(f"can't listen on {address} port {port}: {error.strerror}") from None
    await signals.stop.wait()
    server.close()

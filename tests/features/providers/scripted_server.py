"""An HTTP server that reads whole requests, and answers with octets of the test."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import cast

HANG = b"hang"
CUT = b""
HELD = b"held"
type Script = Callable[[int], list[bytes]]


@dataclass
class Got:
    """A request as it came."""

    line: str
    fields: dict[str, str]
    body: bytes


@dataclass
class ScriptedServer:
    """Answers the n-th request with the parts of `script(n)`.

    CUT closes the connection, HANG answers no more, HELD waits for `released`. With `early` it
    answers before it has read the body, and reads nothing of it. With `deaf` it closes once the
    header has come. `pause` are seconds after each part.
    """

    script: Script
    early: bool = False
    deaf: bool = False
    pause: float = 0.0
    port: int = 0
    connections: int = 0
    got: list[Got] = field(default_factory=list)
    writers: set[asyncio.StreamWriter] = field(default_factory=set)
    over: asyncio.Event = field(default_factory=asyncio.Event)
    released: asyncio.Event = field(default_factory=asyncio.Event)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve a connection."""
        self.connections += 1
        self.writers.add(writer)
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                line, *rest = head.decode("latin-1").split("\r\n")
                pairs = (each.split(": ", 1) for each in rest if each)
                fields = {name.lower(): value for name, value in pairs}
                if self.deaf:
                    return
                if not self.early:
                    body = await reader.readexactly(int(fields.get("content-length", "0")))
                    self.got.append(Got(line, fields, body))
                if self.early:
                    cast(asyncio.Transport, writer.transport).pause_reading()
                for part in self.script(len(self.got)):
                    if part == HELD:
                        await self.released.wait()
                        continue
                    if part == HANG and self.early:
                        await self.over.wait()
                        return
                    if part == HANG:
                        await reader.read()  # until the client gives up
                        return
                    if part == CUT:
                        return
                    writer.write(part)
                    await writer.drain()
                    if self.pause:
                        await asyncio.sleep(self.pause)  # noqa: TID251 - a record for each part
                if self.early:
                    return
        except (asyncio.IncompleteReadError, ConnectionError):
            return
        finally:
            writer.close()


@asynccontextmanager
async def serving(
    server: ScriptedServer, context: ssl.SSLContext | None = None
) -> AsyncIterator[ScriptedServer]:
    """Serve at a free port of the loopback."""
    place = socket.socket()
    place.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)  # so that little is underway
    place.bind(("127.0.0.1", 0))
    listener = await asyncio.start_server(server.serve, sock=place, ssl=context)
    server.port = listener.sockets[0].getsockname()[1]
    try:
        yield server
    finally:
        server.over.set()
        listener.close()
        for writer in server.writers:
            writer.close()


def said(status: str, body: bytes = b"", *fields: str) -> list[bytes]:
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *fields]
    return ["\r\n".join(lines).encode() + b"\r\n\r\n" + body]

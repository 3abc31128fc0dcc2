"""A next hop that speaks STARTTLS, well or badly, in the loop of the test."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from enum import StrEnum


class Fault(StrEnum):
    """A fault in the TLS of a next hop."""

    NONE = "none"
    STRIPPED = "stripped"  # no STARTTLS in the reply to EHLO
    REFUSED = "refused"  # 454
    CLOSED = "closed"  # closes after its 220
    GARBAGE = "garbage"  # plain text in place of the handshake
    INJECTED = "injected"  # a reply together with the 220


@dataclass
class TlsHop:
    """Takes every message; `taken` says for each whether it came under TLS."""

    context: ssl.SSLContext
    fault: Fault = Fault.NONE
    extensions: tuple[str, ...] = ()  # under TLS only
    implicit: bool = False
    port: int = 0
    taken: list[bool] = field(default_factory=list)
    commands: list[str] = field(default_factory=list)
    names: list[str | None] = field(default_factory=list)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Speak with one client."""
        try:
            await self._speak(reader, writer, self.implicit)
        except (OSError, EOFError, ssl.SSLError):
            pass
        finally:
            writer.transport.abort()

    async def _speak(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, tls: bool
    ) -> None:
        writer.write(b"220 hop.example ESMTP\r\n")
        while line := (await reader.readuntil(b"\r\n"))[:-2].decode():
            verb = line[:4].upper()
            self.commands.append(line)
            if verb == "EHLO":
                more = self.extensions if tls else ("STARTTLS",)
                if self.fault is Fault.STRIPPED:
                    more = self.extensions
                lines = ["hop.example", "PIPELINING", *more, "HELP"]
                writer.write(
                    "".join(f"250-{each}\r\n" for each in lines[:-1]).encode() + b"250 HELP\r\n"
                )
            elif line == "STARTTLS":
                if not await self._start_tls(reader, writer):
                    continue
                tls = True
            elif verb == "DATA":
                writer.write(b"354 Go on\r\n")
                await reader.readuntil(b"\r\n.\r\n")
                self.taken.append(tls)
                writer.write(b"250 Ok\r\n")
            elif verb == "QUIT":
                writer.write(b"221 Bye\r\n")
                return
            else:
                writer.write(b"250 Ok\r\n")

    async def _start_tls(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        match self.fault:
            case Fault.REFUSED:
                writer.write(b"454 4.7.0 TLS not available\r\n")
                return False
            case Fault.CLOSED:
                writer.write(b"220 Go on\r\n")
                await writer.drain()
                raise EOFError
            case Fault.GARBAGE:
                writer.write(b"220 Go on\r\n")
                await reader.read(1)  # the client has begun its handshake
                writer.write(b"250 this is no TLS at all, whatever you say to me here\r\n")
                return False
            case Fault.INJECTED:
                writer.write(b"220 Go on\r\n250 injected\r\n")
            case _:
                writer.write(b"220 Go on\r\n")
        await writer.drain()
        await writer.start_tls(self.context)
        return True


@asynccontextmanager
async def listening(hop: TlsHop) -> AsyncIterator[TlsHop]:
    """Listen on 127.0.0.1 as long as the context lasts."""

    def named(_: object, name: str | None, __: object) -> None:
        hop.names.append(name)

    hop.context.sni_callback = named
    context = hop.context if hop.implicit else None
    server = await asyncio.start_server(hop.serve, "127.0.0.1", 0, ssl=context)
    hop.port = server.sockets[0].getsockname()[1]
    try:
        yield hop
    finally:
        server.close()

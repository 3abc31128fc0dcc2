"""A next hop in the test's own event loop that says exactly the given octets."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import uvloop

from tests.support.waiting import take_time_async

USUAL = {
    "greeting": b"220 hop.example ESMTP\r\n",
    "HELO": b"250 hop.example\r\n",
    "MAIL": b"250 2.1.0 Ok\r\n",
    "RCPT": b"250 2.1.5 Ok\r\n",
    "early": b"503 5.5.1 Too early\r\n",
    "DATA": b"354 Go on\r\n",
    "content": b"",
    "dot": b"250 2.0.0 Ok\r\n",
    "RSET": b"250 2.0.0 Ok\r\n",
}
PIPED = b"250-hop.example\r\n250-SIZE 100000000\r\n250 PIPELINING\r\n"
LOCK_STEP = b"250-hop.example\r\n250 SIZE 100000000\r\n"
DROP = b"\xff drop"
"""At the end of the octets: the hop closes the connection."""
HANG = b"\xff hang"
"""At the end of the octets: the hop says no more before the client closes."""


@dataclass
class RawHop:
    """Says `says[point]`, or the usual reply; a callable there gets the connection's number.

    It takes an address or a message if the first reply it gives to it is the positive one.
    """

    says: dict[str, bytes | Callable[[int], bytes | None]] = field(default_factory=dict)
    ehlo: bytes = PIPED
    refuses: dict[bytes, bytes] = field(default_factory=dict)
    """Replies to MAIL and RCPT with these words in them; 503 follows if nothing is left."""
    port: int = 0
    connections: int = 0
    open: int = 0
    messages: list[tuple[list[str], bytes]] = field(default_factory=list)
    """Recipients and content, dots still stuffed, of what came to its final dot."""
    taken: Counter[str] = field(default_factory=Counter)
    """How often the hop said 2xx for a recipient's message after it had the whole of it."""
    aborted: int = 0
    pause: float = 0.0
    """Seconds before the reply to the dot."""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Speak until one side closes."""
        self.connections += 1
        self.open += 1
        try:
            await _Dialogue(self, self.connections, reader, writer).run()
        except (ConnectionError, EOFError, asyncio.CancelledError):
            self.aborted += 1
        finally:
            self.open -= 1
            writer.transport.abort()


@dataclass
class _Dialogue:
    hop: RawHop
    number: int
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    accepted: list[str] = field(default_factory=list)
    rcpts: int = 0
    begun: bool = False

    async def run(self) -> None:
        await self._say("greeting")
        while line := await self.reader.readline():
            verb = line[:4].decode("latin-1")
            if verb == "MAIL":
                self.accepted, self.rcpts = [], 0
                self.begun = (await self._say(verb, line)).startswith(b"2")
            elif verb in ("RCPT", "DATA") and self.hop.refuses and not self._has(verb):
                await self._say("early")
            elif verb == "RCPT":
                self.rcpts += 1
                name = f"RCPT {self.rcpts}"
                point = name if name in self.hop.says else verb
                if (await self._say(point, line)).startswith(b"2"):
                    self.accepted.append(line[line.index(b"<") + 1 : line.index(b">")].decode())
            elif verb == "DATA":
                if (await self._say(verb)).startswith(b"354"):
                    await self._content()
            elif verb == "QUIT":
                return
            else:
                await self._say(verb)

    def _has(self, verb: str) -> bool:
        """Return whether the command may come now."""
        return self.begun if verb == "RCPT" else bool(self.accepted)

    async def _content(self) -> None:
        lines = [await self.reader.readline()]
        await self._say("content")
        while lines[-1] != b".\r\n":
            lines.append(await self.reader.readline())
            if not lines[-1]:
                raise EOFError
        self.hop.messages.append((self.accepted, b"".join(lines[:-1])))
        positive = self._words("dot").startswith(b"2")
        if positive:
            self.hop.taken.update(self.accepted)
        if self.hop.pause:
            await take_time_async(self.hop.pause)
        await self._say("dot")

    def _words(self, point: str) -> bytes:
        usual = self.hop.ehlo if point == "EHLO" else USUAL.get(point, b"500 5.5.2 What?\r\n")
        says = self.hop.says.get(point, usual)
        words = says if isinstance(says, bytes) else says(self.number)
        return usual if words is None else words

    async def _say(self, point: str, line: bytes = b"") -> bytes:
        refused = (reply for words, reply in self.hop.refuses.items() if words in line)
        words = next(refused, None) or self._words(point)
        octets = words.removesuffix(DROP).removesuffix(HANG)
        self.writer.write(octets)
        await self.writer.drain()
        if words.endswith(HANG):
            await self.reader.read(-1)
        if words.endswith((DROP, HANG)):
            raise EOFError
        return octets


@asynccontextmanager
async def serving(hop: RawHop, address: str = "127.0.0.1") -> AsyncIterator[RawHop]:
    """Listen for the hop on a port of the address."""
    server = await asyncio.start_server(hop.serve, address, hop.port, limit=1 << 20)
    hop.port = server.sockets[0].getsockname()[1]
    try:
        yield hop
    finally:
        server.close()


def run[T](main: Coroutine[Any, Any, T], timeout: float = 60.0) -> T:
    """Run a coroutine under uvloop, as the daemons do; it may not take longer."""

    async def bounded() -> T:
        async with asyncio.timeout(timeout):
            return await main

    return asyncio.run(bounded(), loop_factory=uvloop.new_event_loop)

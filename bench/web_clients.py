"""Clients of `queued web`: fast ones on kept connections, and slow ones that never end a header."""

import asyncio
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import cast

_ENOUGH = 3.0  # times a duration, after which a run has stalled


def request(path: str, body: bytes) -> bytes:
    """Return the octets of a POST of JSON."""
    head = f"POST {path} HTTP/1.1\r\nHost: bench\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


class Load:
    """Counts the answers by status."""

    def __init__(self, requests: Iterator[bytes]) -> None:
        self._requests = requests
        self.statuses: Counter[int] = Counter()
        self.stopped = False
        self._open = 0
        self._idle = asyncio.Event()

    def next(self) -> bytes | None:
        """Return the next request, None if there is none."""
        return None if self.stopped else next(self._requests, None)

    async def run(
        self, port: int, connections: int, seconds: float, source: str = "127.0.0.1"
    ) -> float:
        """Ask over connections until the requests or the time end; return answers per second."""
        loop = asyncio.get_running_loop()
        self._open = connections
        began = time.perf_counter()
        stop = loop.call_later(seconds, lambda: setattr(self, "stopped", True))
        for _ in range(connections):
            await loop.create_connection(
                lambda: _Client(self), "127.0.0.1", port, local_addr=(source, 0)
            )
        async with asyncio.timeout(_ENOUGH * seconds + 10):
            await self._idle.wait()
        stop.cancel()
        return self.statuses.total() / (time.perf_counter() - began)

    def closed(self) -> None:
        """Note that a connection has ended."""
        self._open -= 1
        if not self._open:
            self._idle.set()


class _Client(asyncio.Protocol):
    """One connection, one request at a time."""

    def __init__(self, load: Load) -> None:
        self._load = load
        self._data = b""
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Ask."""
        self._transport = cast(asyncio.Transport, transport)
        self._ask()

    def _ask(self) -> None:
        assert self._transport
        if (octets := self._load.next()) is None:
            self._transport.close()
        else:
            self._transport.write(octets)

    def data_received(self, data: bytes) -> None:
        """Look whether the answer is whole."""
        self._data += data
        head, found, body = self._data.partition(b"\r\n\r\n")
        if not found:
            return
        length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r")[0])
        if len(body) >= length:
            self._load.statuses[int(head[9:12])] += 1
            self._data = b""
            self._ask()

    def connection_lost(self, _: Exception | None) -> None:
        """Say so."""
        self._load.closed()


class Slow:
    """Clients that send a header one octet at a time, and come again when they are thrown out."""

    def __init__(self, port: int, sources: Sequence[str], each: int) -> None:
        self._port = port
        self._places = [source for source in sources for _ in range(each)]
        self._tasks: list[asyncio.Task[None]] = []
        self.open = 0

    async def start(self) -> None:
        """Connect all of them."""
        self._tasks = [asyncio.create_task(self._drip(place)) for place in self._places]
        while self.open < len(self._places):
            await asyncio.sleep(0.05)

    async def _drip(self, source: str) -> None:
        while True:
            _, writer = await asyncio.open_connection(
                "127.0.0.1", self._port, local_addr=(source, 0)
            )
            self.open += 1
            try:
                writer.write(b"POST /v1/tokens/verify HTTP/1.1\r\nX-Slow: ")
                while True:
                    writer.write(b"x")
                    await writer.drain()
                    await asyncio.sleep(1.0)
            except OSError:
                pass
            finally:
                self.open -= 1
                writer.close()

    async def stop(self) -> None:
        """End them."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

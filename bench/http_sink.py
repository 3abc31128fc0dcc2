"""The provider of bench/http: it reads requests, counts them, and answers or hangs."""

import asyncio
import json
import socket
import ssl
import sys
from typing import Any, cast

import uvloop

from bench.helper import listen, say

_END = b"\r\n\r\n"
_LENGTH = b"content-length: "


class Counts:
    """The number of requests and connections, and of those that are open."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.requests = self.connections = self.open = self.peak = 0
        self.hangs = bool(config.get("hangs"))
        body = b'{"id": "0123456789"}'.ljust(config.get("octets", 20))
        head = f"HTTP/1.1 202 Accepted\r\nContent-Length: {len(body)}\r\n"
        self.answer = head.encode() + b"Content-Type: application/json" + _END + body


class Requests(asyncio.Protocol):
    """One connection from the product."""

    def __init__(self, counts: Counts) -> None:
        self.counts = counts
        self.buffer = bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Count the connection."""
        self.transport = cast(asyncio.Transport, transport)
        self.counts.connections += 1
        self.counts.open += 1
        self.counts.peak = max(self.counts.peak, self.counts.open)

    def connection_lost(self, error: Exception | None) -> None:
        """Count its end."""
        self.counts.open -= 1

    def data_received(self, data: bytes) -> None:
        """Answer each whole request."""
        self.buffer += data
        while (end := self.buffer.find(_END)) >= 0:
            head = bytes(self.buffer[:end]).lower()
            size = int(head.partition(_LENGTH)[2].split(b"\r\n")[0])
            if len(self.buffer) < end + len(_END) + size:
                return
            del self.buffer[: end + len(_END) + size]
            self.counts.requests += 1
            if not self.counts.hangs:
                self.transport.write(self.counts.answer)


async def serve(config: dict[str, Any]) -> None:
    """Serve until standard input ends."""
    counts = Counts(config)
    loop = asyncio.get_running_loop()
    place = socket.create_server(("127.0.0.1", 0), backlog=256)
    tls = None
    if "certificate" in config:
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(config["certificate"], config["key"])
    server = await loop.create_server(lambda: Requests(counts), sock=place, ssl=tls)

    def obey(command: str) -> None:
        if command == "report":
            names = ("requests", "connections", "peak")
            say(**{"is": "report"}, **{name: getattr(counts, name) for name in names})

    listen(loop, obey)
    say(**{"is": "ready", "port": place.getsockname()[1]})
    async with server:
        await asyncio.Event().wait()


if __name__ == "__main__":
    work = uvloop.new_event_loop()
    work.create_task(serve(json.loads(sys.argv[1])))
    work.run_forever()

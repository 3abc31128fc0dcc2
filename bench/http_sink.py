"""The provider of bench/http: it reads requests, counts them, and answers or hangs.

The first word of a path can ask for more: /good notes when events came, and BAD are bad endpoints.
"""

import asyncio
import json
import socket
import ssl
import sys
import time
from datetime import datetime
from typing import Any, cast

import uvloop

from bench.helper import listen, run, say

_END = b"\r\n\r\n"
_LENGTH = b"content-length: "
_NOTHING = b"Content-Length: 0" + _END
BAD = {
    "hang": b"",
    "fail": b"HTTP/1.1 500 x\r\n" + _NOTHING,
    "gone": b"HTTP/1.1 410 Gone\r\n" + _NOTHING,
    "inward": b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:22/\r\n" + _NOTHING,
    "reset": None,
}
"""What they answer; None: they end the connection."""


class Counts:
    """The number of requests and connections, of those that are open, and when events came."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.requests = self.connections = self.open = self.peak = 0
        self.hangs = bool(config.get("hangs"))
        self.waits: dict[tuple[str, str], float] = {}  # for events, by endpoint and id
        body = b'{"id": "0123456789"}'.ljust(config.get("octets", 20))
        head = f"HTTP/1.1 202 Accepted\r\nContent-Length: {len(body)}\r\n"
        self.answer = head.encode() + b"Content-Type: application/json" + _END + body

    def report(self) -> dict[str, float]:
        """Return them."""
        waits = sorted(self.waits.values())
        shares = {f"p{at}": waits[len(waits) * at // 100] for at in (50, 99) if waits}
        names = ("requests", "connections", "peak")
        return {"events": len(waits), **shares, **{name: getattr(self, name) for name in names}}


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
            body = bytes(self.buffer[end + len(_END) : end + len(_END) + size])
            del self.buffer[: end + len(_END) + size]
            self.counts.requests += 1
            self.reply(head.split()[1].decode(), body)

    def reply(self, path: str, body: bytes) -> None:
        """Answer a request."""
        kind = path.strip("/").rstrip("0123456789")
        for event in json.loads(body)["data"] if kind == "good" else ():
            wait = time.time() - datetime.fromisoformat(event["time"]).timestamp()
            self.counts.waits.setdefault((path, event["id"]), wait)
        if (answer := BAD.get(kind, self.counts.answer)) is None:
            self.transport.abort()
        elif not self.counts.hangs:
            self.transport.write(answer)


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
            say(**{"is": "report"}, **counts.report())

    listen(loop, obey)
    say(**{"is": "ready", "port": place.getsockname()[1]})
    async with server:
        await asyncio.Event().wait()


if __name__ == "__main__":
    work = uvloop.new_event_loop()
    run(work, serve(json.loads(sys.argv[1])))

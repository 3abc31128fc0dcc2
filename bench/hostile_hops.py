"""Hostile next hops: SMTP servers that break the protocol, each in one way."""

import asyncio
import contextlib
import json
import socket
import sys
from collections import Counter
from typing import cast

import uvloop

from bench.helper import listen, say

HOPS = {
    "hop-continuation": "empty continuation lines without an end in reply to EHLO",
    "hop-banner": "a greeting without an end and without a line feed",
    "hop-double": "two replies to each command",
    "hop-early250": "250 before the final dot, then it drops",
    "hop-hang": "accepts connections and never says anything",
    "hop-refuse": "refuses every connection",
    "hop-five": "admits five connections and says 421 to others",
    "hop-dns": "twenty domains whose name servers never answer",
    "hop-size": "EHLO with SIZE \N{SUPERSCRIPT TWO}",
}
DOMAIN = "hop.test"
SILENT = [f"d{number}.{DOMAIN}" for number in range(20)]
"""The domains of hop-dns."""

PLACES = 5
BLOB = 1 << 16
END = b"\r\n.\r\n"
OK = b"250 2.0.0 Ok\r\n"


class Ledger:
    """The mail that the hop has taken: how often it got each recipient's mail up to the dot."""

    def __init__(self, kind: str) -> None:
        self.kind = kind.removeprefix("hop-")
        self.full: Counter[str] = Counter()
        self.open: set[Session] = set()
        self.connections = 0


class Session(asyncio.Protocol):
    """One connection from queued."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self.buffer = b""
        self.in_data = False
        self.paused = False
        self.recipients: list[str] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Greet, in the manner of the kind."""
        self.transport = cast(asyncio.Transport, transport)
        ledger = self.ledger
        ledger.connections += 1
        ledger.open.add(self)
        if ledger.kind == "banner":
            self._pour(b"x" * BLOB)
        elif ledger.kind == "five" and len(ledger.open) > PLACES:
            self.transport.write(b"421 4.7.0 Too many connections\r\n")
            self.transport.close()
        elif ledger.kind != "hang":
            self.transport.write(b"220 hop.test ESMTP\r\n")

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget it."""
        self.ledger.open.discard(self)

    def pause_writing(self) -> None:
        """Pause, because the other side does not read."""
        self.paused = True

    def resume_writing(self) -> None:
        """Go on, because the other side reads again."""
        self.paused = False

    def _pour(self, blob: bytes) -> None:
        """Write it again and again, as fast as the other side takes it."""
        if self.transport.is_closing():
            return
        loop = asyncio.get_running_loop()
        if self.paused:
            loop.call_later(0.01, self._pour, blob)
        else:
            self.transport.write(blob)
            loop.call_soon(self._pour, blob)

    def data_received(self, data: bytes) -> None:
        """Take commands and content."""
        self.buffer += data
        while self.buffer and not self.transport.is_closing():
            if self.in_data:
                if self.ledger.kind == "early250":
                    self.transport.abort()
                    return
                _, dot, rest = (b"\r\n" + self.buffer).partition(END)
                if not dot:
                    return
                self.buffer, self.in_data = rest, False
                self.ledger.full.update(self.recipients)
                self._say(OK)
            else:
                line, feed, rest = self.buffer.partition(b"\r\n")
                if not feed:
                    return
                self.buffer = rest
                self._command(line)

    def _say(self, reply: bytes) -> None:
        self.transport.write(reply * 2 if self.ledger.kind == "double" else reply)

    def _command(self, line: bytes) -> None:
        kind, verb = self.ledger.kind, line[:4].upper()
        if verb == b"EHLO" and kind == "continuation":
            self._pour(b"250-\r\n" * (BLOB // 6))
        elif verb == b"EHLO":
            size = b"SIZE \xc2\xb2" if kind == "size" else b"SIZE 1000000"
            self._say(b"250-hop.test\r\n250-PIPELINING\r\n250 " + size + b"\r\n")
        elif verb == b"DATA":
            self.in_data = True
            self._say(b"354 Go on\r\n" + (OK if kind == "early250" else b""))
        elif verb == b"QUIT":
            self._say(b"221 2.0.0 Bye\r\n")
            self.transport.close()
        else:
            if verb == b"MAIL":
                self.recipients = []
            elif verb == b"RCPT":
                self.recipients.append(line[line.find(b"<") + 1 : line.find(b"@")].decode())
            self._say(OK)


def main() -> None:
    """Serve; from "stop" on as a good next hop. Argument: JSON with the attack."""
    config = json.loads(sys.argv[1])
    ledger = Ledger(config["attack"])
    loop = uvloop.new_event_loop()
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))

    tasks: set[asyncio.Task[None]] = set()

    async def serve() -> None:
        await loop.create_server(lambda: Session(ledger), sock=listener, backlog=1024)

    def command(word: str) -> None:
        if word == "stop":
            if ledger.kind == "refuse":
                tasks.add(loop.create_task(serve()))
            ledger.kind = "good"
            for session in list(ledger.open):
                session.transport.abort()
        elif word == "report":
            say(**{"is": "report"}, full=ledger.full, connections=ledger.connections)

    if ledger.kind != "refuse":
        loop.run_until_complete(serve())
    listen(loop, command)
    names = socket.socket(type=socket.SOCK_DGRAM)  # a name server that never answers
    names.bind(("127.0.0.1", 0))
    ports = {"port": listener.getsockname()[1], "names": names.getsockname()[1]}
    say(**{"is": "ready"}, **ports)
    with contextlib.suppress(KeyboardInterrupt):
        loop.run_forever()


if __name__ == "__main__":
    main()

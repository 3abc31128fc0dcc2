"""Hostile next hops: the sink of the bench, which breaks the protocol in one way."""

import asyncio
import json
import socket
import sys
from collections import Counter
from typing import cast

import uvloop

from bench import ledger, sink
from bench.helper import listen, say

HOPS = {
    "hop-continuation": "empty continuation lines without an end in reply to EHLO",
    "hop-banner": "a greeting without an end and without a line feed",
    "hop-double": "two replies to each command",
    "hop-early250": "250 before the final dot, then it drops",
    "hop-hang": "accepts connections and never says anything",
    "hop-refuse": "refuses every connection",
    "hop-five": "admits five connections and says 421 to others",
    "hop-size": "EHLO with SIZE \N{SUPERSCRIPT TWO}",
}
DOMAIN = "hop.test"
MAX_SESSIONS = 5
BLOB_OCTETS = 1 << 16


class Tally:
    """The mail that the hop has taken: how often it got each recipient's mail up to the dot."""

    def __init__(self, kind: str) -> None:
        self.kind = kind.removeprefix("hop-")
        self.full: Counter[str] = Counter()
        self.sessions: set[Session] = set()
        self.connections = self.open = self.peak = 0

    def fault(self, kind: str, detail: str) -> None:
        """Take no notice."""

    def refusal(self, address: bytes) -> bytes:
        """Take every recipient."""
        return b""

    def store(self, sender: bytes, recipients: list[bytes], data: bytes) -> None:
        """Take in one message."""
        self.full.update(address.partition(b"@")[0].decode() for address in recipients)


class Session(sink.Session):
    """One connection from queued."""

    def __init__(self, tally: Tally) -> None:
        super().__init__(cast(ledger.Ledger, tally))
        self.tally = tally
        self.paused = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Greet, in the manner of the kind."""
        self.tally.sessions.add(self)
        super().connection_made(transport)
        if self.tally.kind == "banner":
            self._pour(b"x" * BLOB_OCTETS)
        elif self.tally.kind == "five" and len(self.tally.sessions) > MAX_SESSIONS:
            self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget it."""
        super().connection_lost(exc)
        self.tally.sessions.discard(self)

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

    def _say(self, answer: bytes) -> None:
        kind = self.tally.kind
        greeting = answer.startswith(b"220 ")
        if kind == "hang" or (kind == "banner" and greeting):
            return
        if kind == "five" and greeting and len(self.tally.sessions) > MAX_SESSIONS:
            answer = b"421 4.7.0 Too many connections\r\n"
        super()._say(answer)

    def _message(self, answers: list[bytes]) -> bool:
        if self.tally.kind == "early250":
            self.transport.abort()
            return False
        taken = super()._message(answers)
        if taken and self.tally.kind == "double":
            answers.append(answers[-1])
        return taken

    def _command(self, line: bytes) -> bytes:
        kind, verb = self.tally.kind, line[:4].upper()
        answer = super()._command(line)
        if verb == b"EHLO" and kind == "continuation":
            self._pour(b"250-\r\n" * (BLOB_OCTETS // 6))
            return b""
        if verb == b"EHLO" and kind == "size":
            return b"250-hop.test\r\n250-PIPELINING\r\n250 SIZE \xc2\xb2\r\n"
        if verb == b"DATA" and kind == "early250":
            return answer + b"250 2.0.0 Ok\r\n"
        return answer * 2 if kind == "double" else answer


def main() -> None:
    """Serve; from "stop" on as a good next hop. Argument: JSON with the attack."""
    tally = Tally(json.loads(sys.argv[1])["attack"])
    loop = uvloop.new_event_loop()
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    tasks: set[asyncio.Task[None]] = set()

    async def serve() -> None:
        await loop.create_server(lambda: Session(tally), sock=listener, backlog=1024)

    def command(word: str) -> None:
        if word == "stop":
            if tally.kind == "refuse":
                tasks.add(loop.create_task(serve()))
            tally.kind = "good"
            for session in list(tally.sessions):
                session.transport.abort()
        elif word == "report":
            say(**{"is": "report"}, full=tally.full)

    if tally.kind != "refuse":
        loop.run_until_complete(serve())
    listen(loop, command)
    say(**{"is": "ready"}, port=listener.getsockname()[1])
    loop.run_forever()


if __name__ == "__main__":
    main()

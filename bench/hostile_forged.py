"""Forged mail to users that do not exist: who sends it, and the next hop that refuses it.

Half of it claims one sender, whose mailbox gets the DSNs; the other half claims many.
"""

import asyncio
import contextlib
import json
import re
import socket
import sys
import time
from collections import Counter
from typing import Any, cast

import uvloop

from bench.helper import listen, say

FORGED = {"forged-senders": "50,000 messages to unknown users, which the next hop refuses"}
FLOOD, VICTIMS = "flood.test", "victims.test"
"""The domains of the unknown users, and of the senders that are forged."""

MESSAGES = 50_000
EACH = 10  # forged messages of a sender among the many
SESSIONS = 20
DOMAINS = ["*.bench.test", FLOOD]
SMTPD: dict[str, Any] = {
    "relay": {"domains": DOMAINS},
    "limits": {"messages_per_session": 10**6},
}
"""Settings of smtpd: it takes mail for the domain of the unknown users."""

END = b"\r\n.\r\n"
RECIPIENT = re.compile(rb"^Final-Recipient: *rfc822; *(\S+)", re.MULTILINE | re.IGNORECASE)


def forged_sender(number: int) -> str:
    """Return the sender of forged message `number`."""
    return f"one@{VICTIMS}" if number % 2 else f"v{number // 2 // EACH}@{VICTIMS}"


class Hop(asyncio.Protocol):
    """One connection from queued: unknown users are refused, DSNs to the senders are counted."""

    def __init__(self, notified: Counter[str], figures: Counter[str]) -> None:
        self.notified, self.figures = notified, figures
        self.buffer = b""
        self.in_data = False
        self.accepts = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Greet."""
        self.transport = cast(asyncio.Transport, transport)
        self.transport.write(b"220 hop.test ESMTP\r\n")

    def data_received(self, data: bytes) -> None:
        """Take commands and content; answer with one write."""
        self.buffer += data
        answers = []
        while self.buffer:
            if self.in_data:
                content, dot, rest = (b"\r\n" + self.buffer).partition(END)
                if not dot:
                    break
                self.buffer, self.in_data = rest, False
                self.figures["DSNs"] += 1
                self.notified.update(each.decode() for each in RECIPIENT.findall(content))
                answers.append(b"250 2.0.0 Ok\r\n")
            else:
                line, feed, rest = self.buffer.partition(b"\r\n")
                if not feed:
                    break
                self.buffer = rest
                answers.append(self._command(line))
        self.transport.write(b"".join(answers))
        if answers and answers[-1].startswith(b"221"):
            self.transport.close()

    def _command(self, line: bytes) -> bytes:
        verb = line[:4].upper()
        if verb == b"EHLO":
            return b"250-hop.test\r\n250-PIPELINING\r\n250-8BITMIME\r\n250 SIZE 1000000\r\n"
        if verb == b"RCPT" and f"@{FLOOD}>".encode() in line:
            self.figures["refused"] += 1
            return b"550 5.1.1 No such user\r\n"
        if verb == b"RCPT":
            self.accepts = True
        if verb == b"MAIL":
            self.accepts = False
        if verb == b"DATA":
            if not self.accepts:
                return b"503 5.5.1 RCPT first\r\n"
            self.in_data = True
            return b"354 Go on\r\n"
        return b"221 2.0.0 Bye\r\n" if verb == b"QUIT" else b"250 2.0.0 Ok\r\n"


class Flood:
    """Sends forged mail over a few sessions, at a steady rate."""

    def __init__(self, port: int, messages: int, seconds: float) -> None:
        self.port, self.messages, self.seconds = port, messages, seconds
        self.next = 0
        self.accepted = 0
        self.reasons: set[str] = set()

    async def run(self) -> None:
        """Send all of it."""
        self._began = time.monotonic()
        await asyncio.gather(*(self._session(place) for place in range(SESSIONS)))
        say(**{"is": "sent"}, accepted=self.accepted, reasons=sorted(self.reasons)[:3],
            seconds=time.monotonic() - self._began)  # fmt: skip

    async def _session(self, place: int) -> None:
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", self.port, local_addr=(f"127.0.1.{1 + place}", 0)
        )
        with contextlib.suppress(ConnectionError, EOFError):
            await self._reply(reader)
            writer.write(b"EHLO forger.test\r\n")
            await self._reply(reader)
            while self.next < self.messages:
                number = self.next
                self.next += 1
                due = self._began + number * self.seconds / self.messages
                await asyncio.sleep(max(0.0, due - time.monotonic()))
                await self._send(reader, writer, number)
        writer.close()

    async def _send(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int
    ) -> None:
        sender = forged_sender(number)
        content = f"From: <{sender}>\r\nSubject: forged {number}\r\n\r\n{'buy ' * 100}\r\n"
        envelope = f"MAIL FROM:<{sender}>\r\nRCPT TO:<u{number}@{FLOOD}>\r\nDATA\r\n"
        writer.write(envelope.encode())
        codes = [await self._reply(reader) for _ in range(3)]
        if codes[2] != "354":
            self.reasons.add(" ".join(codes))
            writer.write(b"RSET\r\n")
            await self._reply(reader)
            return
        writer.write(content.encode() + b".\r\n")
        code = await self._reply(reader)
        self.accepted += code == "250"
        if code != "250":
            self.reasons.add(code)

    async def _reply(self, reader: asyncio.StreamReader) -> str:
        while (line := await reader.readuntil(b"\r\n"))[3:4] == b"-":
            pass
        return line[:3].decode()


def main() -> None:
    """Serve the hop; "go": send. Argument: JSON with port, messages and seconds."""
    config = json.loads(sys.argv[1])
    notified: Counter[str] = Counter()
    figures: Counter[str] = Counter()
    loop = uvloop.new_event_loop()
    tasks: set[asyncio.Task[None]] = set()

    def command(word: str) -> None:
        if word.startswith("go"):
            flood = Flood(int(word.partition(":")[2]), config["messages"], config["seconds"])
            tasks.add(loop.create_task(flood.run()))
        elif word == "report":
            doubled = sum(times > 1 for times in notified.values())
            say(**{"is": "report"}, **figures, notified=len(notified), doubled=doubled)

    listener = socket.create_server(("127.0.0.1", 0))
    loop.run_until_complete(
        loop.create_server(lambda: Hop(notified, figures), sock=listener, backlog=1024)
    )
    listen(loop, command)
    say(**{"is": "ready"}, port=listener.getsockname()[1])
    with contextlib.suppress(KeyboardInterrupt):
        loop.run_forever()


if __name__ == "__main__":
    main()

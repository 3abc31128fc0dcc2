"""The next hop: an SMTP server that compares every message with the sent one."""

import asyncio
import json
import socket
import ssl
import sys
from collections.abc import Callable
from pathlib import Path
from typing import cast

import uvloop
from stringzilla import find

from bench.certificate import make_certificate
from bench.corpus import Corpus, Plan
from bench.helper import listen, say
from bench.ledger import Bounces, Ledger
from pgmta.service import tune_memory

END_OF_DATA = b"\r\n.\r\n"
EHLO = (
    b"250-sink.bench.test\r\n250-PIPELINING\r\n250-SIZE 104857600\r\n250-8BITMIME\r\n"
    b"250-ENHANCEDSTATUSCODES\r\n250 SMTPUTF8\r\n"
)


class Session(asyncio.Protocol):
    """One connection from the product."""

    def __init__(self, ledger: Ledger, tls: ssl.SSLContext | None = None) -> None:
        self.ledger = ledger
        self.tls = tls
        self.encrypted = False
        self.buffer = bytearray()
        self.in_data = False
        self.searched = 0
        self.sender: bytes | None = None
        self.recipients: list[bytes] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Greet. (uvloop sets TCP_NODELAY itself.)"""
        self.transport = cast(asyncio.Transport, transport)
        if self.encrypted:  # the handshake makes the same connection anew
            return
        self._say(b"220 sink.bench.test ESMTP\r\n")
        ledger = self.ledger
        ledger.connections += 1
        ledger.open += 1
        ledger.peak = max(ledger.peak, ledger.open)

    def connection_lost(self, exc: Exception | None) -> None:
        """Note the end."""
        self.ledger.open -= 1

    def data_received(self, data: bytes) -> None:
        """Take all complete commands and messages; answer with one write."""
        buffer = self.buffer
        buffer += data
        answers: list[bytes] = []
        while buffer:
            if self.in_data:
                if not self._message(answers):
                    break
                continue
            eol = buffer.find(b"\r\n")
            if eol < 0:
                break
            line = bytes(buffer[:eol])
            del buffer[: eol + 2]
            answers.append(self._command(line))
        if answers:
            self._say(b"".join(answers))
        if self.transport.is_closing():
            buffer.clear()

    def _say(self, answer: bytes) -> None:
        self.transport.write(answer)

    def _starttls(self) -> bytes:
        """Answer at once and begin the handshake; nothing is read before."""
        assert self.tls
        self.transport.pause_reading()
        self.encrypted = True
        self.handshake = asyncio.ensure_future(self._encrypt(self.tls))
        return b"220 2.0.0 Go on\r\n"

    async def _encrypt(self, tls: ssl.SSLContext) -> None:
        loop = asyncio.get_running_loop()
        try:
            transport = await loop.start_tls(self.transport, self, tls, server_side=True)
        except (OSError, ssl.SSLError) as error:
            self.ledger.fault("protocol error", f"TLS handshake: {error}")
            return
        self.transport = cast(asyncio.Transport, transport)

    def _message(self, answers: list[bytes]) -> bool:
        buffer = self.buffer
        if buffer.startswith(b".\r\n"):
            content, taken = b"", 3
        else:
            end = find(buffer, END_OF_DATA, self.searched)
            if end < 0:
                self.searched = max(0, len(buffer) - len(END_OF_DATA) + 1)
                return False
            with memoryview(buffer) as view:
                content, taken = bytes(view[: end + 2]), end + len(END_OF_DATA)
        del buffer[:taken]
        self.in_data = False
        self.ledger.store(self.sender or b"", self.recipients, content)
        self.sender, self.recipients = None, []
        answers.append(b"250 2.0.0 Ok\r\n")
        return True

    def _command(self, line: bytes) -> bytes:
        verb = line[:4].upper()
        answer = b"250 2.0.0 Ok\r\n"
        if verb == b"RCPT":
            if self.sender is None:
                return b"503 5.5.1 MAIL first\r\n"
            address = address_of(line)
            if self.sender and (refusal := self.ledger.refusal(address)):
                return refusal
            self.recipients.append(address)
        elif verb == b"MAIL":
            if self.sender is not None:
                self.ledger.fault("protocol error", "nested MAIL")
                return b"503 5.5.1 nested MAIL\r\n"
            self.sender = address_of(line)
        elif verb == b"DATA":
            if not self.recipients:
                return b"503 5.5.1 RCPT first\r\n"
            self.in_data, self.searched = True, 0
            answer = b"354 Go on\r\n"
        elif verb == b"EHLO":
            answer = EHLO
            if self.tls and not self.encrypted:
                answer = answer.replace(b"250-SIZE", b"250-STARTTLS\r\n250-SIZE")
        elif verb == b"STAR" and self.tls and not self.encrypted:
            answer = self._starttls()
        elif verb in (b"RSET", b"HELO"):
            self.sender, self.recipients = None, []
        elif verb == b"QUIT":
            asyncio.get_running_loop().call_soon(self.transport.close)
            answer = b"221 2.0.0 Bye\r\n"
        elif verb != b"NOOP":
            self.ledger.fault("protocol error", repr(line[:100]))
            answer = b"500 5.5.2 What?\r\n"
        return answer


def server_context(directory: Path) -> ssl.SSLContext:
    """Return a TLS context with a new self-signed certificate."""
    certificate, key = make_certificate(directory, "sink")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    return context


def address_of(line: bytes) -> bytes:
    """Return what stands between the angle brackets."""
    return line[line.find(b"<") + 1 : line.find(b">")]


def serve(
    loop: asyncio.AbstractEventLoop,
    session: Callable[[], asyncio.Protocol],
    command: Callable[[str], None],
) -> None:
    """Serve on a free port of 127.0.0.1 until standard input ends; it gives the command words."""
    listener = socket.create_server(("127.0.0.1", 0))
    loop.run_until_complete(loop.create_server(session, sock=listener, backlog=1024))
    listen(loop, command)
    tune_memory()
    say(**{"is": "ready"}, port=listener.getsockname()[1])
    loop.run_forever()


def main() -> None:
    """Serve until standard input ends; argument: JSON with plan, directory and traces."""
    config = json.loads(sys.argv[1])
    plan = Plan(**config["plan"])
    kind = Bounces if config.get("refuse") else Ledger
    ledger = kind(Corpus(plan), config["traces"])
    directory = Path(config["directory"])
    loop = uvloop.new_event_loop()
    tls = server_context(directory) if config.get("starttls") else None

    def command(word: str) -> None:
        if word == "report":
            (directory / "seen").write_bytes(ledger.seen)
            (directory / "arrived").write_bytes(ledger.arrived.tobytes())
            names = "received distinct transactions connections peak first last wrong samples"
            say(**{"is": "report"}, **{name: getattr(ledger, name) for name in names.split()})

    def status(before: int = -1) -> None:
        if ledger.received != before:
            say(received=ledger.received, distinct=ledger.distinct, last=ledger.last)
        loop.call_later(0.1, status, ledger.received)

    loop.call_soon(status)
    serve(loop, lambda: Session(ledger, tls), command)


if __name__ == "__main__":
    main()

"""A next hop that writes down each MAIL and each message at once, by the monotonic clock."""

import asyncio
import json
import os
import socket
import sys
import time
from typing import cast

import uvloop

from bench.helper import be_another_host, listen, say
from bench.ledger import Ledger
from bench.sink import Session, address_of
from pgmta.service import tune_memory

MAIL, MESSAGE = "M", "D"
"""The first word of a line; the others are the time, and the sender or the recipient."""
_DELAY_S = 0.03
"""Before each reply, so that there is always mail whose outcome a lost worker leaves unknown."""


class Lines:
    """Appends a line for each event to a file."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self.connections = self.open = self.peak = 0

    def line(self, word: str, what: str) -> None:
        """Write one."""
        os.write(self._file, f"{word} {time.monotonic():.6f} {what}\n".encode())

    def store(self, sender: bytes, recipients: list[bytes], data: bytes) -> None:
        """Take in one message."""
        for recipient in recipients:
            self.line(MESSAGE, recipient.decode())

    def refusal(self, address: bytes) -> bytes:
        """Refuse no recipient."""
        return b""

    def fault(self, kind: str, detail: str) -> None:
        """Note an error of the protocol."""
        self.line("F", f"{kind}: {detail}")


class NotedSession(Session):
    """One connection from queued."""

    def _say(self, answer: bytes) -> None:
        asyncio.get_running_loop().call_later(_DELAY_S, super()._say, answer)

    def _command(self, line: bytes) -> bytes:
        if line[:4].upper() == b"MAIL":
            cast(Lines, self.ledger).line(MAIL, address_of(line).decode())
        return super()._command(line)


def main() -> None:
    """Serve until standard input ends; argument: JSON with the file and the address."""
    config = json.loads(sys.argv[1])
    be_another_host()
    lines, loop = Lines(config["file"]), uvloop.new_event_loop()
    listener = socket.create_server((config["address"], config["port"]))
    ledger = cast(Ledger, lines)
    loop.run_until_complete(
        loop.create_server(lambda: NotedSession(ledger), sock=listener, backlog=1024)
    )
    listen(loop, lambda word: None)
    tune_memory()
    say(**{"is": "ready"})
    loop.run_forever()


if __name__ == "__main__":
    main()

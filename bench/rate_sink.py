"""A next hop on all addresses that notes time and sender of each MAIL, by the monotonic clock."""

import json
import socket
import sys
import time
from pathlib import Path
from typing import cast

import uvloop

from bench.helper import be_another_host, listen, say
from bench.ledger import Ledger
from bench.sink import Session, address_of
from pgmta.service import tune_memory


class Times:
    """When mail began; nothing is compared."""

    def __init__(self) -> None:
        self.connections = self.open = self.peak = 0
        self.begun: list[tuple[float, str]] = []
        self.faults: list[str] = []

    def store(self, sender: bytes, recipients: list[bytes], data: bytes) -> None:
        """Take in one message."""

    def refusal(self, address: bytes) -> bytes:
        """Refuse no recipient."""
        return b""

    def fault(self, kind: str, detail: str) -> None:
        """Note an error of the protocol."""
        self.faults.append(f"{kind}: {detail}")


class TimedSession(Session):
    """One connection from the product."""

    def _command(self, line: bytes) -> bytes:
        if line[:4].upper() == b"MAIL":
            begun = time.monotonic(), address_of(line).decode()
            self.ledger.begun.append(begun)  # type: ignore[attr-defined]
        return super()._command(line)


def main() -> None:
    """Serve until standard input ends; argument: JSON with the file of the times."""
    config = json.loads(sys.argv[1])
    be_another_host()
    times, loop = Times(), uvloop.new_event_loop()

    def command(word: str) -> None:
        Path(config["file"]).write_text(json.dumps(times.begun))
        say(**{"is": word}, number=len(times.begun), connections=times.peak, faults=times.faults)

    listener = socket.create_server(("", 0))
    ledger = cast(Ledger, times)
    serving = loop.create_server(lambda: TimedSession(ledger), sock=listener, backlog=1024)
    loop.run_until_complete(serving)
    listen(loop, command)
    tune_memory()
    say(**{"is": "ready"}, port=listener.getsockname()[1])
    loop.run_forever()


if __name__ == "__main__":
    main()

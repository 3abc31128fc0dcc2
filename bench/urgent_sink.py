"""The next hop beside a backlog: counts bulk mail and may hang for it, times urgent mail."""

import asyncio
import json
import sys
import time
from typing import cast

import uvloop

from bench import ledger, sink
from bench.helper import say


class Tally:
    """The arrived mail: recipients b1@… are bulk mail, u1@… are urgent; the numbers begin at 0."""

    def __init__(self, rows: int) -> None:
        self.seen = bytearray(rows)
        self.bulk = 0
        self.twice = 0
        self.urgent: dict[str, list[float]] = {}
        self.faults: list[str] = []
        self.hanging = False
        self.held: list[asyncio.Transport] = []
        self.connections = self.open = self.peak = 0

    def fault(self, kind: str, detail: str) -> None:
        """Keep what went wrong."""
        self.faults.append(f"{kind}: {detail}")

    def refusal(self, address: bytes) -> bytes:
        """Take every recipient."""
        return b""

    def store(self, sender: bytes, recipients: list[bytes], data: bytes) -> None:
        """Take in one message."""
        for address in recipients:
            local = address.partition(b"@")[0]
            if local[:1] == b"u":
                self.urgent.setdefault(local[1:].decode(), []).append(time.monotonic())
            else:
                number = int(local[1:])
                self.bulk += not self.seen[number]
                self.twice += self.seen[number]
                self.seen[number] = 1

    def release(self) -> None:
        """Answer what hangs."""
        self.hanging = False
        for transport in self.held:
            transport.write(b"250 2.0.0 Ok\r\n")
        self.held.clear()


class Session(sink.Session):
    """One connection; while the sink hangs it does not answer the final dot of bulk mail."""

    def __init__(self, tally: Tally) -> None:
        super().__init__(cast(ledger.Ledger, tally))
        self.tally = tally

    def _message(self, answers: list[bytes]) -> bool:
        bulk = not self.recipients or self.recipients[0][:1] == b"b"
        taken = super()._message(answers)
        if taken and bulk and self.tally.hanging:
            answers.pop()
            self.tally.held.append(self.transport)
        return taken


def main() -> None:
    """Serve until standard input ends; argument: JSON with the number of rows."""
    tally = Tally(json.loads(sys.argv[1])["rows"])
    loop = uvloop.new_event_loop()

    def command(word: str) -> None:
        if word == "hang":
            tally.hanging = True
        elif word == "release":
            tally.release()
        elif word == "report":
            say(**{"is": "report"}, at=time.monotonic(), bulk=tally.bulk, twice=tally.twice,
                held=len(tally.held), urgent=tally.urgent, faults=tally.faults[:5])  # fmt: skip

    sink.serve(loop, lambda: Session(tally), command)


if __name__ == "__main__":
    main()

"""The next hop of bench/campaign: it notes when mail for each recipient begins and arrives.

It refuses each REFUSED-th recipient of the campaign until it gets the command `take`. Its command
`report` writes the times to files.
"""

import json
import sys
import time
from array import array
from pathlib import Path
from typing import Any, cast

import uvloop

from bench.helper import say
from bench.ledger import Ledger
from bench.sink import Session, serve

REFUSED = 500
REFUSAL = b"550 5.7.1 Not now\r\n"
FILES = {"begun": "d", "arrived": "d", "copies": "B", "singles": "d", "refused": "B"}
"""The files of a report, and the types of their arrays.

`begun` has the time of the last MAIL of each recipient. `arrived` has the times of all mail of the
campaign, in order. `singles` has that of each single mail.
"""


class Arrivals:
    """The mail of a campaign, to r1@…, r2@… …, and single mail, to t0@…, t1@… …"""

    def __init__(self, recipients: int, singles: int) -> None:
        self.connections = self.open = self.peak = self.octets = 0
        self.refuses = True
        self.faults: list[str] = []
        self.begin = 0.0  # of the last MAIL that was read, which is that of the next RCPT
        self.begun = array("d", bytes(8 * (recipients + 1)))
        self.copies = bytearray(recipients + 1)
        self.refused = bytearray(recipients + 1)
        self.arrived = array("d")
        self.singles = array("d", bytes(8 * singles))

    def refusal(self, address: bytes) -> bytes:
        """Return the reply that refuses a recipient, or nothing if it is taken."""
        if address[:1] != b"r":
            return b""
        number = number_of(address)
        self.begun[number] = self.begin
        if not self.refuses or number % REFUSED:
            return b""
        self.refused[number] += 1
        return REFUSAL

    def store(self, sender: bytes, recipients: list[bytes], data: bytes) -> None:
        """Take in one message."""
        now = time.monotonic()
        for address in recipients:
            number = number_of(address)
            if address[:1] == b"t":
                self.singles[number] = now
                continue
            self.copies[number] += 1
            self.arrived.append(now)
            self.octets += len(data)
            if b"Dear N%d," % number not in data:
                self.faults.append(f"mail to {address!r} has the words of another one")

    def fault(self, kind: str, detail: str) -> None:
        """Note an error of the protocol."""
        self.faults.append(f"{kind}: {detail}")


def number_of(address: bytes) -> int:
    """Return the number of a recipient."""
    return int(address[1 : address.index(b"@")])


class ArrivalSession(Session):
    """One connection from the product."""

    def _command(self, line: bytes) -> bytes:
        if line[:4].upper() == b"MAIL":
            cast(Any, self.ledger).begin = time.monotonic()
        return super()._command(line)


def main() -> None:
    """Serve until standard input ends; argument: JSON with recipients, singles and directory."""
    config = json.loads(sys.argv[1])
    arrivals, loop = Arrivals(config["recipients"], config["singles"]), uvloop.new_event_loop()
    directory = Path(config["directory"])

    def command(word: str) -> None:
        if word == "take":
            arrivals.refuses = False
        if word == "report":
            for name in FILES:
                (directory / name).write_bytes(bytes(getattr(arrivals, name)))
        octets = arrivals.octets / max(1, len(arrivals.arrived))
        say(**{"is": word}, octets=octets, peak=arrivals.peak, faults=arrivals.faults[:3])

    serve(loop, lambda: ArrivalSession(cast(Ledger, arrivals)), command)


if __name__ == "__main__":
    main()

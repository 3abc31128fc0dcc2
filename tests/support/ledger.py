"""The sent mail, the replies to the client, and the arrived mail, octet for octet."""

from __future__ import annotations

import random
import re
import threading
from collections import Counter

from tests.support.nexthop import Do, Script, Transaction, as_usual
from tests.support.submit import Client

_ID = re.compile(rb"^X-Id: (\d+)\r\n", re.MULTILINE)
SENT = 0
"""The code of a mail whose final dot may have gone out, and whose reply was lost."""
NOT_SENT = -1
"""The code of a mail whose final dot has not gone out."""


class Ledger:
    """All mail of one run. A mail's number decides its content, so that nothing is kept of it."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._lock = threading.Lock()
        self._last = 0
        self.codes: dict[int, int] = {}
        """The reply to the client for each mail."""
        self.recipients: dict[int, list[str]] = {}
        self.arrived: Counter[str] = Counter()
        """How often each recipient got its mail, so far as the next hop knows."""
        self.altered: list[str] = []

    def content(self, number: int) -> bytes:
        """Most are small, some are stored in chunks, a few are written ahead of their message."""
        chance = random.Random(f"{self._seed} {number}")
        least, most = chance.choices(
            [(100, 3000), (9_000, 60_000), (600_000, 1_500_000)], [80, 15, 5]
        )[0]
        digits = chance.randbytes(chance.randint(least, most) // 2).hex().encode()
        width = chance.randint(30, 76)
        lines = [b"X-Id: %d" % number, b"Subject: random faults", b""]
        lines += [digits[start : start + width] for start in range(0, len(digits), width)]
        lines[4::7] = [b"." + line for line in lines[4::7]]
        return b"\r\n".join([*lines, b""])

    def begin(self, domains: list[str]) -> tuple[int, list[str]]:
        """A new mail: its number and its recipients."""
        with self._lock:
            self._last += 1
            number = self._last
            self.recipients[number] = [f"m{number}@{domain}" for domain in domains]
            return number, self.recipients[number]

    def send(self, client: Client, domains: list[str]) -> int:
        """Send a new mail and note what comes of it. Raises what ends the session."""
        number, recipients = self.begin(domains)
        content = self.content(number)
        self.codes[number] = NOT_SENT
        client.begin("sender@example.org", recipients)
        self.codes[number] = SENT
        self.codes[number] = client.finish(content).code
        return number

    def recorder(self, script: Script = as_usual) -> Script:
        """A script that does what `script` says, and notes what the hop keeps."""

        def record(point: str, line: str, transaction: Transaction | None) -> Do | None:
            do = script(point, line, transaction)
            if point == "end of data" and transaction and (not do or (do.line or "2")[0] == "2"):
                self._arrived(transaction)
            return do

        return record

    def _arrived(self, transaction: Transaction) -> None:
        content, transaction.content = transaction.content or b"", b""
        found = _ID.search(content)
        number = int(found[1]) if found else 0
        want = self.content(number)
        trace, there = content[: -len(want)], content[-len(want) :]
        if there != want or not trace.startswith(b"Received: ") or b"\r\n\r\n" in trace:
            self.altered.append(f"{transaction.recipients}: {content[:200]!r}")
        with self._lock:
            for recipient in transaction.recipients:
                if recipient not in self.recipients.get(number, []):
                    self.altered.append(f"{recipient} got mail {number}")
                self.arrived[recipient] += 1


class Sender(threading.Thread):
    """Sends one mail after the other until `stop` is set, with a new session if one breaks."""

    def __init__(self, ledger: Ledger, port: int, seed: str, domains: list[str]) -> None:
        super().__init__(name=seed, daemon=True)
        self._ledger = ledger
        self._port = port
        self._chance = random.Random(seed)
        self._domains = domains
        self.enough = threading.Event()
        self.start()

    def run(self) -> None:
        """Until `enough`."""
        while not self.enough.is_set():
            try:
                with Client(self._port) as client:
                    for _ in range(self._chance.randint(1, 50)):
                        number = self._chance.randint(1, len(self._domains))
                        domains = self._chance.sample(self._domains, number)
                        self._ledger.send(client, domains)
                        if self.enough.wait(self._chance.uniform(0, 0.05)):
                            return
            except (OSError, AssertionError, ValueError):  # AssertionError: refused before the dot
                self.enough.wait(0.05)

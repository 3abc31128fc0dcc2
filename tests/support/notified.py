"""The DSNs that a next hop has got, and the failed recipients that they name."""

from __future__ import annotations

import email
import random
import threading
from collections import Counter, defaultdict

from tests.support.nexthop import Do, Script, Transaction

SENDER, POSTMASTER = "sender{}@senders.example", "postmaster@senders.example"
BAD, GOOD = "bad{}.{}@hop.example", "good{}.{}@hop.example"
DEAF = "deaf{}@senders.example"
"""A sender whose own mail is refused: the postmaster is notified that the DSN failed."""


class Notified:
    """A next hop's script: `bad` recipients are refused, DSNs are taken and noted.

    Some replies are temporary, and some connections break after the final dot.
    """

    def __init__(self, seed: int) -> None:
        self._chance = random.Random(seed)
        self._lock = threading.Lock()
        self.copies: Counter[tuple[str, str]] = Counter()
        """How often each DSN came: by recipient and Message-ID."""
        self.named: dict[tuple[str, str], list[str]] = {}
        """The failed recipients that a DSN names."""
        self.problems: list[str] = []
        self._of: dict[str, set[str]] = defaultdict(set)

    @property
    def script(self) -> Script:
        """The script."""
        return self._say

    def of(self, address: str) -> dict[str, list[str]]:
        """Return the failed recipients by Message-ID of the DSNs to an address."""
        return {number: self.named[address, number] for number in self._of[address]}

    def _say(self, point: str, line: str, transaction: Transaction | None) -> Do | None:
        if point == "RCPT":
            local = line[line.index("<") + 1 :]
            with self._lock:
                later = self._chance.random() < 0.02
            if later:
                return Do(line="451 4.3.0 Not now")
            if local.startswith(("bad", "deaf")):
                return Do(line="550 5.1.1 No such user")
        if point == "end of data" and transaction:
            with self._lock:
                fate = self._chance.random()
                if fate < 0.02:
                    return Do(line="451 4.3.0 Not now")
                self._note(transaction)
                transaction.content = b""  # there may be many
                return Do(drop=True) if fate < 0.04 else None
        return None

    def _note(self, transaction: Transaction) -> None:
        if transaction.sender:
            return
        dsn = email.message_from_bytes(transaction.content or b"")
        names = [
            str(block["Final-Recipient"]).partition(";")[2].strip()
            for part in dsn.walk()
            if part.get_content_type() == "message/delivery-status"
            for block in part.get_payload()
            if isinstance(block, email.message.Message) and block["Final-Recipient"]
        ]
        if not names or dsn["Auto-Submitted"] is None:
            self.problems.append(f"no DSN, to {transaction.recipients}: {dsn.as_string()[:500]}")
        for recipient in transaction.recipients:
            key = recipient, str(dsn["Message-ID"])
            self.copies[key] += 1
            self._of[recipient].add(key[1])
            if self.named.setdefault(key, names) != names:
                self.problems.append(f"{key} names {self.named[key]}, and then {names}")


def doubled(named: dict[tuple[str, str], list[str]]) -> dict[str, list[str]]:
    """Return the failed recipients that more than one DSN names, with the Message-IDs."""
    found: dict[str, list[str]] = defaultdict(list)
    for (_, message_id), names in named.items():
        for name in names:
            found[name].append(message_id)
    return {name: ids for name, ids in found.items() if len(ids) > 1}

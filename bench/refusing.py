"""A next hop that refuses all recipients of mail with a sender, and takes DSNs."""

import re
import time

from bench.corpus import Corpus
from bench.ledger import Ledger

REFUSAL = b"550 5.1.1 <%s>: user unknown\r\n"
FAILED = re.compile(rb"^Final-Recipient: rfc822; ?([^\r\n]+)\r\nAction: failed\r\n", re.M | re.I)
FAILED_BEFORE = re.compile(
    rb"^Final-Recipient: rfc822; ?([^\r\n]+)\r\n(?:(?:Original-Recipient|X-)[^\r\n]*\r\n)+"
    rb"Action: failed\r\n",
    re.M | re.I,
)
PLACE = re.compile(rb"r\d+\.(\d+)@")


class Bounces(Ledger):
    """The failed recipients that DSNs named: a counter for each, as for arrived mail."""

    def __init__(self, corpus: Corpus, traces: int) -> None:
        super().__init__(corpus, traces)
        self.refused = 0

    def refusal(self, address: bytes) -> bytes:
        """Return the reply to RCPT."""
        self.refused += 1
        return REFUSAL % address

    def store(self, sender: bytes, recipients: list[bytes], data: bytes) -> None:
        """Take in one DSN: it has the null reverse-path, and goes to the sender of each message."""
        now = time.monotonic()
        self.transactions += 1
        if sender:
            self.fault("mail with a sender", repr(data[:200]))
            return
        failed = FAILED.findall(data) or FAILED_BEFORE.findall(data)
        if not failed:
            self.fault("no failed recipient", repr(data[:200]))
        for address in failed:
            match = PLACE.match(address)
            n = int(match[1]) if match else self.messages
            if n >= self.messages:
                self.fault("wrong recipient", repr(address))
                continue
            if recipients != [self.corpus.sender(n)]:
                self.fault("wrong sender", f"the DSN of message {n} went to {recipients!r}")
            self._count(n, address)
            self.arrived[n] = self.last = now
            if not self.first:
                self.first = now

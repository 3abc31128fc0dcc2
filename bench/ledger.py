"""The ledger of the next hop: it compares arrived messages with the sent ones."""

import re
import time
from array import array

from bench.corpus import Corpus, unstuff

RECEIVED = re.compile(rb"Received:[^\r\n]*\r\n(?:[ \t][^\r\n]*\r\n)*", re.IGNORECASE)
SIGNATURE = re.compile(rb"DKIM-Signature:[^\r\n]*\r\n(?:[ \t][^\r\n]*\r\n)*")
MAX_SAMPLES = 5
REFUSAL = (
    b"550 5.7.1 <%s>: refused\r\n"  # not 5.1.1: nobody is suppressed, so the next burst comes too
)
FAILED = re.compile(rb"^Final-Recipient: rfc822; ?([^\r\n]+)\r\nAction: failed\r\n", re.M | re.I)
FAILED_BEFORE = re.compile(
    rb"^Final-Recipient: rfc822; ?([^\r\n]+)\r\n(?:(?:Original-Recipient|X-)[^\r\n]*\r\n)+"
    rb"Action: failed\r\n",
    re.M | re.I,
)
RECIPIENT_NUMBER = re.compile(rb"r\d+\.(\d+)@")

SIGNED_TRACES = 2
"""Signed mail has so many trace fields."""


class Ledger:
    """The arrived mail: a counter for each (message, recipient), and the problems."""

    def __init__(self, corpus: Corpus, traces: int) -> None:
        plan = corpus.plan
        self.corpus = corpus
        self.traces = traces
        self.per = plan.recipients
        self.messages = plan.messages
        self.seen = bytearray(plan.messages * plan.recipients)
        self.arrived = array("d", bytes(8 * plan.messages))
        self.received = 0
        self.distinct = 0
        self.transactions = 0
        self.connections = 0
        self.open = 0
        self.peak = 0
        self.first = 0.0
        self.last = 0.0
        self.wrong: dict[str, int] = {}
        self.samples: list[str] = []

    def fault(self, kind: str, detail: str) -> None:
        """Count something wrong and keep the first few."""
        self.wrong[kind] = self.wrong.get(kind, 0) + 1
        if self.wrong[kind] <= MAX_SAMPLES:
            self.samples.append(f"{kind}: {detail}")

    def store(self, sender: bytes, recipients: list[bytes], data: bytes) -> None:
        """Take in one message as it came over the wire."""
        now = time.monotonic()
        corpus = self.corpus
        self.transactions += 1
        at = data.find(corpus.prefix, 0, 8192)
        number = data[at + len(corpus.prefix) : data.find(b"\r\n", at)]
        if at < 0 or not number.isdigit():
            self.fault("foreign message", repr(data[:200]))
            return
        n = int(number)
        if n >= self.messages:
            self.fault("foreign message", f"number {n}")
            return
        self._trace(n, data[:at])
        content = data[at:]
        if not corpus.is_wire(n, content) and unstuff(content) != corpus.as_sent(n):
            self.fault("altered content", f"message {n}")
        if sender != corpus.sender(n):
            self.fault("wrong sender", f"message {n}: {sender!r}")
        for address in recipients:
            self._count(n, address)
        self.arrived[n] = self.last = now
        if not self.first:
            self.first = now

    def refusal(self, address: bytes) -> bytes:
        """Return the reply that refuses a recipient, or nothing if it is taken."""
        return b""

    def _trace(self, n: int, trace: bytes) -> None:
        """Check the text before the message: one Received field, and one signature if asked for."""
        if self.traces == SIGNED_TRACES:
            trace, number = SIGNATURE.subn(b"", trace)
            if number != 1:
                self.fault("not signed", f"message {n}: {number} signatures")
        good = RECEIVED.fullmatch(trace) if self.traces else not trace
        if not good:
            self.fault("wrong trace header", f"message {n}: {trace[:300]!r}")

    def _count(self, n: int, address: bytes) -> None:
        index = address[1:].partition(b".")[0]
        i = int(index) if index.isdigit() else self.per
        if i >= self.per or address != self.corpus.recipient(n, i):
            self.fault("wrong recipient", f"message {n}: {address!r}")
            return
        self.received += 1
        place = n * self.per + i
        before = self.seen[place]
        if not before:
            self.distinct += 1
        self.seen[place] = min(before + 1, 255)


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
            match = RECIPIENT_NUMBER.match(address)
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

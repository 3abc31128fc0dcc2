"""The messages of a bench run: everything about message n follows from n alone."""

import base64
import random
from dataclasses import asdict, dataclass, field
from typing import Any

MAX_POOL_BODIES = 64
MAX_POOL_OCTETS = 64_000_000  # of bodies in memory, so that large ones fit
LINE_OCTETS = 76
ID_HEADER = b"X-Bench-Id: "


def make_body(seed: int, size: int) -> bytes:
    """Return size bytes of CRLF text that hardly compresses, some lines starting with dots."""
    source = random.Random(seed)
    lines: list[bytes] = []
    length = 0
    while length < size:
        line = base64.b64encode(source.randbytes(LINE_OCTETS * 3 // 4))
        turn = len(lines) % 16
        if turn == 5:
            line = b"." + line[1:]
        elif turn == 11:
            line = b".." + line[2:]
        elif turn == 14:
            line = b"."
        lines.append(line)
        length += len(line) + 2
    text = b"\r\n".join(lines)[: size - 2]
    if text.endswith(b"\r"):
        text = text[:-1] + b"x"
    return text + b"\r\n"


def stuff(content: bytes) -> bytes:
    """Double the dot at the start of every line that has one."""
    stuffed = content.replace(b"\r\n.", b"\r\n..")
    return b"." + stuffed if content.startswith(b".") else stuffed


def unstuff(content: bytes) -> bytes:
    """Take one dot away from every line that starts with one."""
    plain = content.replace(b"\r\n.", b"\r\n")
    return plain[1:] if content.startswith(b".") else plain


@dataclass(frozen=True)
class Plan:
    """The mail of a run: source and sink get it as JSON, so that both know every message."""

    run: str
    messages: int
    size: int
    recipients: int
    domains: int

    def as_dict(self) -> dict[str, Any]:
        """Return the fields, for JSON."""
        return asdict(self)


@dataclass
class Corpus:
    """All messages of one plan; bodies come from a pool made once."""

    plan: Plan
    pool: int = field(init=False)
    plain: list[bytes] = field(init=False)
    wire: list[bytes] = field(init=False)

    def __post_init__(self) -> None:
        self.pool = max(2, min(MAX_POOL_BODIES, MAX_POOL_OCTETS // self.plan.size))
        self.plain = [make_body(seed, self.plan.size) for seed in range(self.pool)]
        self.wire = [stuff(body) for body in self.plain]
        self.prefix = ID_HEADER + self.plan.run.encode() + b"-"
        self.head_format = (
            self.prefix.replace(b"%", b"%%")
            + b"%d\r\n"
            + b"From: Bench <%s>\r\n"
            + b"To: undisclosed-recipients:;\r\n"
            + b"Subject: Bench message %d\r\n"
            + b"Date: Thu, 01 Jan 2026 00:00:00 +0000\r\n"
            + b"Message-ID: <"
            + self.plan.run.encode()
            + b".%d@bench.test>\r\n"
            + b"MIME-Version: 1.0\r\n"
            + b"Content-Type: text/plain; charset=us-ascii\r\n\r\n"
        )

    def sender(self, n: int) -> bytes:
        """Return the envelope sender of message n."""
        return b"s%d@from.bench.test" % (n % 1000)

    def recipient(self, n: int, i: int) -> bytes:
        """Return envelope recipient i of message n."""
        return b"r%d.%d@d%d.bench.test" % (i, n, n % self.plan.domains)

    def head(self, n: int) -> bytes:
        """Return the header of message n, with the empty line; no line starts with a dot."""
        return self.head_format % (n, self.sender(n), n, n)

    def on_wire(self, n: int) -> bytes:
        """Return message n as the octets between DATA and the final dot."""
        return self.head(n) + self.wire[n % self.pool]

    def is_wire(self, n: int, content: bytes) -> bool:
        """Return whether the content is message n on the wire, without composing the message."""
        head, body = self.head(n), self.wire[n % self.pool]
        return (
            len(content) == len(head) + len(body)
            and content.startswith(head)
            and content.endswith(body)
        )

    def as_sent(self, n: int) -> bytes:
        """Return the content of message n."""
        return self.head(n) + self.plain[n % self.pool]

"""Mail in, the same mail out: every recipient once, every octet as it was."""

from __future__ import annotations

import random
import re
from collections import Counter, defaultdict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pytest

from pgmta.model import CHUNK_OCTETS, PART_OCTETS
from tests.support.daemons import Smtpd
from tests.support.nexthop import Transaction
from tests.support.submit import queue_id
from tests.support.system import System

MESSAGES = 300
SESSIONS = 6
CALM = 20  # messages sent one after the other, before all at once
TRACE = re.compile(
    rb"Received: from client\.example \(\[127\.0\.0\.1\]\)\r\n"
    rb"\tby relay\.example \(pgmta\) with ESMTP id (\d+);\r\n\t[^\r\n]+\r\n"
)
HEADER = b"From: <a@example.org>\r\nSubject: =?utf-8?q?f=C3=BCr?=\r\n"
CURIOSITIES = [
    b"",
    b"\r\n",
    b".\r\n",
    b"..\r\n.\r\n...\r\n",
    HEADER,
    HEADER + b"\r\n",
    HEADER + b"\r\n.\r\n.\r\n..\r\n. \r\n.a\r\n",
    b"no header at all\r\n",
    b" begins like a folded line\r\n\r\nbody\r\n",
    HEADER + b"\r\n" + bytes(range(128, 256)) + b"\r\n",
    HEADER + b"\r\n" + bytes(set(range(256)) - {10, 13}) + b"\r\n",
    HEADER + b"\r\n" + b"x" * 70_000 + b"\r\n" + b"." * 70_000 + b"\r\n",
    HEADER + b"\r\nbare\rCR and bare\nLF inside\r\r\n\n lines\n\r\n\r\r\n",
    HEADER + b"\r\nMAIL FROM:<x@example.org>\r\nDATA\r\nQUIT\r\n",
    b"Received: from elsewhere\r\n\tby there; now\r\n" + HEADER + b"\r\nwith a trace before\r\n",
    b"From a@example.org Mon Jan  1\r\n" + HEADER + b"\r\n>From here\r\n",
]


@dataclass
class Mail:
    """One message of the corpus."""

    sender: str
    recipients: list[str]
    content: bytes


def text(source: random.Random, size: int) -> bytes:
    """Lines of all lengths, many with dots, some with 8-bit octets; exactly `size` octets."""
    lines, length = [HEADER], len(HEADER)
    while length < size:
        line = source.randbytes(source.choice([0, 1, 40, 76, 76, 998])).translate(TABLE)
        lines.append(source.choice([b"", b"", b".", b".."]) + line + b"\r\n")
        length += len(lines[-1])
    return b"".join(lines)[: size - 3].rstrip(b"\r\n").ljust(size - 2, b".") + b"\r\n"


TABLE = bytes(b if b not in (10, 13) else 46 for b in range(256))


def corpus() -> list[Mail]:
    """The curiosities, ordinary mail of 1 KB to 100 KB, some of 1 MB, one over 3 MB."""
    source = random.Random(7)
    contents = list(CURIOSITIES)
    edges = [CHUNK_OCTETS, 2 * CHUNK_OCTETS, 1 << 17, PART_OCTETS, 2 * PART_OCTETS]
    contents += [text(source, edge + n) for edge in edges for n in (-1, 0, 1)]
    contents += [text(source, 3_500_000)]
    while len(contents) < MESSAGES:
        contents.append(text(source, source.choice([1_000, 1_000, 4_000, 20_000, 100_000])))
    source.shuffle(contents)
    return [
        Mail(
            f"s{n}@example.org" if n % 10 else "",
            [f"r{n}.{i}@d{i % 3}.example" for i in range(source.randint(1, 5))],
            content,
        )
        for n, content in enumerate(contents)
    ]


def test_chunks_of_earlier_versions_are_delivered(system: System) -> None:
    """They have 1 MiB each."""
    hop = system.hop()
    content = text(random.Random(8), 2_500_000)
    chunks = [content[start : start + (1 << 20)] for start in range(0, len(content), 1 << 20)]
    number = system.enqueue("r@hop.example", content=content)
    for position, chunk in enumerate(chunks):
        insert = "INSERT INTO message_chunks (message_id, position, data) VALUES (%s, %s, %s)"
        system.ask(insert, number, position, chunk)
    system.ask("UPDATE messages SET body = '', chunks = %s", len(chunks))
    system.queued(hop)
    (transaction,) = hop.wait_kept(1)
    assert transaction.content == b"Received: by test\r\n" + content
    system.wait_empty()


def submit(smtpd: Smtpd, mails: list[Mail]) -> list[int]:
    """Send all mails in one session; return the message ids."""
    with smtpd.connect() as client:
        return [queue_id(client.send(m.sender, m.recipients, m.content)) for m in mails]


def check_contents(transactions: list[Transaction], mails: list[Mail], ids: dict[str, int]) -> None:
    by_recipient = {r: mail for mail in mails for r in mail.recipients}
    for transaction in transactions:
        mail = by_recipient[transaction.recipients[0]]
        assert transaction.sender == mail.sender
        # with a backlog, a claim may leave some recipients of a message to the next one
        assert set(transaction.recipients) <= set(mail.recipients)
        assert transaction.content is not None
        assert transaction.content.endswith(mail.content)
        trace = transaction.content[: len(transaction.content) - len(mail.content)]
        match = TRACE.fullmatch(trace)
        assert match, trace
        assert int(match[1]) == ids[mail.recipients[0]]


@pytest.mark.slow
def test_all_mail_arrives_once_and_unchanged(system: System) -> None:
    hop = system.hop()
    smtpd = system.smtpd(processes=2)
    system.queued(hop, delivery={"idle": "60s"})
    mails = corpus()
    shares = [[mail] for mail in mails[:CALM]]
    results = []
    for share in shares:
        results.append(submit(smtpd, share))
        hop.wait_kept(len(results))
    # one next hop: one transaction for all recipients of a message
    assert [sorted(t.recipients) for t in hop.kept] == [sorted(m.recipients) for m in mails[:CALM]]
    shares += [mails[CALM + n :: SESSIONS] for n in range(SESSIONS)]
    with ThreadPoolExecutor(SESSIONS) as pool:
        results += pool.map(lambda share: submit(smtpd, share), shares[CALM:])
    ids = {
        recipient: queue_id
        for share, found in zip(shares, results, strict=True)
        for mail, queue_id in zip(share, found, strict=True)
        for recipient in mail.recipients
    }
    assert len(set(ids.values())) == MESSAGES
    hop.wait_kept(MESSAGES)
    system.wait_empty()
    assert hop.deliveries() == Counter(list(ids))
    check_contents(hop.kept, mails, ids)
    assert hop.connections <= 20 < len(hop.kept)
    outcomes: dict[str, list[str]] = defaultdict(list)
    for attempt in system.attempts():
        outcomes[attempt["recipient"]].append(attempt["event"])
        assert attempt["message_id"] == ids[attempt["recipient"]]
    assert dict(outcomes) == {recipient: ["delivered"] for recipient in ids}

"""Odd content that has to arrive octet for octet through servers that keep what they get."""

from __future__ import annotations

import random

_HEAD = (
    "From: Sender <sender@example.org>\r\nTo: user{number}@{domain}\r\n"
    "Subject: odd body {number}\r\nDate: Sun, 22 Nov 2026 12:00:00 +0000\r\n"
    "Message-ID: <odd.{number}@example.org>\r\n"
)
_EIGHT = (
    "MIME-Version: 1.0\r\nContent-Type: text/plain; charset=utf-8\r\n"
    "Content-Transfer-Encoding: 8bit\r\n"
)
COUNT = 200


def _bodies(chance: random.Random) -> list[bytes]:
    """Return bodies that a server may alter, and random ones."""
    dots = [b".", b"..", b"...", b". ", b" .", b".\t", b".x", b"x.", b".-", b"..x"]
    ends = [b"", b"\r\n", b"\r\n\r\n", b"\r\n" * 20]
    bodies = [b"", b"\r\n", b"\r\n\r\n", b"x", b"x\r\n", b"\r\nx", b" \r\n", b"\t\r\n \r\n"]
    bodies += [dot + end for dot in dots for end in ends]
    bodies += [b"before\r\n" + dot + b"\r\nafter\r\n" for dot in dots]
    bodies += [b"\r\n".join(dots * number) for number in (2, 9, 100)]
    bodies += [b"x" * length for length in (76, 77, 78, 79, 80, 512, 996, 997, 998)]
    bodies += [b"." * length + b"\r\n" for length in (2, 79, 511, 996)]
    bodies += [b"From someone\r\n>From other\r\n", b">" * 60, b"-- \r\nme\r\n", b"=\r\n=20=\r\n"]
    bodies += [b"DATA\r\nQUIT\r\nRSET\r\n", b"250 2.0.0 Ok\r\n354\r\n", b"begin 644 x\r\nend\r\n"]
    bodies += ["Grüße, naïve façade\r\n".encode(), "日本語\r\n".encode() * 30, b"\xff\xfe\x80\r\n"]
    bodies += [bytes(range(32, 127)), bytes(range(128, 256)), b"\x01\x02\x07\x08\x0b\x0c\x1b\x7f"]
    bodies += [b" trailing \t \r\n" * 5, b"\t\tleading\r\n", b"a\r\n b\r\n\tc\r\n"]
    # about the sizes of buffers
    bodies += [b"y" * 70 + b"\r\n.." for _ in range(2)]
    for size in (4096, 8192, 16384, 65536):
        line = b"." + b"z" * 61 + b"\r\n"
        for over in (-2, -1, 0, 1):
            whole = line * (size // len(line) + 1)
            bodies.append(whole[: size + over].rstrip(b"\r\n"))
    while len(bodies) < COUNT:
        lines = [
            bytes(chance.choice(b"..  .xyz\t\xe4=") for _ in range(chance.randrange(90)))
            for _ in range(chance.randrange(1, 200))
        ]
        bodies.append(b"\r\n".join(lines))
    return bodies[:COUNT]


def messages(domain: str) -> dict[str, bytes]:
    """Return 200 messages by recipient, the same ones each time."""
    found = {}
    for number, body in enumerate(_bodies(random.Random(13))):
        head = _HEAD.format(number=number, domain=domain)
        if any(octet > 127 for octet in body):
            head += _EIGHT
        found[f"user{number}@{domain}"] = head.encode() + b"\r\n" + body
    return found

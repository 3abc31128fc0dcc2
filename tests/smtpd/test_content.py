"""Content on the wire: out through the DotStuffer, in through Collector and Inspector."""

from __future__ import annotations

import random
import re
from itertools import pairwise

import pytest
import stringzilla
from hypothesis import example, given
from hypothesis import strategies as st

from queued.delivery.envelope import DotStuffer
from smtpd.content import Collector, Inspector

CRLF = b"\r\n"

pieces_of = st.sampled_from(
    [b"\r", b"\n", b".", b"\r\n", b"\r\n.", b"a", b"Received: b", b"\x00\xff"]
)
noisy = st.lists(pieces_of, max_size=30).map(b"".join)
clean = st.lists(
    st.sampled_from([b"\r\n", b"\r\n.", b".", b"a", b" ", b"\xc3\xa9", b"--"]), max_size=30
).map(b"".join)
cuts = st.lists(st.integers(0, 200), max_size=25)


def split(data: bytes, at: list[int]) -> list[bytes]:
    """The data as the network may deliver it."""
    edges = sorted({0, len(data), *(n for n in at if n < len(data))})
    return [data[a:b] for a, b in pairwise(edges)] or [b""]


def complete(content: bytes) -> bytes:
    """What a receiver has of content that lacks its last CRLF."""
    return content if not content or content.endswith(CRLF) else content + CRLF


def stuffed(content: bytes, at: list[int]) -> bytes:
    """The wire form, made piece by piece."""
    stuffer = DotStuffer()
    return b"".join([stuffer.feed(piece) for piece in split(content, at)]) + stuffer.end()


def naive_wire(content: bytes) -> bytes:
    """The wire form by the words of RFC 5321, section 4.5.2, over whole lines."""
    lines = complete(content).split(CRLF)
    return CRLF.join(b"." + line if line[:1] == b"." else line for line in lines) + b".\r\n"


def receive(wire: bytes, at: list[int], mode: str) -> tuple[bytes, bytes, Inspector]:
    """Content and rest as smtpd's read loop takes them; what is read after the end joins rest."""
    collector, inspector = Collector(), Inspector(mode)
    content, late = b"", b""
    for piece in split(wire, at):
        if collector.done:
            late += piece
            continue
        part = collector.feed(piece)
        inspector.see(part, collector.dotted)
        content += part
    assert collector.done
    inspector.end()
    return content, collector.rest + late, inspector


@given(noisy, noisy, cuts, cuts)
@example(b"", b"MAIL FROM:<a@b>\r\n", [], [1, 2, 3])
@example(b".", b".\r\n", [], [1, 2, 3, 4, 5, 6, 7])
@example(b"a\r", b"\n.\r\n", [1], [2, 3, 4, 5, 6, 7])
def test_any_content_in_any_pieces_comes_back_exactly(
    content: bytes, rest: bytes, sent: list[int], got: list[int]
) -> None:
    wire = stuffed(content, sent)
    assert wire == naive_wire(content)
    assert receive(wire + rest, got, "guard")[:2] == (complete(content), rest)


def lenient_end(wire: bytes) -> int:
    """Where a receiver for whom CR, LF and CRLF all end a line sees the end of the data.

    It contains every receiver of the smuggling reports: those for LF.LF, CR.CR, LF.CRLF, CRLF.LF.
    """
    found = re.search(rb"(?:^|[\r\n])\.[\r\n]", wire)
    assert found
    return found.end()


@given(noisy, cuts)
@example(b"a\n.\nMAIL", [])
@example(b"a\r.\rMAIL", [1, 2, 3])
@example(b"a\n.\r\nMAIL", [2, 3, 4])
@example(b"a\r\n.\nMAIL", [])
@example(b"a\r\n.\rMAIL", [2, 3, 4, 5])
@example(b"a\n.", [1, 2])
@example(b".\n", [])
def test_guard_flags_exactly_what_ends_early_for_a_lenient_receiver(
    content: bytes, got: list[int]
) -> None:
    received, _, inspector = receive(stuffed(content, []), got, "guard")
    onward = stuffed(received, [])
    # the last dot counts with its CR: len - 1
    assert bool(inspector.problem) == (lenient_end(onward) < len(onward) - 1)


@given(noisy, clean, cuts)
def test_strict_flags_every_bare_newline_and_neither_mode_any_clean_text(
    content: bytes, text: bytes, got: list[int]
) -> None:
    strict = receive(stuffed(content, []), got, "reject")
    assert bool(strict[2].problem) == bool(re.search(rb"[\r\n]", strict[0].replace(CRLF, b"")))
    for mode in ("guard", "reject"):
        assert receive(stuffed(text, []), got, mode)[2].problem == ""


@pytest.mark.parametrize(
    ("content", "hops"),
    [
        (b"", 0),
        (b"Subject: x\r\n\r\nReceived: quoted\r\n", 0),
        (b"Received: a\r\n\tby b\r\nReceived : c\r\nRECEIVED:d\r\nX-Received: e\r\n\r\n", 2),
        (b"received: a\r\nReceived: b\r\n", 2),
        (b"Received: a\r\n" * 30_000 + b"\r\n", (1 << 18) // 13 + 1),
    ],
)
def test_hops_are_the_received_fields_of_the_header(content: bytes, hops: int) -> None:
    for at in ([], [1, 7, 50, 51, 52]):
        assert receive(stuffed(content, []), at, "guard")[2].hops >= hops
        assert hops > 1000 or receive(stuffed(content, []), at, "guard")[2].hops == hops


@pytest.mark.parametrize("kinds", [(kind,) for kind in stringzilla.__capabilities__] + [()])
def test_searching_is_exact(kinds: tuple[str, ...]) -> None:
    """The library has code for each kind of processor: all of it has to do what bytes does."""
    needles = [b"\r\n.\r\n", b"\r\n.", b"\n.", b"\r.", b"\n.\r", b"\r\n", b"\r", b"\n"]
    noise = random.Random(1)
    pool = b"".join(noise.choices([b"\r\n.\r\n", b"\r\n.", b"\r", b"\n", b".", b"a" * 9], k=3000))
    pool += b"x" * 500 + pool[:500]
    if kinds:
        stringzilla.reset_capabilities(kinds)
    try:
        for _ in range(2000):
            start = noise.randrange(len(pool))
            data = pool[start : start + int(noise.paretovariate(0.4))]
            for needle in needles:
                assert stringzilla.find(data, needle) == data.find(needle)
                assert stringzilla.count(data, needle) == data.count(needle)
                assert b"|".join(stringzilla.split(data, needle)) == data.replace(needle, b"|")
    finally:
        stringzilla.reset_capabilities(stringzilla.__capabilities__)

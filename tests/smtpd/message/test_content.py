"""Content on the wire: out through the DotStuffer, in through EndOfData."""

from __future__ import annotations

import random
import re
from functools import partial
from itertools import pairwise
from typing import Any, cast

import pytest
import stringzilla
from hypothesis import example, given
from hypothesis import strategies as st

from pgmta.config.metadata_source import MetadataSource
from pgmta.intake.content import Content, State
from pgmta.intake.metadata_rules import MessageOrigin, MetadataRules
from pgmta.mail.header import MAX_HEADER_OCTETS, header_block, hops
from pgmta.mail.newlines import Mode
from pgmta.model import CHUNK_OCTETS
from queued.delivery.smtp.final_dot import DotStuffer
from smtpd.config import SmtpdConfig
from smtpd.message.end_of_data import EndOfData
from smtpd.message.incoming import IncomingMessage

CRLF = b"\r\n"
TABLE = bytes(octet in b"\r." for octet in range(256))

fragments = st.sampled_from(
    [b"\r", b"\n", b".", b"\r\n", b"\r\n.", b"a", b"Received: b", b"\x00", b"\xff"]
)
noisy = st.lists(fragments, max_size=30).map(b"".join)
clean = st.lists(
    st.sampled_from([b"\r\n", b"\r\n.", b".", b"a", b" ", b"\xc3\xa9", b"--"]), max_size=30
).map(b"".join)
cuts = st.lists(st.integers(0, 200), max_size=25)


def split(data: bytes, at: list[int]) -> list[bytes]:
    """The data as the network may deliver it."""
    edges = sorted({0, len(data), *(n for n in at if n < len(data))})
    return [data[a:b] for a, b in pairwise(edges)] or [b""]


def complete(content: bytes) -> bytes:
    """The content that a receiver has if the last CRLF was missing."""
    return content if not content or content.endswith(CRLF) else content + CRLF


def stuffed(content: bytes, at: list[int]) -> bytes:
    """The wire form, made part by part."""
    stuffer = DotStuffer()
    return b"".join([stuffer.feed(buffer) for buffer in split(content, at)]) + stuffer.end()


def naive_wire(content: bytes) -> bytes:
    """The wire form by the words of RFC 5321, section 4.5.2, over whole lines."""
    lines = complete(content).split(CRLF)
    return CRLF.join(b"." + line if line[:1] == b"." else line for line in lines) + b".\r\n"


def receive(wire: bytes, at: list[int], mode: Mode) -> tuple[bytes, bytes, str]:
    """Content, rest and problem as a session takes them; octets after the end join the rest."""
    end = EndOfData(mode)
    content, late = b"", b""
    for buffer in split(wire, at):
        if end.done:
            late += buffer
        else:
            content += end.feed(buffer)
    assert end.done
    return content, (end.rest or b"") + late, end.guard.problem


@given(noisy, noisy, cuts, cuts)
@example(b"", b"MAIL FROM:<a@b>\r\n", [], [1, 2, 3])
@example(b".", b".\r\n", [], [1, 2, 3, 4, 5, 6, 7])
@example(b"a\r", b"\n.\r\n", [1], [2, 3, 4, 5, 6, 7])
def test_any_content_in_any_buffers_comes_back_exactly(
    content: bytes, rest: bytes, sent: list[int], got: list[int]
) -> None:
    wire = stuffed(content, sent)
    assert wire == naive_wire(content)
    assert receive(wire + rest, got, "guard")[:2] == (complete(content), rest)


def lenient_end(wire: bytes) -> int:
    """Where a receiver for whom CR, LF and CRLF all end a line sees the end of the data.

    It contains every receiver of the smuggling reports: those for LF.LF, CR.CR, LF.CRLF, CRLF.LF,
    and those that drop NULs.
    """
    found = re.search(rb"(?:^|[\r\n])\0*\.\0*[\r\n]", wire)
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
@example(b"a\r\n\0.\r\nMAIL", [])
@example(b"a\r\0\n.\r\nMAIL", [3, 4])
@example(b"a\n\0.\0\nMAIL", [2, 3, 4, 5])
@example(b"a\r\n" + b"\0" * 99 + b"." + b"\0" * 99 + b"\rMAIL", [3, 50, 102, 103, 150])
@example(b"\0.", [])
@example(b"a\r\n.\0\r\nMAIL", [])
def test_guard_flags_exactly_what_ends_early_for_a_lenient_receiver(
    content: bytes, got: list[int]
) -> None:
    received, _, problem = receive(stuffed(content, []), got, "guard")
    onward = stuffed(received, [])
    # the last dot counts with its CR: len - 1
    assert bool(problem) == (lenient_end(onward) < len(onward) - 1)


@given(noisy, clean, cuts)
@example(b"a\r\n\0.\r\nMAIL", b"", [4])
def test_strict_flags_every_bare_newline_and_neither_mode_any_clean_text(
    content: bytes, text: bytes, got: list[int]
) -> None:
    strict = receive(stuffed(content, []), got, "reject")
    bare = re.search(rb"[\r\n]", strict[0].replace(CRLF, b""))
    smuggled = receive(stuffed(content, []), got, "guard")[2]
    assert bool(strict[2]) == (bool(bare) or bool(smuggled))
    modes: tuple[Mode, Mode] = ("guard", "reject")
    for mode in modes:
        assert receive(stuffed(text, []), got, mode)[2] == ""


@pytest.mark.parametrize(
    ("content", "number"),
    [
        (b"", 0),
        (b"Subject: x\r\n\r\nReceived: quoted\r\n", 0),
        (b"Received: a\r\n\tby b\r\nReceived : c\r\nRECEIVED:d\r\nX-Received: e\r\n\r\n", 2),
        (b"received: a\r\nReceived: b\r\n", 2),
        (b"Received: a\r\n" * 30_000 + b"\r\n", (1 << 16) // 13),
        (b"\r\nReceived: a body without header\r\n", 0),
        (b" \r\nReceived: a\r\n\r\n", 0),
        (b"Hello\r\nReceived: a\r\n\r\n", 0),
        (b"Received: a\r\n b\r\nno field\r\nReceived: a\r\n\r\n", 1),
        (b">From a@b Mon\r\nReceived: a\r\n\r\n", 1),
        (b"Received: a\nReceived: b\n\nReceived: c\n\r\n", 2),
    ],
)
def test_hops_are_the_received_fields_of_the_header(content: bytes, number: int) -> None:
    for at in ([], [1, 7, 50, 51, 52]):
        found = hops(header_block(receive(stuffed(content, []), at, "guard")[0]))
        assert found >= number
        assert number > 1000 or found == number


@given(noisy, cuts)
def test_nothing_depends_on_the_cuts(content: bytes, got: list[int]) -> None:
    wire = stuffed(content, [])
    assert receive(wire, got, "guard") == receive(wire, [], "guard")
    assert complete(content).startswith(header_block(complete(content)))


@given(st.lists(st.integers(1, 3000), min_size=1, max_size=60), st.sampled_from([0, 4000, 20_000]))
async def test_the_header_is_that_of_the_whole_message(sizes: list[int], ahead: int) -> None:
    """Also if the beginning of the message has been written ahead, chunk by chunk."""
    lines = b"".join(b"A: " + b"x" * size + CRLF for size in sizes)
    content = lines + CRLF + b"B: no header" + CRLF
    incoming = IncomingMessage(SmtpdConfig(), cast(Any, Committed()), EndOfData("guard"))
    wire = stuffed(content, [])
    while wire:
        incoming.feed_octets(wire[: ahead or len(wire)])
        wire = wire[ahead or len(wire) :]
        if ahead and incoming.content.collected >= CHUNK_OCTETS:
            await incoming.store(CHUNK_OCTETS)
    assert incoming.finish() == ""
    assert incoming.header() == header_block(content)
    assert len(incoming.header()) == min(len(lines), MAX_HEADER_OCTETS)


def test_a_header_in_small_buffers_costs_no_more_than_its_length() -> None:
    """Octets that are looked at, not time: no octet may be looked at again with the next ones."""
    seen = 0

    class Counted(bytes):
        def __radd__(self, other: bytes) -> Counted:
            nonlocal seen
            seen += len(self) + len(other)
            return Counted(other + bytes(self))

        def __add__(self, other: object) -> Counted:
            nonlocal seen
            assert isinstance(other, bytes)
            seen += len(self) + len(other)
            return Counted(bytes(self) + bytes(other))

    incoming = IncomingMessage(SmtpdConfig(), cast(Any, Committed()), EndOfData("guard"))
    for _ in range(3000):
        incoming.feed_octets(Counted(b"A: " + b"x" * 95 + b"\r\n"))
    incoming.feed_octets(b".\r\n")
    assert incoming.finish() == ""
    assert len(incoming.header()) == 1 << 16
    assert seen < 4 * 3000 * 100


class Committed:
    """A committer whose database takes everything."""

    def __init__(self) -> None:
        self.chunks = self
        self.ids = self
        self.available: list[int] = []

    async def take_id(self) -> int:
        return 1

    async def write_part(self, content: Content, octets: bytes) -> None:
        content.state = State.WRITING
        content.chunks += len(octets) // CHUNK_OCTETS
        content.state = State.WRITTEN

    def drop_chunks(self, content: Content) -> None:
        pass


def test_a_body_without_header_gives_no_metadata() -> None:
    rules = {"tenant": MetadataSource.model_validate({"from": "header:X-Tenant"})}
    for start, rows in ((b"X-Tenant: 7", ['{"tenant": "7"}']), (b"\r\nX-Tenant: 7", ["{}"])):
        content = receive(stuffed(start + CRLF, []), [], "guard")[0]
        origin = MessageOrigin("", "", "", "", partial(header_block, content))
        assert MetadataRules(rules).row_metadata(origin, [("a@b.example", "b.example")]) == rows


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
                assert stringzilla.translate(data, TABLE) == data.translate(TABLE)
                assert b"|".join(stringzilla.split(data, needle)) == data.replace(needle, b"|")
    finally:
        stringzilla.reset_capabilities(stringzilla.__capabilities__)

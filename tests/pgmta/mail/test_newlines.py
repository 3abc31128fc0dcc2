"""A text that lenient servers understand as the end of data never leaves the relay."""

from __future__ import annotations

import re
from itertools import pairwise

from hypothesis import example, given, settings
from hypothesis import strategies as st

from pgmta.mail.newlines import NewlineGuard, check
from queued.delivery.smtp.final_dot import DotStuffer

octets = st.lists(st.sampled_from([b"\r", b"\n", b"\0", b".", b"a"]), max_size=40).map(b"".join)
lines = st.lists(st.sampled_from([b"\r\n.", b"\n.", b"\r\n", b"\n", b"a"]), max_size=12).map(
    b"".join
)
cuts = st.lists(st.integers(0, 40), max_size=12)


def cut_up(content: bytes, at: list[int]) -> list[bytes]:
    edges = sorted({0, len(content), *(n for n in at if n < len(content))})
    return [content[a:b] for a, b in pairwise(edges)]


def wire(content: bytes, at: list[int]) -> bytes:
    stuffer = DotStuffer()
    return b"".join(stuffer.feed(buffer) for buffer in cut_up(content, at)) + stuffer.end()


def lone_dots(stream: bytes) -> int:
    """Lines of one dot for who drops NULs, and for whom CR, LF and CRLF all end a line."""
    return re.split(rb"\r\n|\r|\n", stream.replace(b"\0", b"")).count(b".")


@settings(max_examples=300)
@given(octets | lines, cuts, cuts)
@example(b"a\r\n\0.\r\n", [], [])
@example(b"a\r\0\n.\r\n", [], [])
@example(b"a\n\0.\0\n", [], [])
@example(b"a\n.", [], [])
@example(b"\r\n.\n.\n", [], [])
@example(b"a\n.b\r\n.\r\n.\r\n", [], [])
@example(b"a\r\n.\r\n", [], [2])
@example(b"\0\0\0.", [], [])
@example(b"a\r\n" + b"\0" * 20 + b"." + b"\0" * 9 + b"\r", [], [2, 9, 17, 25])
def test_what_the_guard_passes_ends_once_for_every_receiver(
    content: bytes, sent: list[int], seen: list[int]
) -> None:
    guard = NewlineGuard("guard")
    for buffer in cut_up(content, seen):
        guard.see(buffer)
    guard.check_end()
    # and what it refuses would end early
    assert bool(guard.problem) == (lone_dots(wire(content, sent)) > 1)
    assert guard.problem == check(content, "guard")


@given(octets, cuts)
@example(b"\r\n", [1])
@example(b"a\r", [1])
@example(b"\n", [])
def test_reject_finds_every_bare_newline(content: bytes, seen: list[int]) -> None:
    guard = NewlineGuard("reject")
    for buffer in cut_up(content, seen):
        guard.see(buffer)
    guard.check_end()
    bare = re.search(rb"[\r\n]", content.replace(b"\r\n", b""))
    assert bool(guard.problem) == (bool(bare) or bool(check(content, "guard")))

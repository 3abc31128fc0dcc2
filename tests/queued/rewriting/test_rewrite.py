"""Rewriting: which octets of a header change, and which never do."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pgmta.model import Item
from queued.config import ShapingRewrite
from queued.config.address_map import AddressMap, problems
from queued.outgoing.rewrite_stage import RewrittenStream
from queued.rewriting.rewrite import BCC_ONLY, BCC_OR_END, BEGINS_WITH_BCC, InternalHosts, Rewriting

NOW = datetime(2026, 11, 23, 12, tzinfo=UTC)
MAP = {
    "root@host.internal": "admin@example.com",
    "@host.internal": "@example.com",
    "@*.lan": "@example.com",
    '"two words"@a.example': "one@a.example",
    "all@a.example": "@b.example",
    "@old.example": "new@b.example",
    "joe@b.example": "josef@c.example",
    "@bücher.example": "@books.example",
}


def rewriting(**keys: Any) -> Rewriting:
    return Rewriting(ShapingRewrite.model_validate(keys))


ALL = rewriting(
    **{
        "from": MAP,
        "from_fields": ["From", "Sender", "Reply-To"],
        "to": MAP,
        "remove": ["X-Internal-*", "User-Agent"],
        "remove_received": ["10.0.0.0/8", "fd00::/8", "host.internal", "*.lan"],
    }
)


def has_bcc(content: bytes) -> bool:
    found = BCC_OR_END(content)
    return bool(BEGINS_WITH_BCC(content) or (found and found.lastindex))


@pytest.mark.parametrize(
    ("header", "left"),
    [
        (b"Bcc: a@a.example\r\nTo: b@b.example\r\n", b"To: b@b.example\r\n"),
        (b"To: b@b.example\r\nBCC : a@a.example,\r\n\tb@b.example\r\n", b"To: b@b.example\r\n"),
        (b"To: b\r\nbcc:\r\nCc: c\r\nResent-Bcc\t: a\r\nResent-To: d\r\n",
         b"To: b\r\nCc: c\r\nResent-To: d\r\n"),
        (b"Bcc: a\r\nBcc: b\r\nbCC: c\r\n", b""),
        (b"X-Bcc: a\r\nAbcc: b\r\nBccc: c\r\nSubject: a\r\n Bcc: b\r\n",) * 2,
        (b"From a@b.example Mon Nov 23\r\nBcc: a\r\n>From x\r\nBcc: b\r\n",
         b"From a@b.example Mon Nov 23\r\n>From x\r\n"),
        (b"A: x\nBcc: a\nB: y\n", b"A: x\nB: y\n"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("body", [b"\r\nBcc: a\r\n\r\nBcc: b", b"\r\n", b""])
def test_bcc_never_leaves(header: bytes, left: bytes, body: bytes) -> None:
    content = header + body
    assert has_bcc(content) == (header != left)
    assert BCC_ONLY.content(content).content == left + body
    assert not (left and has_bcc(left + body))


@pytest.mark.parametrize(
    "content",
    [b"", b"\r\n", b"\r\nBcc: a\r\n", b" Bcc: a\r\nBcc: a\r\n", b"no field\r\nBcc: a\r\n", b"Bcc",
     b"A: b\r\nno field\r\nBcc: a\r\n"],
)  # fmt: skip
def test_bodies_keep_what_looks_like_bcc(content: bytes) -> None:
    assert BCC_ONLY.content(content).content == content


def test_bcc_at_the_end_of_a_message_without_a_last_line_end() -> None:
    assert BCC_ONLY.content(b"A: b\r\nBcc: c").content == b"A: b\r\n"
    assert BCC_ONLY.content(b"Bcc: c\r\n d").content == b""


def test_no_dot_comes_to_stand_behind_a_bare_newline() -> None:
    """The content had a CRLF before the dot, so nothing else would give it a second dot."""
    assert BCC_ONLY.content(b"A: b\nBcc: c\r\n.\r\nMAIL").content == b"A: b\r\n.\r\nMAIL"
    assert BCC_ONLY.content(b"A: b\nBcc: c\r\nBcc: d\r\n.\r\n").content == b"A: b\r\n.\r\n"


@pytest.mark.parametrize(
    ("value", "new"),
    [
        (b"root@host.internal", b"admin@example.com"),
        (b"<ROOT@Host.Internal>", b"<admin@example.com>"),
        (b"joe@host.internal", b"joe@example.com"),
        (b'"Doe, \\"J\\" <x@host.internal>" <joe@host.internal>',
         b'"Doe, \\"J\\" <x@host.internal>" <joe@example.com>'),
        (b"=?utf-8?q?J=C3=B6?= <joe@a.b.lan>,\r\n\tx@y.example (joe@host.internal (a \\)))",
         b"=?utf-8?q?J=C3=B6?= <joe@example.com>,\r\n\tx@y.example (joe@host.internal (a \\)))"),
        (b"Team: joe@host.internal, Ann <ann@host.internal>;, root@host.internal",
         b"Team: joe@example.com, Ann <ann@example.com>;, admin@example.com"),
        (b"undisclosed-recipients:;", None),
        (b"root", None),
        (b"", None),
        (b",, joe@host.internal ,", b",, joe@example.com ,"),
        (b"joe (a) . (b) d @\r\n (c) host . internal (d)", b"joe.d@example.com (a) (b) (c) (d)"),
        (b"<@a.example,@b.example:joe@host.internal>", b"<@a.example,@b.example:joe@example.com>"),
        (b'"two words"@a.example', b"one@a.example"),
        (b'"tw\\o words"@A.example', b"one@a.example"),
        (b"all@a.example", b"all@b.example"),
        (b"any@old.example", b"new@b.example"),
        (b"joe@b.example", b"josef@c.example"),
        (b"J\xc3\xb6 <j\xc3\xb6@host.internal>", b"J\xc3\xb6 <j\xc3\xb6@example.com>"),
        (b"\xff\xfe <\xff@host.internal>", b"\xff\xfe <\xff@example.com>"),
        (b"x@b\xc3\xbccher.example", b"x@books.example"),
        (b"x@xn--bcher-kva.example.", b"x@books.example"),
        (b"root@[10.0.0.1]", None),
        (b"joe@host.internal <joe@host.internal>", b"joe@host.internal <joe@example.com>"),
        (b"a..b.@host.internal", b"a..b.@example.com"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("name", [b"From", b"to", b"CC ", b"Reply-To", b"resent-from"])
def test_addresses_in_fields(name: bytes, value: bytes, new: bytes | None) -> None:
    found = ALL.content(b"%b: %b\r\nX: root@host.internal\r\n" % (name, value))
    assert found.content == b"%b: %b\r\nX: root@host.internal\r\n" % (name, new or value)
    assert found.problems == []


@pytest.mark.parametrize(
    ("value", "new"),
    [
        (b'"joe <joe@host.internal>', None),
        (b"joe@host.internal (joe", None),
        (b"<joe@host.internal", None),
        (b"joe@host.internal>", None),
        (b"joe\\@host.internal", None),
        (b"a@b@host.internal, joe@host.internal", b"a@b@host.internal, joe@example.com"),
        (b"John Doe joe@host.internal", None),
        (b"@host.internal", None),
        (b'joe@"host.internal"', None),
    ],
)
def test_what_is_no_address_stays_and_is_named(value: bytes, new: bytes | None) -> None:
    found = ALL.content(b"From: %b\r\nTo: joe@host.internal\r\n\r\n" % value)
    assert found.content == b"From: %b\r\nTo: joe@example.com\r\n\r\n" % (new or value)
    assert [problem.partition(":")[0].partition(" ")[0] for problem in found.problems] == ["from"]


@pytest.mark.parametrize(
    ("value", "goes"),
    [
        (b"from pc ([10.1.2.3])\r\n\tby mx.example.org (pgmta) with ESMTP id 1; x", True),
        (b"from pc ([192.0.2.1]) by mx.example.org; x", False),
        (b"from [10.0.0.1] (evil.example [192.0.2.1]) by mx.example.org; x", False),
        (b"from host.internal (evil.example [192.0.2.1]) by mx.example.org; x", False),
        (b"from evil.example (host.internal [192.0.2.1]) by mx.example.org; x", True),
        (b"from host.internal by mx.example.org; x", True),
        (b"from [10.0.0.1] (helo=pc) by mx.example.org; x", True),
        (b"from unknown (HELO pc) (10.0.0.1) by mx.example.org; x", True),
        (b"from pc (pc [IPv6:fd00::1] (may be forged))\r\n by mx.example.org; x", True),
        (b"from pc (pc [IPv6:::ffff:10.0.0.1]) by mx.example.org; x", True),
        (b"from pc (pc [192.0.2.1]) by a.LAN. (Postfix) with SMTP; x", True),
        (b"by host.internal (Postfix, from userid 0) id 42; x", True),
        (b"by mx.example.org id host.internal; x", False),
        (b"from (((", False),
        (b"", False),
    ],
)
def test_received_fields_of_internal_hosts(value: bytes, goes: bool) -> None:
    found = ALL.content(b"A: b\r\nReceived: %b\r\nC: d\r\n\r\n" % value).content
    assert found == b"A: b\r\n%bC: d\r\n\r\n" % (b"" if goes else b"Received: %b\r\n" % value)
    assert InternalHosts(["*"]).sent_or_took(value)


def test_fields_go_by_name() -> None:
    content = b"X-Internal-Id: 1\r\nx-INTERNAL-: 2\r\nX-Internal: 3\r\nuser-agent : 4\r\n 5\r\n\r\n"
    assert ALL.content(content).content == b"X-Internal: 3\r\n\r\n"


def test_sender() -> None:
    by_map = rewriting(sender=MAP)
    item = Item(1, 1, "Root@host.internal", "r@b.example", "b.example", 1, NOW, 1)
    assert by_map.sender(item, NOW) == "admin@example.com"
    item.sender = ""
    assert by_map.sender(item, NOW) == ""
    item.sender = "x@host.internal"
    assert by_map.sender(item, NOW) == "x@example.com"
    assert ALL.sender(item, NOW) == "x@host.internal"


def test_maps_that_can_not_be() -> None:
    entries = {
        "a@a.example": "b@a.example", "b@a.example": "a@a.example", "@c.example": "@d.example",
        "@d.example": "@C.example", "@e.example": "@e.example", "x@c.example": "x@c.example",
        "@*.f.example": "@g.f.example", "X@c.EXAMPLE": "y@y.example", "none": "@a.example",
        "@*.": "@a.example", "y@y.example": "*@", '"x y"@a.example': "@*.example",
    }  # fmt: skip
    assert dict(problems(entries)) == {
        "a@a.example": "leads back to itself",
        "b@a.example": "leads back to itself",
        "@c.example": "leads back to itself",
        "@d.example": "leads back to itself",
        "X@c.EXAMPLE": "is the same address as 'x@c.example'",
        "none": "expected an address, @domain or @*.domain: no domain in 'none'",
        "@*.": "expected an address, @domain or @*.domain: malformed domain ''",
        "y@y.example": "expected an address or @domain: malformed domain ''",
        '"x y"@a.example': "expected an address or @domain: malformed domain '*.example'",
    }


WORDS = [
    b"From", b"To", b"Bcc", b"bcc ", b"Resent-Bcc", b"Subject", b"Received", b"X-Internal-A", b"Cc",
    b":", b": ", b"\r\n", b"\r\n\r\n", b"\n", b"\r", b"\r\n ", b"\n\t", b" ", b"<", b">", b"(",
    b")", b'"', b"\\", b",", b";", b"@", b".", b"[", b"]", b"joe@host.internal",
    b"root@host.internal",
    b"x@old.example", b"all@a.example", b"joe@b.example", b"\xc3\xb6", b"\xff", b"\0", b"joe",
    b"host.lan", b"=?utf-8?q?=C3?=", b"from a ([10.0.0.1]) by b", b"From x\r\n", b">From x\r\n",
]  # fmt: skip
contents = st.lists(st.sampled_from(WORDS), max_size=40).map(b"".join)


class Parts:
    def __init__(self, content: bytes, cuts: list[int]) -> None:
        places = sorted({0, len(content), *(cut % (len(content) + 1) for cut in cuts)})
        self.parts = [content[a:b] for a, b in pairwise(places)]

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for part in self.parts:
            yield part


async def streamed(content: bytes, cuts: list[int], by: Rewriting) -> bytes:
    stream = RewrittenStream(Parts(content, cuts), by, 1)
    return b"".join([part async for part in stream])


@given(contents, st.lists(st.integers(0, 1000), max_size=8))
@example(b"Bcc: x\r\nFrom y\r\nBcc: z\r\n", [])
@example(b"To: (\r\n\r\nBcc: z\r\n", [3, 7, 8, 9])
def test_twice_is_once_and_streams_are_like_memory(content: bytes, cuts: list[int]) -> None:
    for each in (ALL, BCC_ONLY):
        once = each.content(content).content
        assert each.content(once).content == once
        assert asyncio.run(streamed(content, cuts, each)) == once
    assert has_bcc(content) or BCC_ONLY.content(content).content == content


KEPT = st.sampled_from(
    [b"Subject: a\r\n b\r\n", b"X:\r\n", b"Date : \xff\r\n", b"Message-ID: <a@b>\r\n"]
)
TOUCHED = st.sampled_from([
    (b"From: joe@host.internal\r\n", b"From: joe@example.com\r\n"),
    (b"tO :\r\n x <root@host.internal>\r\n", b"tO :\r\n x <admin@example.com>\r\n"),
    (b"Bcc: a\r\n b\r\n", b""),
    (b"X-Internal-B: root@host.internal\r\n", b""),
])  # fmt: skip


@given(
    st.lists(st.one_of(KEPT.map(lambda f: (f, f)), TOUCHED), max_size=12),
    st.binary(max_size=60).map(lambda body: b"\r\n" + body),
)
def test_all_other_octets_stay(fields: list[tuple[bytes, bytes]], body: bytes) -> None:
    before = b"".join(old for old, _ in fields) + body
    after = b"".join(new for _, new in fields) + body
    assert ALL.content(before).content == after


def test_a_header_without_end_is_rewritten_up_to_a_limit() -> None:
    field = b"X-Filler: %b\r\n" % (b"x" * 900)
    many = field * ((1 << 20) // len(field) + 10)
    content = b"Bcc: a\r\n" + many + b"Bcc: b\r\n\r\nbody"
    found = ALL.content(content)
    assert found.content == many + b"Bcc: b\r\n\r\nbody"
    assert [re.sub(r":.*", "", each) for each in found.problems] == ["the header is over 1 MB"]
    assert asyncio.run(streamed(content, [500, 1 << 19], ALL)) == found.content


def test_hostile_fields_take_no_long_time() -> None:
    for value in (b"(" * 200_000, b"<" * 200_000, b"a@" * 100_000, b'"' * 200_001, b"a@b," * 50_000,
                  b"\\" * 200_000, b" ." * 100_000, b"(\\" * 100_000, b"a (" * 70_000):  # fmt: skip
        ALL.content(b"To: %b\r\nReceived: from %b\r\n\r\n" % (value, value))


def test_endless_recipients_leave_the_author() -> None:
    """The log names the first field over the limit, and other fields are rewritten."""
    many = b"To: " + b"u@x.example, " * 9_000 + b"u@x.example\r\n"
    found = ALL.content(b"To:  \r\n" + many * 2 + b"From: root@host.internal\r\n\r\n")
    assert found.content == b"To:  \r\n" + many * 2 + b"From: admin@example.com\r\n\r\n"
    assert found.problems == ["to and such fields after it stay: over 128 KB"]


def test_long_chains_and_parents() -> None:
    chain = {f"@d{n}.example": f"@d{n + 1}.example" for n in range(50)}
    found = AddressMap(chain | {"@*.e.example": "@e.example", "@*.x.e.example": "z@e.example"})
    assert found.address("a@d0.example") == "a@d50.example"
    assert found.address("a@b.c.e.example") == "a@e.example"
    assert found.address("a@b.x.e.example") == "z@e.example"
    assert found.address("a@e.example") == "a@e.example"

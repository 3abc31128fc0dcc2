"""Header fields are folded and encoded as RFC 5322 and RFC 2047 want it."""

from __future__ import annotations

import re
from base64 import b64decode
from email.utils import getaddresses
from quopri import decodestring

from hypothesis import given
from hypothesis import strategies as st

from pgmta.compose.header_fields import address_field, own_field, text_field
from tests.support.composing import ODD, field_texts

_WORD = re.compile(r"=\?utf-8\?([qb])\?(\S+?)\?=")


@given(field_texts(), st.sampled_from(["Subject", "X-" + "y" * 40, "Z" * 70]))
def test_encoded_words(text: str, name: str) -> None:
    """Each word is text by itself, and has at most 75 octets; the form is the shorter one."""
    field = text_field(name, text)
    unfolded = field.removesuffix("\r\n").replace("\r\n", "").partition(":")[2]
    words = _WORD.findall(unfolded)
    if not words:
        assert unfolded.removeprefix(" ") == text
        return
    decoded = [
        (b64decode(octets) if form == "b" else decodestring(octets.encode(), header=True)).decode()
        for form, octets in words
    ]
    assert "".join(decoded) == text
    assert all(len(word[0]) <= 75 for word in _WORD.finditer(field))
    quoted = re.sub(r"[^!-~ ]|[=?_]", "===", text.encode().decode("latin-1"))
    other = -(-len(text.encode()) // 3) * 4
    assert {form for form, _ in words} == {"q" if len(quoted) <= other else "b"}


def test_a_thousand_mailboxes() -> None:
    boxes = [(ODD[n % 18].replace("=?", ""), f"user{n}@example.com") for n in range(1000)]
    field = address_field("To", boxes)
    assert field.endswith("\r\n")
    lines = field.removesuffix("\r\n").split("\r\n ")
    assert len(lines) < 1000
    assert max(map(len, lines)) <= 77
    found = getaddresses([field.partition(":")[2].replace("\r\n", "")], strict=False)
    assert [address for _, address in found] == [address for _, address in boxes]


def test_phrases() -> None:
    field = address_field(
        "To", [("Ann", "a@b.c"), ("Bob B.", "b@b.c"), ('O"N\\', "c@b.c"), ("", "d@b.c")]
    )
    assert field == 'To: Ann <a@b.c>, "Bob B." <b@b.c>, "O\\"N\\\\" <c@b.c>, d@b.c\r\n'
    assert address_field("To", [("=?utf-8?q?x?=", "a@b.c")]) == (
        "To: =?utf-8?b?PT91dGYtOD9xP3g/PQ==?= <a@b.c>\r\n"
    )


def test_structured() -> None:
    """It is folded at spaces only; a long URL stays whole, up to the limit of a line."""
    url = f"<https://example.com/{'x' * 900}>"
    assert own_field("List-Unsubscribe", url) == f"List-Unsubscribe: {url}\r\n"
    assert own_field("List-Unsubscribe", f"<mailto:a@b.c>, {url}, {url}") == (
        f"List-Unsubscribe: <mailto:a@b.c>,\r\n {url},\r\n {url}\r\n"
    )
    assert own_field("List-Id", "x" * 997) == f"List-Id:\r\n {'x' * 997}\r\n"
    ids = " ".join(f"<{n}@example.com>" for n in range(20))
    field = own_field("References", f"  {ids} ")
    assert field.replace("\r\n", "") == f"References: {ids}"
    assert max(map(len, field.split("\r\n"))) <= 78

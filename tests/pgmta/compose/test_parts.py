"""Params that were broken by hand are refused with a reason, which has no value in it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgmta.compose.mime import compose_head
from pgmta.compose.parts import Parts, parts_of
from tests.support.composing import IDENTITY, params

FROM = ["", "shop@example.com"]


@pytest.mark.parametrize(
    ("broken", "reason"),
    [
        ([], "params is no object"),
        ({}, "from: it is missing"),
        ({"from": None}, "from: it is missing"),
        ({"from": FROM, "secret-key": 1}, "params: 1 keys are unknown"),
        ({"from": "shop@example.com"}, "from: there is no pair of name and address"),
        ({"from": ["secret"]}, "from: there is no pair of name and address"),
        ({"from": ["secret", 7]}, "from: there is no pair of name and address"),
        ({"from": ["", "secret"]}, "from: an address is malformed"),
        ({"from": ["", "a@b.c>, <secret@b.c"]}, "from: an address is malformed"),
        ({"from": ["", "a@b.c\r\nBcc: secret@b.c"]}, "from: an address is malformed"),
        ({"from": ["secret\n", "a@b.c"]}, "from: a name has a line end"),
        ({"from": FROM, "to": {"secret": 1}}, "to: it is no list of pairs of name and address"),
        ({"from": FROM, "cc": ["secret@b.c"]}, "cc: there is no pair of name and address"),
        ({"from": FROM, "reply_to": [["", ""]]}, "reply_to: an address is malformed"),
        ({"from": FROM, "subject": 7}, "subject: it is no text"),
        ({"from": FROM, "subject": "secret\r\nBcc: x"}, "subject: it has a line end"),
        ({"from": FROM, "subject": "secret\t"}, "subject: it has the control character U+0009"),
        ({"from": FROM, "body": ["secret"]}, "body: it is no text"),
        ({"from": FROM, "html": "secret\udc00"}, "html: it has the lone surrogate U+DC00"),
        ({"from": FROM, "headers": ["secret"]}, "headers: it is no object of names and values"),
        ({"from": FROM, "headers": {"X-A": 7}}, "headers: X-A is no text"),
        ({"from": FROM, "headers": {"X-A": "secret\n"}}, "headers: X-A has a line end"),
        ({"from": FROM, "headers": {"Bcc": "secret"}},
         "headers: Bcc is reserved: pgmta or another mail system writes it"),
        *(({"from": FROM, "headers": {name: "secret"}},
           "headers: a field has no name of letters, digits and '-', at most 70")
          for name in ("X A", "X-A\n", "")),
        *(({"from": FROM, "headers": {name: "secret"}},
           f"headers: {name} is reserved: pgmta or another mail system writes it")
          for name in ("BCC", "Content-Language", "Resent-To")),
        ({"from": FROM, "headers": {"List-Id": "sécret"}},
         "headers: List-Id has to be printable ASCII"),
        ({"from": FROM, "headers": {"List-Id": " "}}, "headers: List-Id is empty"),
        ({"from": FROM, "headers": {"List-Id": "x" * 998}},
         "headers: List-Id has a word of over 997 characters, which fits into no line"),
        ({"from": FROM, "headers": {"X-A": "\x07"}},
         "headers: X-A has the control character U+0007"),
        ({"from": FROM, "headers": {"X-A": "\ud800"}},
         "headers: X-A has the lone surrogate U+D800"),
        ({"from": FROM, "tail": "secret"}, "tail: it is none of related, mixed, both"),
        ({"from": FROM, "tail": ["mixed"]}, "tail: it is none of related, mixed, both"),
        ({"from": FROM, "body": "x", "tail": "both"},
         "tail: it has pictures, and there is no html"),
    ],
)  # fmt: skip
def test_refused(broken: Any, reason: str) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        parts_of(broken)
    assert str(caught.value) == reason


_JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=20)),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=6,
)
_KEYS = ["from", "to", "cc", "reply_to", "subject", "body", "html", "headers", "tail"]


@given(params(), st.dictionaries(st.sampled_from(_KEYS), _JSON, max_size=2))
def test_any_json_is_composed_or_refused(given: dict[str, Any], broken: dict[str, Any]) -> None:
    try:
        parts = parts_of({**given, **broken})
    except ValueError:
        return
    assert compose_head(parts, IDENTITY)


def test_from_the_table() -> None:
    """Keys that are absent, null or empty are one and the same."""
    given = json.loads(json.dumps({"from": FROM, "to": None, "cc": [], "html": None, "tail": ""}))
    assert parts_of(given) == parts_of({"from": FROM}) == Parts(from_=("", "shop@example.com"))

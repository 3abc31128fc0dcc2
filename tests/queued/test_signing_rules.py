"""Who signs: the domain of the field From, and conditions on rows."""

from __future__ import annotations

import pytest

from queued.delivery.signing_rules import from_domain


@pytest.mark.parametrize(
    ("value", "domain"),
    [
        (b"x@A.example", "a.example"),
        (b'"Ann, (of) B" (c (d)) <x@a.example>', "a.example"),
        (b"x@a.example, Bob <y@A.EXAMPLE>", "a.example"),
        (b"x@ (c) a . (d) example", "a.example"),
        ("<x@bücher.example>".encode(), "xn--bcher-kva.example"),
        (b"Team: x@a.example, y@a.example;", "a.example"),
        (b'"x@b.example" <x@a.example>', "a.example"),
        (b"x@a.example, y@b.example", ""),
        (b"x@a.example, y@b@c.example", ""),
        (b"Ann", ""),
        (b"Ann <x@a.example, y@a.example", ""),
        (b"\xff@\xff.example, x@a.example", ""),
        (b"(" * 4_000 + b")" * 4_000 + b"x@a.example", "a.example"),
        (b"(" * 9_000, ""),
        (b"x@a.example" + b" " * 10_000 + b"(c)", ""),
    ],
)
def test_domain_of_from(value: bytes, domain: str) -> None:
    assert from_domain({b"from": [value]}) == domain

"""The rules that say who signs: the domain of From, and conditions on rows."""

from __future__ import annotations

import pytest

from queued.config import Signing
from queued.signing.signing_rules import SigningRules, from_domain
from tests.support.rows import mail


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
        (b" Ann B. <x@A.example> ", "a.example"),
        (b"<x@a.example", ""),
        (b"x@a.example>", ""),
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


def test_domain_of_many_froms_is_not_looked_for() -> None:
    assert from_domain({b"from": [b"x@a.example, y@a.example"] * 100}) == "a.example"
    assert from_domain({b"from": [b"x@a.example, y@a.example"] * 1000}) == ""


@pytest.mark.parametrize(
    ("metadata", "value", "fits"),
    [
        ('{"n": 7}', "7", True),
        ('{"n": 1.50}', "1.50", True),
        ('{"n": true}', "true", True),
        ('{"n": "7"}', "7", True),
        pytest.param('{"n": 7, "m": ' + "1" * 5_000 + "}", "7", True, id="long"),
        pytest.param('{"n": 7, "m": ' + "[" * 200_000, "7", False, id="deep"),
        ('{"n": [7]}', "[7]", False),
        ('{"n": null}', "null", False),
        ("[7]", "7", False),
        (None, "7", False),
    ],
)
def test_condition_on_metadata(metadata: str | None, value: str, fits: bool) -> None:
    config = {"keys": [{"domain": "a.example", "selector": "s", "file": "x"}]}
    rules = SigningRules(Signing.model_validate(config | {"rules": [{"metadata.n": value}]}))
    row = mail("b.example", "s@s.example", metadata=metadata, origin="sql")
    ((found, rows),) = rules.parts([row])
    assert (bool(found), rows) == (fits, [row])


def test_condition_on_tenant_and_priority() -> None:
    config = {"keys": [{"domain": "a.example", "selector": "s", "file": "x"}],
              "rules": [{"tenant": "shop", "priority": ["<=2", 7]}]}  # fmt: skip
    rules = SigningRules(Signing.model_validate(config))
    rows = [
        mail("b.example", "s@s.example", tenant=tenant, priority=priority, origin="sql")
        for tenant, priority in [("shop", 2), ("shop", 3), ("shop", 7), ("", 2)]
    ]
    found = {bool(fitting): each for fitting, each in rules.parts(rows)}
    assert found == {True: [rows[0], rows[2]], False: [rows[1], rows[3]]}


@pytest.mark.parametrize("sender", ["ann@A.example", '"Ann"@a.example', r'"a\nn"@a.example'])
def test_condition_on_each_spelling_of_a_sender(sender: str) -> None:
    never = {"sender": '"ann"@a.example', "sign": "none"}
    config = {"keys": [{"domain": "a.example", "selector": "s", "file": "x"}], "rules": [never, {}]}
    rules = SigningRules(Signing.model_validate(config))
    fields = {b"from": [b"ann@a.example"]}
    assert rules.find(tuple(rules._rules), sender, fields) == (None, "")
    assert rules.find(tuple(rules._rules), "bob@a.example", fields)[1] == "a.example"

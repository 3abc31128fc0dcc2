"""Selections: PostgreSQL and memory agree on every one, and mistakes are named."""

from __future__ import annotations

import json
from typing import Any

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pgmta.mail.address import domain_of
from pgmta.model import Item
from pgmta.selection import Selection, Term, parse
from tests.support.rows import fetch, mail, message, row

NAMES = st.lists(st.sampled_from(["a", "b_c", "bxc", "é", "x%"]), min_size=1, max_size=3).map(
    ".".join
)
ADDRESSES = st.one_of(
    st.just(""),
    st.builds("{}@{}".format, st.sampled_from(["Ann", "b*", "c\\d", "é'", "É\u212aİ"]), NAMES),
)
TEXTS = st.text("aB*%_\\'é1. ", max_size=5)
SCALARS = st.one_of(st.none(), st.booleans(), st.integers(0, 12), TEXTS)
TENANTS = st.sampled_from(["", "shop", "Shop", "42"])
KEYS = ["k", "it's", "%s"]


def patterns(texts: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    """Such a text, with `*` in place of some of it."""

    def cut(text: str, first: int, last: int) -> str:
        return f"{text[:first]}*{text[max(first, len(text) - last) :]}"

    some = st.integers(0, 3)
    return st.one_of(texts, st.builds(cut, texts, some, some), texts.map("*.{}".format))


ROWS = st.fixed_dictionaries({
    "domain": NAMES, "sender": ADDRESSES, "recipient": ADDRESSES, "tenant": TENANTS,
    "priority": st.integers(0, 9), "metadata": st.dictionaries(st.sampled_from(KEYS), SCALARS),
})  # fmt: skip
PRIORITIES = st.one_of(
    st.builds("{}{}".format, st.sampled_from(["", "<=", ">=", "="]), st.integers(0, 9)),
    st.sampled_from(["0..3", "<4", ">4"]),
)
PARSED = st.fixed_dictionaries({}, optional={
    "domain": st.lists(patterns(NAMES), max_size=3),
    "sender": st.lists(st.one_of(patterns(ADDRESSES), NAMES.map("*@{}".format)), max_size=3),
    "recipient": st.lists(patterns(ADDRESSES), max_size=3),
    "tenant": st.lists(patterns(TENANTS), max_size=3),
    "priority": st.lists(PRIORITIES, max_size=3),
    "metadata": st.lists(
        st.builds("{}={}".format, st.sampled_from(KEYS), patterns(TEXTS)), max_size=3
    ),
})  # fmt: skip
CONFIGURED = st.lists(
    st.one_of(
        st.builds(Term, st.sampled_from(["sender", "tenant", "metadata.k"]), st.lists(TEXTS)),
        st.builds(Term.of, st.just("sender_domain"), st.lists(patterns(NAMES))),
    ),
    max_size=3,
).map(lambda terms: Selection.every(*terms))
SELECTIONS = st.one_of(CONFIGURED, PARSED.map(lambda texts: parse(**texts)))


@pytest.mark.slow
@settings(max_examples=300, deadline=None,
          suppress_health_check=[HealthCheck.function_scoped_fixture])  # fmt: skip
@given(st.lists(ROWS, min_size=1, max_size=6), st.lists(SELECTIONS, min_size=1, max_size=4))
def test_postgresql_and_memory_agree(
    db: psycopg.Connection, rows: list[dict[str, Any]], selections: list[Selection]
) -> None:
    with db.transaction(force_rollback=True):
        # addresses that no session would let in belong to rows on hold
        db.execute("SET LOCAL session_replication_role = replica")
        message(db, 1)
        items: dict[int, Item] = {}
        for values in rows:
            sender_domain = domain_of(values["sender"])
            number = row(db, 1, status="HOLD", sender_domain=sender_domain, **values)
            items[number] = mail(**{**values, "metadata": json.dumps(values["metadata"])})
        for selection in selections:
            condition = selection.condition("q.")
            query = f"SELECT coalesce(array_agg(id), '{{}}') FROM queue AS q WHERE {condition}"
            (found,) = db.execute(query.encode()).fetchone() or ([],)
            taken = [number for number, item in items.items() if selection.takes(item)]
            assert sorted(found) == taken, (condition, items)


def test_a_domain_finds_senders_in_each_spelling(db: psycopg.Connection) -> None:
    message(db, 1)
    row(db, 1, sender="Ann@B\u00fccher.example", sender_domain="xn--bcher-kva.example")
    selection = parse(sender=["*@b\u00fccher.example"])
    assert fetch(db, f"SELECT count(*) FROM queue WHERE {selection.condition()}") == (1,)
    assert selection.takes(mail("b.example", "Ann@B\u00fccher.example"))


def test_lists_and_objects_in_metadata_fit_nothing() -> None:
    item = mail("b.example", metadata='{"k": [7], "o": {}}')
    selections = [parse(metadata=[text]) for text in ("k=[7]", "k=*", "k=", "o=*", "o=")]
    assert not any(selection.takes(item) for selection in selections)


def test_a_pattern_takes_no_long_time() -> None:
    selection = parse(recipient=["*a" * 50 + "*b"])
    assert not selection.takes(mail("b.example", recipient="a" * 20_000))


@pytest.mark.parametrize(
    ("texts", "reason"),
    [
        ({"metadata": ["k"]}, "--metadata 'k': expected key=value"),
        ({"metadata": ["=v"]}, "--metadata '=v': expected key=value"),
        ({"priority": ["x"]}, "--priority 'x': expected a number"),
        ({"priority": ["10"]}, "--priority '10': priorities are 0 to 9"),
        ({"priority": ["5..3"]}, "--priority '5..3': priorities are 0 to 9"),
        ({"tenant": ["a\0"]}, "NUL"),
    ],
)
def test_a_mistake_is_named(texts: dict[str, list[str]], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        parse(**texts).condition()

"""Plain mail of submit_mails() is stored as submit_mail() stores it, and nothing bad is plain."""

from __future__ import annotations

import json
import re
from typing import Any

import psycopg
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.rows import fetch

MAIL: dict[str, Any] = {
    "sender": "shop@example.org", "to": ["bob@example.com"], "subject": "Hello", "body": "x",
}  # fmt: skip
TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
COMMON: list[dict[str, Any]] = [
    {"cc": ["ann@example.com"], "bcc": ["ann@example.com"]},
    {"to": ["Bob <bob@example.com>", "ann@example.com"], "from": "Shop <shop@example.org>"},
    {"to": [], "bcc": ["Zoë van 't Hoog <zoe@xn--bcher-kva.example>", "<ann@b.example>"]},
    {"reply_to": "Jürgen <j.k+shop@mail.example.org>", "html": "<p>\"x\" \\ \t é</p>"},
    {"subject": 'Grüße: "heute" \u3000', "body": "a\r\nb\nc\u0001\\u0000 <x> 😀"},
    {"priority": 0, "tenant": "acme.shop", "on_failed": "bounce", "once": True},
    {"metadata": {"order": 4711, "to": None, "vip": True, "_trace": TRACE}, "once": False},
    {"to": [f"r{n % 40}@b.example" for n in range(60)]},
]  # fmt: skip
"""Each of them goes the way of plain mail."""

ADDRESS = "ann@a.example"
NAMES = [
    "n" * 62 + " ", "n" * 64, "n" * 256, "B\\ ", "B\x7f", " Bob ", "Bob\t", "\tBob ", "Bob  ",
    "[] ", '"Bob" ', '"B, C" ', 'x"]["y ', "a@b.example, ", "é|", "\u00a0Bob", "<a>",
]  # fmt: skip
ADDRESSES = [
    "a" * 53 + "@b.example", "a" * 55 + "@b.example", "a" * 65 + "@b.example", f"{ADDRESS} ",
    "a@-b.example", "a@b-.example", "a@b..example", "a.@b.example", "a[]@b.example",
    "a@b_c.example", "a@b.example|", "a!b@b.example", "é@b.example",
    "a@[192.0.2.1]", "", "a", None, 7, [ADDRESS], "a@sms", "B <a@sms>", "a@sms.example",
    "+491701234567", "+49 (170) 1234567", "A <+491701234567>",
]  # fmt: skip
NEAR: dict[str, list[Any]] = {
    "sender": [
        f"Shop <{ADDRESS}>", f"<{ADDRESS}>", "", None, 7, [ADDRESS], f"{ADDRESS}|", "a" * 64,
        "a@sms", "+491701234567",
    ],
    "to": [
        *[[f"{name}<{ADDRESS}>"] for name in NAMES], *[[each] for each in ADDRESSES],
        ["a@B.example", "a@b.example"], ["A@b.example", "a@b.example"],
        ["a@b.example", "<a@b.example>"], [f"r{n}@b.example" for n in range(300)],
        [f"r{n}@b.example" for n in range(1001)], ADDRESS, None, [], {},
    ],
    "from": [
        "", None, [ADDRESS], f"{ADDRESS}, b@b.example", "a@sms", f'"A" <{ADDRESS}>', "<>", "Bob", 7,
        f"A <{ADDRESS}>x",
    ],
    "subject": [
        " ", "", "\t", "\u3000", "\x7f", "a\x7f", "a\nb", 7, None, "s" * 1998, "s" * 2001, '"',
        "\\", ' " ',
    ],
    "body": [7, None, "", [], {}, True],
    "priority": [5.0, "5", 10, -1, True, None, [1], 1e2, 1e300],
    "once": ["true", 1, 0, None, "false", "t"],
    "on_failed": ["Hold", "", None, 1, "remove ", ["hold"]],
    "tenant": ["", "t" * 64, "t" * 65, "-a", "é", 7, None, 'a"b', ["t"]],
    "metadata": [
        {"_x": 1}, {"_partid": "2"}, {"_trace": TRACE + "0"}, {"_trace": TRACE.upper()},
        {"_trace": None}, {"_trace": TRACE[:36] + "0" * 16 + "-01"}, {"_trace": TRACE, "_x": 1},
        {"_trace": "00-" + "0" * 32 + TRACE[35:]}, {"a": {"_b": 1}}, {"a": "_b"}, [], "x", None,
        {"a": "x" * 3991}, {"a": "x" * 3992}, {"é": "é" * 1996}, {"a": [1]},
        {"a": json.loads("[" * 101 + "]" * 101)}, {"_deadline": "2030-01-01T00:00:00Z"},
        {"_deadline": "soon"},
    ],
    "key": ["", 7, None], "send_at": ["soon", None, "2030-01-31T09:30:00.5+01:00"],
    "headers": [{}, {"X-A": "b"}, 7], "deadline": ["2031-01-31T09:30:60z", 7],
    "attachments": [[], [{"name": "a", "content": "?"}], {}], "template": ["none", None],
    "content": ["eA==", None], "recipients": [[ADDRESS]], "wake": [True], "Subject": ["x"],
}  # fmt: skip
"""Values that are nearly common, or bad; those of from are those of reply_to and cc too."""

VARIES = re.compile(r"(?<=SQL id )\d+|(?<=\t)..., .. ... .{13} \+0000|(?<=^<)\d+\.[0-9a-f]{16}")
OTHER = {"id", "message_id", "ts", "next_attempt", "received_at"}


def stored(db: psycopg.Connection) -> list[dict[str, Any]]:
    """Everything in both tables without times and numbers, and no rows any more."""
    rows = (
        db.execute("SELECT to_jsonb(m) FROM messages AS m ORDER BY id").fetchall()
        + db.execute("SELECT to_jsonb(q) FROM queue AS q ORDER BY id").fetchall()
    )
    db.execute("DELETE FROM queue")
    return [
        {
            name: VARIES.sub("N", value) if name in ("trace", "message_id_header") else value
            for name, value in row.items()
            if name not in OTHER
        }
        for (row,) in rows
    ]


def both_ways(db: psycopg.Connection, mail: Any) -> bool:
    """Submit a mail one by one, alone and among others: all do the same. Whether it is plain."""
    text = json.dumps(mail)
    slow = fetch(db, "SELECT id IS NOT NULL, problem FROM submit_tried(%s, '{}')", text)
    rows = stored(db)
    ids, problems = fetch(db, "SELECT * FROM submit_mails(%s)", f"[{text}]")
    assert ([number is not None for number in ids], stored(db)) == ([slow[0]], rows)
    assert problems == (None if slow[0] else [{"index": 0, **slow[1]}])
    ids, problems = fetch(db, "SELECT * FROM submit_mails(%s)", f"[{text}, 7, {text}]")
    expected = [r for r in rows if "trace" in r] * 2 + [r for r in rows if "trace" not in r] * 2
    assert ([number is not None for number in ids], stored(db)) == (
        [slow[0], False, slow[0]],
        expected,
    )
    assert len(problems) == (1 if slow[0] else 3)
    (plain,) = fetch(
        db, "SELECT coalesce(is_plain(m, plain_mailboxes(m), 1e8::bigint), false)"
        " FROM jsonb_array_elements(%s) AS m", f"[{text}]",
    )  # fmt: skip
    assert slow[0] or not plain
    return bool(plain)


@pytest.mark.parametrize("changes", COMMON, ids=" ".join)
def test_common_mail_is_plain(db: psycopg.Connection, changes: dict[str, Any]) -> None:
    assert both_ways(db, {**MAIL, **changes})


@pytest.mark.parametrize("key", NEAR)
def test_what_is_nearly_common_is_stored_alike(db: psycopg.Connection, key: str) -> None:
    for value in NEAR[key]:
        both_ways(db, {**MAIL, key: value})
        for more in {"from": ["reply_to"], "to": ["cc", "bcc"], "body": ["html"]}.get(key, []):
            both_ways(db, {**MAIL, more: value})


def text_of(alphabet: str, most: int) -> st.SearchStrategy[str]:
    return st.text(st.sampled_from(alphabet), max_size=most)


odd = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=8)
local = st.one_of(text_of("aB.-+='!_", 6), text_of('a."\\ |[]<>', 6), st.just("x" * 60), odd)
domain = st.one_of(
    st.sampled_from(["b.example", "B.example", "xn--bcher-kva.example", "[192.0.2.1]", "b" * 62]),
    text_of("a1.-", 8), text_of("aB_[]|@", 5), odd,
)  # fmt: skip
address = st.one_of(
    st.sampled_from(
        ["ann@a.example", "bob@b.example", "BOB@b.example", '"a b"@b.example', "", "x"]
    ),
    st.tuples(local, domain).map("@".join),
)
name = st.one_of(
    st.sampled_from(["Bob ", "", " ", "Bob", 'Bob" ', '"Bob, B." ', "[]", "Zoë ", "n" * 64 + " "]),
    text_of('aé "\\<>[],|\t', 8), odd,
)  # fmt: skip
mailbox = st.one_of(
    st.just("ann@a.example"), address,
    st.tuples(name, address).map(lambda two: f"{two[0]}<{two[1]}>"),
    st.tuples(name, address, odd).map(lambda all_: f"{all_[0]}<{all_[1]}>{all_[2]}"),
)  # fmt: skip
other = st.one_of(
    st.none(), st.booleans(), st.integers(-1, 99), st.floats(allow_nan=False, allow_infinity=False),
    st.just([]), st.just({}), odd, st.sampled_from([["x"], [["a@b.example"]], "2030-01-01", "7"]),
)  # fmt: skip
text = st.one_of(odd, text_of('a" \\\t\r\n\x7f\u00a0', 5), st.sampled_from(["", "s" * 1999]), other)
flat = st.dictionaries(
    st.one_of(odd, st.sampled_from(["a", "_trace", "_partid", "_deadline", "_x"])),
    st.one_of(other, st.sampled_from([TRACE, TRACE + "0", TRACE.replace("4", "0"), "_x", '"_'])),
    max_size=3,
)
mailboxes = st.one_of(st.lists(mailbox, max_size=4), st.lists(st.one_of(mailbox, other)), other)
mails = st.fixed_dictionaries(
    {"sender": st.one_of(st.just("ann@a.example"), mailbox, other), "to": mailboxes},
    optional={
        "cc": mailboxes, "bcc": mailboxes, "from": st.one_of(mailbox, other),
        "reply_to": st.one_of(mailbox, other), "subject": text, "body": text, "html": text,
        "priority": st.one_of(st.integers(-1, 10), other), "metadata": st.one_of(flat, other),
        "tenant": st.one_of(text_of("aB1._@+-é!", 5), st.just("t" * 65), other),
        "on_failed": st.one_of(st.sampled_from(["hold", "bounce", "Hold", "remove"]), other),
        "once": st.one_of(st.booleans(), other), "key": other, "deadline": other, "sendat": other,
        "headers": other, "attachments": other, "recipients": other,
    },
)  # fmt: skip
KEYS = [
    "sender",
    "to",
    "cc",
    "bcc",
    "from",
    "reply_to",
    "subject",
    "body",
    "html",
    "metadata",
    "tenant",
]
likely = st.tuples(
    st.sampled_from(COMMON), mails, st.sets(st.sampled_from(KEYS), min_size=1, max_size=2)
).map(lambda made: {**MAIL, **made[0], **{key: made[1][key] for key in made[2] & made[1].keys()}})
"""Common mail with one or two changes; about every fifth is still plain."""


@settings(max_examples=60)
@given(mail=st.one_of(likely, likely, mails, other))
def test_any_mail_is_stored_alike(template_db: psycopg.Connection, mail: Any) -> None:
    with template_db.transaction(force_rollback=True):
        both_ways(template_db, mail)

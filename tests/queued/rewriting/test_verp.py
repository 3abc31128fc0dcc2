"""VERP addresses, and the mail that comes back to them."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgmta.errors import Stage
from pgmta.mail.address import parse_mailbox
from pgmta.model import Reply
from pgmta.report_row import Kind
from queued.answers.answer_rules import AnswerRules
from queued.config import QueuedConfig, VerpTemplate
from queued.config.answer_text import parse_reply
from queued.outgoing.returned import Returned, read
from queued.rewriting.verp import ReturnAddresses, VerpAddresses, VerpKeys
from tests.queued.reports.text.dsn_parts import octets
from tests.queued.reports.text.test_compose import composed, recipient, report

SHAPES = Path(__file__).parents[1] / "returned"
NOW = datetime(2026, 11, 23, 12, tzinfo=UTC)
TEMPLATE = "bounce+{id}-{hash}@news.example"
FIRST, SECOND = b"1" * 32, b"2" * 32
LARGEST = (1 << 63) - 1


@given(st.integers(1, LARGEST), st.integers(1, LARGEST), st.integers(0, 30), st.booleans())
def test_address_names_its_row(message: int, row: int, days: int, upper: bool) -> None:
    made = VerpAddresses(TEMPLATE, VerpKeys((FIRST,))).address(message, row, NOW)
    assert parse_mailbox(made)[1] == "news.example"
    assert len(made.partition("@")[0]) <= 64
    assert made == made.lower()
    read_by = ReturnAddresses(
        ["x{id}.{hash}@news.example", TEMPLATE], VerpKeys((SECOND, FIRST), 14)
    )
    later = NOW + timedelta(days=days)
    named = read_by.named(made.upper() if upper else made, "news.example", later)
    assert named
    assert (named.message_id, named.row_id, named.day) == (message, row, NOW.date())
    assert named.problem == ("" if days <= 14 else f"5.4.7 the address is {days} days old")


def test_no_other_address_is_good() -> None:
    keys = VerpKeys((FIRST,))
    addresses = VerpAddresses(TEMPLATE, keys)
    good = addresses.address(123, 456, NOW)
    local = good.partition("@")[0]
    digits = "0123456789abcdefghijklmnopqrstuv"
    for place in range(local.index("+") + 1, len(local)):
        for digit in digits:
            other = local[:place] + digit + local[place + 1 :]
            found = addresses.named(other, NOW)
            assert other == local or found is None or found.problem, other
    wrong = "5.7.1 the hash of the address is wrong"
    for others in (VerpKeys((SECOND,)), VerpKeys((FIRST[:-1] + b"2",))):
        assert VerpAddresses(TEMPLATE, others).named(local, NOW).problem == wrong  # type: ignore[union-attr]
    returns = ReturnAddresses([TEMPLATE], keys)
    named = returns.named(good, "news.example", NOW)
    for quoted in (f'"{local}"', f'"\\{local}"'):  # the same mailbox
        assert returns.named(f"{quoted}@news.example", "news.example", NOW) == named
    elsewhere = ReturnAddresses(["bounce+{id}-{hash}@other.example"], keys)
    assert elsewhere.named(good, "news.example", NOW) is None
    assert elsewhere.named(good, "other.example", NOW).problem == wrong  # type: ignore[union-attr]
    for text in (
        "",
        "bounce",
        "bounce+",
        "bounce+1-2-3@news.example",
        f"x{good}",
        "Ã@news.example",
    ):
        assert ReturnAddresses([TEMPLATE], keys).named(text, "news.example", NOW) is None
    # a clock that is a day ahead, and a day number that comes round again
    assert addresses.named(local, NOW - timedelta(days=1)).problem == ""  # type: ignore[union-attr]
    assert addresses.named(local, NOW + timedelta(days=1024)).problem == wrong  # type: ignore[union-attr]
    assert not ReturnAddresses([], keys)


def test_hash_is_no_secret_of_the_configuration() -> None:
    keys = VerpKeys((b"topsecret" * 4,))
    assert "topsecret" not in repr(keys)
    assert VerpTemplate(TEMPLATE).address("1-2", "x") == "bounce+1-2-x@news.example"


RULES = AnswerRules(QueuedConfig().answering)


def read_class(found: Returned) -> str:
    reply = parse_reply(found.words)
    code = reply.code or (450 if found.status.startswith("4") else 550)
    text = reply.text if reply.enhanced or not found.status else f"{found.status} {reply.text}"
    return str(RULES.read_reply(Reply(code, text), found.host, Stage.RCPT).answer_class)


@pytest.mark.parametrize("file", sorted(SHAPES.glob("*.eml")), ids=lambda file: file.stem)
def test_bounces_of_others(file: Path) -> None:
    """The first line has the reverse-path, the kind, the class and a part of the words."""
    first, _, content = file.read_bytes().partition(b"\n")
    sender, kind, answer_class, words = first.decode().split(" ", 3)
    for each in (content, content.replace(b"\n", b"\r\n")):
        found = read(each, sender.strip("<>"))
        assert found.kind == kind
        assert words in f"{found.status} {found.words}"
        assert kind != "failed" or read_class(found) == answer_class


@pytest.mark.parametrize("address", ["a@b.example", "ä@b.example"])
def test_our_own_dsns(address: str) -> None:
    kinds: dict[Kind, str] = {"failed": "failed", "delayed": "delayed", "relayed": "delivered"}
    for kind, expected in kinds.items():
        each = recipient(address, report_kind=kind)
        found = read(octets(composed(report(each, kind=kind))), "")
        assert found.kind == expected
        if kind == "failed":
            assert (found.status, found.words) == ("5.1.1", "550 5.1.1 No such user")
            assert (read_class(found), found.host) == ("unknown_user", "mx.b.example")


STATUS = b"Content-Type: message/delivery-status\r\n"
FIELDS = (
    b"Reporting-MTA: dns; x\r\n\r\nFinal-Recipient: rfc822; a@b\r\n"
    b"Action: failed\r\nStatus: 5.2.2\r\n"
)


@pytest.mark.parametrize(
    "content",
    [
        b"--a\r\n" + STATUS + b"\r\n" + FIELDS + b"\r\n--a--\r\n",
        STATUS + b"\r\n" + FIELDS,
        b"A: b\r\n\r\n--o\r\nContent-Type: multipart/report; boundary=i\r\n\r\n--i\r\n\r\nx\r\n"
        b"--i\r\nContent-Transfer-Encoding: base64\r\nContent-Type:\r\n"
        b" message/global-delivery-status\r\n\r\n"
        b"UmVwb3J0aW5nLU1UQTogZG5zOyB4DQoNCkZpbmFsLVJlY2lwaWVudDogcmZjODIyOyBhQGINCkFj\r\n"
        b"dGlvbjogZmFpbGVkDQpTdGF0dXM6IDUuMi4yDQo=\r\n--i--\r\n--o--\r\n",
        b"--a\r\n" + STATUS + b"Content-Transfer-Encoding: Quoted-Printable\r\n\r\n"
        + FIELDS.replace(b"5.2.2", b"5=2E2=\r\n.2") + b"\r\n--a--\r\n",
        STATUS + b"\r\n" + FIELDS.replace(b"Action: failed\r\n", b""),
        STATUS + b"\r\nReporting-MTA: dns; x\r\n\r\nFinal-Recipient: c\r\nAction: delayed\r\n"
        b"Status: 4.4.1\r\n\r\n\r\n" + FIELDS,
    ],
)  # fmt: skip
def test_where_the_status_is(content: bytes) -> None:
    found = read(content, "")
    assert (found.kind, found.status) == ("failed", "5.2.2")
    assert read(content.replace(b"\r\n", b"\n"), "") == found


WORDS = [
    STATUS, FIELDS, b"\r\n", b"\n", b"--a", b":", b"=", b"From: postmaster@x\n", b"Action:",
    b"5.1.1", b"Status:", b"550 ", b"Subject: ", b"\xff", b"Diagnostic-Code: smtp;", b" ",
    b"Content-Transfer-Encoding: base64\n",
]  # fmt: skip


@given(st.lists(st.sampled_from(WORDS), max_size=40).map(b"".join))
def test_nothing_raises(content: bytes) -> None:
    found = read(content, "")
    assert re.fullmatch(r"failed|delayed|delivered|answer", found.kind)


UNITS = [
    STATUS, STATUS + b"\r\n", STATUS + b"\n\n" + FIELDS, b"A: b\n ", b"--a\n", b"550 5.1.1",
    b"(#5.1.1", b"a" * 70, b"\r\n\r\nAction: failed", b"4.4.4.4.",
]  # fmt: skip


def test_hostile_content_takes_no_long_time() -> None:
    for unit in UNITS:
        for head in (b"", STATUS + b"\r\n", b"From: <postmaster@x>\r\n\r\n"):
            read(head + unit * (300_000 // len(unit)), "")

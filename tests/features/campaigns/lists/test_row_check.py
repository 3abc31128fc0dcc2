"""Rows that become recipients: those that the template and the address rules take."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgmta.compose.template import TemplateSource, compile_template
from pgmta.errors import AddressError, ConfigError
from pgmta.mail.address import mailbox_key, parse_mailbox
from pgmta_features.campaigns.lists.row_check import MAX_WORDS_OCTETS, RowCheck

TEMPLATE = compile_template(TemplateSource(
    sender="", from_="{{shop}} <{{address}}>", subject="{{title}}",
    body="{{text}} {{recipient}} {{unsubscribe}} https://a.example/{{part}}",
    html='<a href="{{link}}">x</a>', headers={"List-Id": "{{kind}}"},
))  # fmt: skip
GOOD = {"shop": "Shop", "address": "s@a.example", "title": "Hi", "text": "Dear\n\tAnn",
        "part": "a/b", "link": "https://a.example/", "kind": "news.1"}  # fmt: skip
COLUMNS = ("more", "kind", "link", "part", " recipient ", "text", "title", "address", "shop")
HARD = st.sampled_from([
    "", ".", "..", "\0", "\ud800", "\r\n", "x\ty", "é", "a@b", "http://a", "x" * 256, "x" * 999,
    "y" * MAX_WORDS_OCTETS, "ä" * (MAX_WORDS_OCTETS // 2), "\u2028", "\x7f",
])  # fmt: skip


def row(recipient: str, words: dict[str, str]) -> list[str]:
    values = {**words, "recipient": recipient, "more": "\0\ud800"}
    return [values[column.strip()] for column in COLUMNS]


def outcome(cells: list[str]) -> tuple[tuple[str, str, str] | None, str]:
    """Read a row; return the recipient, or why there is none."""
    try:
        return RowCheck(TEMPLATE, COLUMNS).read(cells), ""
    except UnicodeError:
        raise
    except ValueError as error:
        return None, str(error)


@given(st.sampled_from(sorted(GOOD)), HARD | st.text(max_size=300))
def test_a_row_is_taken_exactly_if_its_mail_can_be_composed(word: str, value: str) -> None:
    words = {**GOOD, word: value}
    try:
        TEMPLATE.check_words({**words, "recipient": "", "unsubscribe": ""})
        fits = len(json.dumps(words, ensure_ascii=False, separators=(",", ":")).encode())
        expected = fits <= MAX_WORDS_OCTETS
    except (ValueError, UnicodeEncodeError):
        expected = False
    read, problem = outcome(row("r@B.example", words))
    assert bool(read) == expected, problem
    assert len(value) < 9 or value not in problem
    if read:
        assert (*read[:2], json.loads(read[2])) == ("r@B.example", "b.example", words)


@given(st.emails() | st.text() | st.sampled_from(['"a b"@x.example', "é@é.example", "a@[1.2.3.4]"]))
def test_a_mailbox_is_kept_and_its_domain_in_a_labels(text: str) -> None:
    text = text.strip(" \t")
    try:
        parse_mailbox(text, utf8=True)
    except AddressError:
        assert outcome(row(text, GOOD))[0] is None
        return
    read, _ = outcome(row(f" {text}\t", GOOD))
    assert read
    recipient, domain, _ = read
    assert mailbox_key(recipient) == mailbox_key(text)
    assert domain.isascii()
    assert recipient.rpartition("@")[2].isascii()


def test_columns_that_lack_a_word() -> None:
    with pytest.raises(ConfigError) as refused:
        RowCheck(TEMPLATE, ["e-mail", "Shop", "address", "titel", "text", "part", "lnk", "text"])
    assert refused.value.problems == [
        "there is no column recipient; it has 'e-mail', 'Shop', 'address', 'titel', 'text', 'part',"
        " 'lnk', 'text'; --column names another one",
        "the template has the word kind, and no column has it; it has 'e-mail', 'Shop', 'address',"
        " 'titel', 'text', 'part', 'lnk', 'text'",
        "the template has the word link, and no column has it; did you mean 'lnk'?",
        "the template has the word shop, and no column has it; did you mean 'Shop'?",
        "the template has the word title, and no column has it; did you mean 'titel'?",
        "there are several columns text",
    ]

"""Rows that become recipients: those that the template and the address rules take."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgmta.compose.template import TemplateSource, compile_template
from pgmta.errors import AddressError, ConfigError
from pgmta.mail.address import mailbox_key, parse_mailbox
from pgmta_features.campaigns.lists.column_finder import ColumnFinder, NoColumn
from pgmta_features.campaigns.lists.row_check import MAX_WORDS_OCTETS, RowCheck, read_mapping
from pgmta_features.campaigns.lists.time_zones import TimeZones

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


def outcome(cells: list[str]) -> tuple[tuple[str, str, str, str | None] | None, str]:
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
    recipient, domain, *_ = read
    assert mailbox_key(recipient) == mailbox_key(text)
    assert domain.isascii()
    assert recipient.rpartition("@")[2].isascii()


def test_columns_that_lack_a_word() -> None:
    with pytest.raises(ConfigError) as refused:
        RowCheck(TEMPLATE, ["e-mail", "Shop", "address", "titel", "text", "part", "lnk", "text"])
    has = "it has 'e-mail', 'Shop', 'address', 'titel', 'text', 'part', 'lnk', 'text'"
    assert refused.value.problems == [
        f"there is no column recipient; {has}; give --column recipient=COLUMN",
        f"there is no column kind; {has}; give --column kind=COLUMN",
        "there is no column link; did you mean 'lnk'? Give --column link=lnk",
        "there are several columns 'text'; give --column text=COLUMN",
        "there is no column title; did you mean 'titel'? Give --column title=titel",
    ]


LIST = ("E-Mail-Adresse", "First name", "Größe ", "ORT", "Ort", "straße")


@pytest.mark.parametrize(
    ("name", "index"),
    [
        ("E-Mail-Adresse", 0), ("e-mail-adresse", 0), (" First  Name", 1), ("GRÖSSE", 2),
        ("gro\u0308ße", 2), ("Ort", 4), ("ORT", 3), ("STRASSE", 5),
    ],
)  # fmt: skip
def test_columns_are_found_as_people_write_them(name: str, index: int) -> None:
    assert ColumnFinder(LIST).find(name) == index


def test_columns_that_are_not_found_name_those_that_may_be_meant() -> None:
    for name, reason in (
        ("E-Mial", "did you mean 'E-Mail-Adresse'?"),
        ("ort", "there are several columns 'ORT' and 'Ort'"),
        ("zzz", "it has 'E-Mail-Adresse', 'First name'"),
    ):
        with pytest.raises(NoColumn, match=re.escape(reason)):
            ColumnFinder(LIST).find(name)


def test_words_have_the_columns_that_are_named() -> None:
    template = compile_template(TemplateSource(
        sender="", from_="a@a.example", subject="{{first}}", body="{{first}} {{greeting}} {{city}}"
    ))  # fmt: skip
    given = ["mail = x", "first=Name", "greeting=name", "city= Ort"]
    mapping = read_mapping(given, template)
    check = RowCheck(template, ["Nr", "Name ", "Mail = X", "Ort"], mapping)
    assert check.columns == {
        "recipient": "Mail = X", "city": "Ort", "first": "Name", "greeting": "Name",
    }  # fmt: skip
    assert check.left_out == ["Nr"]
    words = check.read(["7", "Ann", "a@x.example", "Ulm"])[2]
    assert json.loads(words) == {"city": "Ulm", "first": "Ann", "greeting": "Ann"}
    with pytest.raises(ConfigError) as refused:
        read_mapping(["mail", "recipient=e", "frist=x", "unsubscribe=y"], template)
    assert [each.split(";")[0] for each in refused.value.problems] == [
        "--column recipient=e: recipient has the column 'mail' already",
        "--column frist=x: the list gives no word frist",
        "--column unsubscribe=y: the list gives no word unsubscribe",
    ]
    assert "did you mean 'first'?" in refused.value.problems[1]
    with pytest.raises(ConfigError, match="--column first=Nmae: there is no column Nmae; did"):
        RowCheck(template, ["Name", "recipient", "greeting", "city"], {"first": "Nmae"})


def test_the_first_unknown_time_zones_have_hints() -> None:
    """Those of a million rows would take hours."""
    zones = TimeZones("tz", ["Asia/Tokyo"], "UTC")

    def reason(name: str) -> str:
        with pytest.raises(ValueError, match="tz: there is no time zone") as refused:
            zones.find(name)
        return str(refused.value)

    hinted = [n for n in range(30) if "did you mean Asia/Tokyo?" in reason(f"Asia/Toky{n}")]
    assert hinted == [*range(20)]
    assert "did you mean" in reason("Asia/Toky0")

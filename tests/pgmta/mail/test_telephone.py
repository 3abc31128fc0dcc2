"""Telephone numbers in E.164, and the segments of a text, by vectors."""

from __future__ import annotations

import psycopg
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgmta.errors import AddressError
from pgmta.mail.address import parse_mailbox, parse_recipient
from pgmta.mail.telephone import is_number, number_of, segments_of
from tests.support.rows import fetch

GOOD = {
    "+491701234567": "+491701234567",
    "+49 170 1234567": "+491701234567",
    "+1 (415) 555-0100": "+14155550100",
    "+44.20.7946.0000": "+442079460000",
    "+290 1234": "+2901234",
    "+999999999999999": "+999999999999999",
}
BAD = {
    "01701234567": "country code",
    "0049 170 1234567": "country code",
    "491701234567": "country code",
    "+0491701234567": "code 0",
    "+49170": "7 to 15 digits",
    "+1234567890123456": "7 to 15 digits",
    "+49170123456x": "no telephone number",
    "tel:+491701234567": "no telephone number",
    "+٤٩١٧٠١٢٣٤٥٦٧": "no telephone number",
    "+49170/1234567": "no telephone number",
    "++491701234567": "no telephone number",
    "+49170\n1234567": "no telephone number",
    "": "no telephone number",
}
A, B = "a" * 160, "ж" * 70


@pytest.mark.parametrize(("text", "number"), GOOD.items())
def test_numbers(text: str, number: str) -> None:
    assert number_of(text) == number
    assert parse_recipient(text) == (number, "sms")


@pytest.mark.parametrize(("text", "reason"), BAD.items())
def test_what_is_no_number(text: str, reason: str) -> None:
    with pytest.raises(AddressError, match=reason):
        number_of(text)
    with pytest.raises(AddressError):
        parse_recipient(text)


def test_no_mailbox_has_the_domain_of_numbers() -> None:
    for text in ("a@sms", "+491701234567@SMS", '"x"@sms.'):
        with pytest.raises(AddressError):
            parse_mailbox(text)
    assert parse_recipient("+491701234567@sms.example") == (
        "+491701234567@sms.example", "sms.example",
    )  # fmt: skip
    assert not is_number("a@b.example")


@pytest.mark.parametrize(
    ("text", "alphabet", "length", "number"),
    [
        ("", "GSM-7", 0, 1),
        (A, "GSM-7", 160, 1),
        (A + "a", "GSM-7", 161, 2),
        ("a" * 306, "GSM-7", 306, 2),
        ("a" * 307, "GSM-7", 307, 3),
        ("€" * 80, "GSM-7", 160, 1),
        ("€" * 81, "GSM-7", 162, 2),
        ("a" * 152 + "€" + "a" * 8, "GSM-7", 162, 2),
        # the pair of the second segment does not fit into its last septet
        ("a" * 152 + "€" + "a" * 151, "GSM-7", 305, 2),
        ("a" * 152 + "€" + "a" * 152, "GSM-7", 306, 3),
        ("@£$¥èéùìòÇØøÅåΔ_ΦΓΛΩΠΨΣΘΞÆæßÉ¤¡ÄÖÑÜ§¿äöñüà\r\n", "GSM-7", 44, 1),
        ("[]{}\\^~|€\f", "GSM-7", 20, 1),
        ("ç", "UCS-2", 1, 1),
        ("`", "UCS-2", 1, 1),
        (B, "UCS-2", 70, 1),
        (B + "ж", "UCS-2", 71, 2),
        ("ж" * 134, "UCS-2", 134, 2),
        ("ж" * 135, "UCS-2", 135, 3),
        ("😀" * 35, "UCS-2", 70, 1),
        ("😀" * 36, "UCS-2", 72, 2),
        # 33 pairs and a unit that no pair fits into
        ("😀" * 66, "UCS-2", 132, 2),
        ("😀" * 67, "UCS-2", 134, 3),
    ],
)
def test_segments(text: str, alphabet: str, length: int, number: int) -> None:
    found = segments_of(text)
    assert (found.alphabet, found.length, found.number) == (alphabet, length, number)


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=500))
def test_segments_have_room_for_the_text(text: str) -> None:
    found = segments_of(text)
    whole, each = (160, 153) if found.alphabet == "GSM-7" else (70, 67)
    if found.number == 1:
        assert found.length <= whole
    else:
        assert found.length > whole
        assert (found.number - 1) * (each - 1) < found.length <= found.number * each
    if found.alphabet == "UCS-2":
        assert found.length == len(text.encode("utf-16-le")) // 2


def test_sql_reads_numbers_as_python_does(db: psycopg.Connection) -> None:
    for text in (*GOOD, *BAD):
        (found,) = fetch(db, "SELECT submit_number(%s)", text)
        (domain,) = fetch(db, "SELECT mailbox_domain(%s)", found)
        assert (found, domain) == (GOOD[text], "sms") if text in GOOD else domain is None

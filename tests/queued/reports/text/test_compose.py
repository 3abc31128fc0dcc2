"""DSNs are composed after RFC 3464, 3461, 6522 and 6533."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, get_args

import pytest

from pgmta.mail.answer_class import AnswerClass
from pgmta.report_row import Kind, ReportRow
from queued.config import shipped_texts
from queued.reports.text.compose import compose
from queued.reports.text.dsn import Dsn, Original, Report
from queued.reports.text.machine import status_of
from queued.reports.text.original import header_of
from tests.queued.reports.text.dsn_parts import parts

NOW = datetime(2026, 11, 23, 9, 0, 7, 123456, tzinfo=UTC)
HEADER = b"Received: by relay.example\r\nFrom: a@a.example\r\nSubject: hello\r\n"
WHOLE = HEADER + b"\r\nHello.\r\n.\r\n"


def asking(language: str) -> Original:
    """An original whose sender asks for a language."""
    header = f"Accept-Language: {language}\r\n".encode() + HEADER
    return Original(header, len(header), header)


def report(*recipients: ReportRow, **changes: Any) -> Report:
    made = Report(
        "failed",
        "alice@a.example",
        "alice@a.example",
        "Mail Delivery System <mailer-daemon@relay.example>",
        "relay.example",
        NOW - timedelta(hours=1),
        Original(HEADER, len(WHOLE), WHOLE),
        list(recipients) or [recipient()],
        message_id="<one@a.example>",
    )
    return replace(made, **changes)


def recipient(recipient: str = "bob@b.example", **changes: Any) -> ReportRow:
    facts: dict[str, Any] = {
        "id": 8, "message_id": 7, "sender": "alice@a.example", "domain": "b.example", "ts": NOW,
        "since": NOW, "priority": 5, "tenant": "", "part": None, "dsn": False,
        "report_kind": "failed", "why": None, "reply": "550 5.1.1 No such user", "notify": None,
        "orcpt": None, "attempted": NOW, "host": "mx.b.example:25", "answer_class": "unknown_user",
    }  # fmt: skip
    return ReportRow(recipient=recipient, **facts | changes)


def composed(what: Report, **changes: Any) -> Dsn:
    arguments: dict[str, Any] = {
        "boundary": "=_b.1", "message_id_header": "<9.report@relay.example>", "now": NOW
    }  # fmt: skip
    return compose(what, shipped_texts(), **arguments | changes)


@pytest.mark.parametrize("kind", get_args(Kind.__value__))
@pytest.mark.parametrize("ret", [None, "FULL", "HDRS"])
def test_only_a_failure_returns_content(kind: Kind, ret: str | None) -> None:
    """RFC 3461, section 6.2: and not if RET is HDRS."""
    found = parts(composed(report(recipient(report_kind=kind), kind=kind, ret=ret, until=NOW)))
    media = dict(found.original_head)["Content-Type"]
    if kind == "failed" and ret != "HDRS":
        assert (media, found.original) == ("message/rfc822", WHOLE)
    else:
        assert (media, found.original) == ("text/rfc822-headers", HEADER)
    [fields] = found.recipients
    assert fields["Action"] == kind
    assert fields["Status"][0] == {"failed": "5", "delayed": "4"}.get(kind, "2")
    until = {"Will-Retry-Until": "Mon, 23 Nov 2026 09:00:07 +0000"} if kind == "delayed" else {}
    assert {name: v for name, v in fields.items() if name == "Will-Retry-Until"} == until


@pytest.mark.parametrize(
    ("action", "diagnostic", "answer_class", "status"),
    [
        ("failed", "550 5.7.1 no", "policy", "5.7.1"),
        ("failed", "550 no", "unknown_user", "5.1.1"),
        ("failed", "550 4.1.1 lies", "other", "5.1.1"),
        ("failed", "550 2.0.0 lies", "spam", "5.7.1"),
        ("failed", "451 4.3.2 later", "expired", "4.3.2"),
        ("failed", "450 later", "expired", "4.4.7"),
        ("failed", "452 full", "mailbox_full", "4.2.2"),
        ("failed", "connection refused", "expired", "4.4.7"),
        ("failed", "connection refused", "no_connection", "5.4.1"),
        ("failed", "5.1.10 null MX", "bad_domain", "5.1.10"),
        ("failed", "", "", "5.0.0"),
        ("failed", "550 5.1.1000 odd", "unknown_user", "5.1.1"),
        ("delayed", "451 4.7.1 later", "greylisted", "4.7.1"),
        ("delayed", "550 5.7.1 slow down", "rate_limited", "4.7.1"),
        ("delayed", "timed out", "no_connection", "4.4.1"),
        ("relayed", "250 2.1.5 Ok", "", "2.1.5"),
        ("delivered", "250 Ok", "", "2.0.0"),
        ("delivered", "", "", "2.0.0"),
    ],
)
def test_status(action: Kind, diagnostic: str, answer_class: str, status: str) -> None:
    assert status_of(action, diagnostic, answer_class) == status


def test_every_class_has_a_status_and_a_reason() -> None:
    for each in AnswerClass:
        assert (status_of("failed", "", each) != "5.0.0") is (each is not AnswerClass.OTHER)
        for language in shipped_texts().languages.values():
            assert (each in language.reasons) is (each is not AnswerClass.OTHER)


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("mx.example:25", "dns; mx.example"),
        ("192.0.2.1:25", "dns; [192.0.2.1]"),
        ("[2001:db8::1]:2525", "dns; [IPv6:2001:db8::1]"),
        ("2001:db8::1", "dns; [IPv6:2001:db8::1]"),
        ("evil\r\nX: y", "dns; evil X"),
    ],
)
def test_remote_mta(name: str, wanted: str) -> None:
    [fields] = parts(composed(report(recipient(host=name)))).recipients
    assert fields["Remote-MTA"] == wanted


@pytest.mark.parametrize(
    ("orcpt", "narrow", "wide"),
    [
        ("rfc822;a+2Bb@x", "rfc822; a+b@x", None),
        ("rfc822;a+0D+0AX:+20y@x", "rfc822; a X: y@x", None),
        ("x400;/c=3Dde/", "x400; /c=3Dde/", None),
        ("utf-8;gr\\x{FC}n@x", "utf-8; gr\\x{FC}n@x", "utf-8; grün@x"),
        ("utf-8;a\\x{2B}b@x", "utf-8; a\\x{2B}b@x", "utf-8; a+b@x"),
        ("utf-8;\\x{D800}\\x{110000}@x", "utf-8; \\x{5C}x{D800}\\x{5C}x{110000}@x", None),
        ("nonsense", None, None),
        ("b ad;x", None, None),
        ("rfc822;", None, None),
    ],
)
def test_original_recipient(orcpt: str, narrow: str | None, wide: str | None) -> None:
    [fields] = parts(composed(report(recipient(orcpt=orcpt)))).recipients
    assert fields.get("Original-Recipient") == narrow
    what = report(recipient(orcpt=orcpt), recipient(recipient="ü@x"))
    if wide:
        assert parts(composed(what)).recipients[0]["Original-Recipient"] == wide


def test_addresses_beyond_ascii() -> None:
    """RFC 6533; the DSN needs SMTPUTF8 only if its own recipient is such an address."""
    header = "Subject: grüße\r\n".encode()
    whole = header + b"\r\nHello.\r\n"
    original = Original(header, len(whole), whole)
    what = report(
        recipient(recipient="grün@b.example", reply="550 5.1.1 <grün@b.example>?"),
        utf8=True,
        original=original,
    )
    dsn = composed(what)
    found = parts(dsn)
    assert not dsn.utf8
    assert all(value.isascii() for _, value in found.header)
    assert dict(found.header)["Content-Transfer-Encoding"] == "8bit"
    assert dict(found.status_head)["Content-Type"] == "message/global-delivery-status"
    assert dict(found.status_head)["Content-Transfer-Encoding"] == "8bit"
    assert found.recipients[0]["Final-Recipient"] == "utf-8; grün@b.example"
    assert found.recipients[0]["Diagnostic-Code"] == "smtp; 550 5.1.1 <grün@b.example>?"
    assert dict(found.original_head)["Content-Type"] == "message/global"
    assert found.original == whole
    only_header = parts(composed(replace(what, ret="HDRS")))
    assert dict(only_header.original_head)["Content-Type"] == "message/global-headers"
    dsn = composed(replace(what, sent_to="älice@a.example", sender="älice@a.example"))
    assert dsn.utf8
    assert dict(parts(dsn).header)["To"] == "<älice@a.example>"


def test_a_reply_beyond_ascii_needs_no_other_type() -> None:
    found = parts(composed(report(recipient(reply="550 5.1.1 не найден"))))
    assert dict(found.status_head)["Content-Type"] == "message/delivery-status"
    assert found.recipients[0]["Diagnostic-Code"] == "smtp; 550 5.1.1 ?? ??????"
    assert "не найден" in found.message.get_payload(0).get_payload(decode=True).decode()  # type: ignore[union-attr]


def test_eight_bit_content_is_marked() -> None:
    whole = HEADER + b"\r\nGr\xfc\xdfe\r\n"
    found = parts(composed(report(original=Original(HEADER, len(whole), whole))))
    assert dict(found.header)["Content-Transfer-Encoding"] == "8bit"
    assert dict(found.original_head)["Content-Transfer-Encoding"] == "8bit"
    assert found.original == whole


def test_content_that_streams() -> None:
    async def stream() -> Any:
        yield b""  # pragma: no cover

    content = stream()
    dsn = composed(report(original=Original(HEADER, 50_000_000, content)))
    assert dsn.content is content
    assert dsn.size == len(dsn.head) + 50_000_000 + len(dsn.tail)
    assert b"Content-Type: message/rfc822\r\nContent-Transfer-Encoding: 8bit\r\n" in dsn.head


@pytest.mark.parametrize("place", ["content", "reply", "header"])
def test_the_boundary_is_nowhere_else(place: str) -> None:
    lines = b"X: y\r\n--=_b.1--\r\n--=_b.1=\r\n"
    original = Original(HEADER, len(WHOLE), WHOLE)
    what = report(recipient(reply="550 --=_b.1"), original=original)
    if place == "content":
        what.original = Original(HEADER, len(WHOLE + lines), WHOLE + lines)
        what.original.content = WHOLE + lines
    elif place == "header":
        what.original = Original(lines, len(lines), None)
    found = parts(composed(what))
    assert found.message.is_multipart()
    assert len(found.message.get_payload()) == 3


@pytest.mark.parametrize(
    ("header", "language"),
    [
        ("Content-Language: de\r\n", "de"),
        ("Accept-Language: xx, pt;q=0.9,fr;q=0.5, es;q=0.8\r\nContent-Language: de\r\n", "es"),
        ("accept-language: de-AT\r\n", "de"),
        ("Accept-Language:\r\n en;q=0,\r\n fr\r\n", "fr"),
        ("Content-Language: \x00\xff;;;,,\r\n", "en"),
        ("X-Content-Language: de\r\n", "en"),
    ],
)
def test_the_language_of_the_sender(header: str, language: str) -> None:
    octets = header.encode("latin-1")
    found = parts(composed(report(original=Original(octets, 9))))
    assert dict(found.text_head)["Content-Language"] == language


def test_ten_thousand_recipients() -> None:
    """The text names 30 of them, the report all."""
    many = [recipient(recipient=f"user{number}@b.example") for number in range(10_000)]
    found = parts(composed(report(*many)))
    assert len(found.recipients) == 10_000
    assert [r["Final-Recipient"] for r in found.recipients] == [
        f"rfc822; {r.recipient}" for r in many
    ]
    assert found.text.count(b"@b.example") == 30
    assert b"and 9970 more" in found.text


def test_header_of() -> None:
    assert header_of(WHOLE) == HEADER
    assert header_of(b"\r\nbody") == b""
    assert header_of(b"A: b\nC: d\n\nbody\r\n\r\n") == b"A: b\nC: d\n"
    assert header_of(b"A: b") == b"A: b"
    assert header_of(b"A: b\r\n c\r\nB: " + b"x" * 99, 20) == b"A: b\r\n c\r\n"
    assert header_of(b"A: b\r\n" + b" c\r\n" * 99, 20) == b"A: b\r\n c\r\n c\r\n c\r\n c"[:20]
    assert header_of(b"x" * 99, 20) == b"x" * 20

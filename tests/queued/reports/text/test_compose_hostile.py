"""No text of a row, a reply or a header breaks a DSN."""

from __future__ import annotations

import email
import email.policy
import re
from datetime import datetime, timedelta, timezone

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pgmta.mail.answer_class import AnswerClass
from pgmta.mail.telephone import is_number
from pgmta.report_row import ReportRow
from queued.reports.text.dsn import Original, Report
from queued.reports.text.original import header_of, languages_of
from tests.queued.reports.text.dsn_parts import octets, parts
from tests.queued.reports.text.test_compose import composed, recipient, report

hostile = st.one_of(
    st.text(max_size=60),
    st.text(st.sampled_from('\r\n\t :;<>@"\\=?-+x{}aä\x00\x85\u2028\ud800.()'), max_size=80),
    st.text("ab ", min_size=900, max_size=2500),
    st.text("b: ", min_size=900, max_size=2500),
    st.integers(40, 95).map(lambda size: "x" * size + " "),
    st.sampled_from(["b: " * 500, "x" * 900, "x" * 897 + " y " + "z" * 1800]),
    st.sampled_from(
        ["x\r\nBcc: evil@e.example", "a@b\r\n\r\n--=_b.1--", "=?utf-8?Q?=0D=0ABcc:_x?="]
    ),
)
classes = st.sampled_from(["", "no such class", *AnswerClass])
moments = (
    st.none()
    | st.datetimes(min_value=datetime(1970, 1, 2), max_value=datetime(2200, 1, 1))
    | st.just(datetime(2026, 1, 1, tzinfo=timezone(timedelta(hours=5, minutes=30))))
)
recipients = st.builds(
    recipient,
    recipient=hostile,
    orcpt=st.none() | hostile | hostile.map("rfc822;".__add__) | hostile.map("utf-8;".__add__),
    report_kind=st.sampled_from(["failed", "bounced", "delayed", "relayed", "delivered"]),
    reply=hostile | hostile.map("550 5.1.1 ".__add__),
    host=hostile,
    attempted=moments,
    answer_class=classes,
    why=st.none() | hostile,
)
NAMES = [
    "From", "To", "Subject", "Date", "Message-ID", "In-Reply-To", "References", "Auto-Submitted",
    "MIME-Version", "Content-Type", "Content-Transfer-Encoding"
]  # fmt: skip
ACCEPTED = b"Accept-Language: %s\r\n"
REPORTED = [
    "Original-Recipient", "Final-Recipient", "Action", "Status", "Remote-MTA", "Diagnostic-Code",
    "Last-Attempt-Date", "Final-Log-ID", "Will-Retry-Until"
]  # fmt: skip


@pytest.mark.slow
@given(
    st.builds(
        report,
        sent_to=hostile,
        sender=hostile,
        kind=st.sampled_from(["failed", "delayed", "relayed", "delivered"]),
        envid=st.none() | hostile,
        ret=st.sampled_from([None, "FULL", "HDRS", "x"]),
        arrival=moments,
        until=moments,
        reporting_mta=hostile,
        message_id=st.none() | hostile | st.just("<a@b>"),
        utf8=st.booleans(),
        original=st.tuples(
            st.just(b"")
            | st.sampled_from([b"de", b"fr", b"es", b"en", b"xx"]).map(ACCEPTED.__mod__),
            st.binary(max_size=200),
        )
        .map(b"".join)
        .map(lambda octets: Original(header_of(octets), len(octets), octets)),
    ),
    st.lists(recipients, min_size=1, max_size=4),
)
@settings(max_examples=300)
def test_no_text_of_a_row_breaks_the_report(what: Report, found: list[ReportRow]) -> None:
    """It parses, has all recipients, no other fields, and the original octet for octet."""
    what.recipients = found
    dsn = composed(what)
    taken = parts(dsn)
    names = [name for name, _ in taken.header]
    assert names == [name for name in NAMES if name in names]
    assert [name for name, _ in taken.text_head if name not in NAMES] == [
        "Content-Description", "Content-Language"
    ]  # fmt: skip
    assert len(taken.recipients) == len(found)
    for given_, block, fields in zip(found, taken.blocks[1:], taken.recipients, strict=True):
        present = [name for name, _ in block]
        assert present == [name for name in REPORTED if name in present]
        assert {"Final-Recipient", "Action", "Status"} <= set(present)
        assert fields["Action"] == given_.kind
        assert re.fullmatch(r"[245]\.\d{1,3}\.\d{1,3}", fields["Status"])
        if re.fullmatch(r"[!-~]{1,254}", given_.recipient):
            kind = "X-E164" if is_number(given_.recipient) else "rfc822"
            assert fields["Final-Recipient"] == f"{kind}; {given_.recipient}"
    full = what.kind == "failed" and what.ret != "HDRS"
    assert taken.original == (what.original.content if full else what.original.header)
    lines = dsn.head.split(b"\r\n")
    assert max(map(len, lines)) <= 998
    assert not re.search(rb"[\r\n\0]", b"".join(lines))
    assert not any(line.isspace() for line in lines)
    dsn.head.decode()
    again = email.message_from_bytes(octets(dsn), policy=email.policy.default)
    assert again.get_content_type() == "multipart/report"
    assert len(list(again.iter_parts())) == 3
    if not dsn.utf8:
        assert dsn.head.partition(b"\r\n\r\n")[0].isascii()


def test_a_reply_of_blanks_makes_no_line_of_blanks() -> None:
    found = [recipient("x@a.example", reply="\u2028")]
    lines = composed(report(recipients=found)).head.split(b"\r\n")
    assert not any(line.isspace() for line in lines)


@given(st.binary(max_size=300))
@example(b"Content-Language: " + b"a-" * 150)
@example(b"Content-Language: a" + b"-a" * 30_000)
def test_languages_of_any_header(header: bytes) -> None:
    assert all(re.fullmatch(r"[A-Za-z0-9-]{1,35}", tag) for tag in languages_of(header))

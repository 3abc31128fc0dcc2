"""The part of a DSN for people: a text of its language (pure)."""

from __future__ import annotations

import textwrap
from functools import lru_cache

from pgmta.config.types import without_port
from pgmta.mail.text import printable
from pgmta.report_row import ReportRow
from queued.config import Language
from queued.reports.text.dsn import Report
from queued.reports.text.fields import day, text_of
from queued.reports.text.machine import has_code

MAX_NAMED_RECIPIENTS = 30
"""The text names so many; the part for programs has all recipients."""

_LINE_CHARACTERS = 76
_MAX_ADDRESS_CHARACTERS = 300


def human_texts(report: Report, language: Language) -> tuple[str, str]:
    """Return the subject, which is one line, and the text, whose lines end with LF."""
    first = report.recipients[0] if report.recipients else None
    values = {
        "hostname": text_of(report.reporting_mta, utf8=True),
        "sender": _address(report.sender),
        "recipient": _address(first.recipient) if first else "",
        "count": str(len(report.recipients)),
        "reason": _reason(first, language) if first else "",
        "message_id": text_of(report.message_id or "", utf8=True)[:_MAX_ADDRESS_CHARACTERS],
        "arrival": day(report.arrival) if report.arrival else "",
        "until": day(report.until) if report.until else "",
    }
    subject = language.subjects[report.kind].fill(values)
    values["recipients"] = _recipients(report.recipients, language)
    return subject, language.bodies[report.kind].fill(values) + "\n"


def _recipients(recipients: list[ReportRow], language: Language) -> str:
    blocks = [_block(each, language) for each in recipients[:MAX_NAMED_RECIPIENTS]]
    if (more := len(recipients) - MAX_NAMED_RECIPIENTS) > 0:
        blocks.append(language.phrases["more"].fill({"count": str(more)}))
    return "\n\n".join(blocks)


def _block(row: ReportRow, language: Language) -> str:
    """Return the address, the reason in the reader's language, and the reply of the next hop."""
    lines = [f"<{_address(row.recipient)}>", _wrapped(_reason(row, language))]
    if reply := row.refusal:
        phrase = language.phrases["said" if row.host and has_code(reply) else "answer"]
        lines.append(_wrapped(phrase.fill({"host": without_port(row.host), "reply": reply})))
    return "\n".join(filter(None, lines))


def _reason(row: ReportRow, language: Language) -> str:
    if row.kind in ("relayed", "delivered"):
        return ""
    return row.reason() or language.reasons.get(row.answer_class, "")


def _address(address: str) -> str:
    return (
        address
        if address.isprintable() and len(address) <= _MAX_ADDRESS_CHARACTERS
        else printable(address[:_MAX_ADDRESS_CHARACTERS])
    )


@lru_cache(maxsize=1024)
def _wrapped(text: str) -> str:
    """Return a text of a peer or an operator in short lines, indented; '' if it has only blanks."""
    text = text_of(text, utf8=True)
    if not text.strip():
        return ""
    if len(text) <= _LINE_CHARACTERS - 4:
        return f"    {text}"
    return textwrap.fill(
        text,
        _LINE_CHARACTERS,
        initial_indent="    ",
        subsequent_indent="    ",
        break_on_hyphens=False,
    )

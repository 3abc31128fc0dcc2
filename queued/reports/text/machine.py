"""The part of a DSN for programs: message/delivery-status (RFC 3464, section 2; RFC 6533; pure)."""

from __future__ import annotations

import re
from datetime import datetime
from functools import lru_cache

from pgmta.compose.header_fields import date
from pgmta.report_row import Kind, ReportRow
from queued.reports.text.dsn import Report
from queued.reports.text.fields import (
    folded,
    from_xtext,
    mta,
    original_recipient,
    text_of,
    typed_address,
    whole,
)

_REPLY = re.compile(r"([2-5])\d\d(?: |$)")
_ENHANCED = re.compile(r"(?:[2-5]\d\d[ -])?([245])(\.\d{1,3}\.\d{1,3})(?= |$)")
_DETAILS = {
    "mailbox_full": ".2.2",
    "host_full": ".3.1",
    "unknown_user": ".1.1",
    "disabled": ".2.1",
    "bad_domain": ".1.2",
    "sender_refused": ".7.1",
    "policy": ".7.1",
    "spam": ".7.1",
    "rate_limited": ".7.0",
    "greylisted": ".7.1",
    "too_large": ".3.4",
    "content": ".6.0",
    "authentication": ".7.0",
    "tls": ".7.5",
    "dns": ".4.3",
    "no_connection": ".4.1",
    "protocol": ".5.0",
    "loop": ".4.6",
    "undecided": ".3.0",
    "expired": ".4.7",
    "suppressed": ".7.1",
}


def delivery_status(report: Report, *, utf8: bool) -> str:
    """Return the fields of the message, and after an empty line those of each recipient.

    `utf8` is for message/global-delivery-status; without it every field is ASCII.
    """
    blocks = [_message(report)]
    blocks += [_recipient(each, report.until, utf8=utf8) for each in report.recipients]
    return "\r\n".join(blocks)


def _message(report: Report) -> str:
    fields = f"Reporting-MTA: {mta(report.reporting_mta)}\r\n"
    if report.envid and (value := text_of(from_xtext(report.envid), utf8=False).strip()):
        fields += folded("Original-Envelope-Id", value)
    if report.arrival:
        fields += f"Arrival-Date: {date(report.arrival)}\r\n"
    return fields


def _recipient(row: ReportRow, until: datetime | None, *, utf8: bool) -> str:
    fields = ""
    if row.orcpt and (value := original_recipient(row.orcpt, utf8=utf8)):
        fields = whole("Original-Recipient", value)
    fields += whole("Final-Recipient", typed_address(row.recipient, utf8=utf8))
    action, diagnostic = row.kind, row.refusal
    status = status_of(action, diagnostic, row.answer_class)
    fields += f"Action: {action}\r\nStatus: {status}\r\n"
    if row.host:
        fields += f"Remote-MTA: {mta(row.host)}\r\n"
    if diagnostic := diagnostic or row.reason():
        fields += _diagnostic(diagnostic, utf8)
    if row.attempted:
        fields += f"Last-Attempt-Date: {date(row.attempted)}\r\n"
    fields += f"Final-Log-ID: {row.message_id}.{row.id}\r\n"
    if action == "delayed" and (end := row.until or until):
        fields += f"Will-Retry-Until: {date(end)}\r\n"
    return fields


@lru_cache(maxsize=1024)
def _diagnostic(text: str, utf8: bool) -> str:
    """Return the field Diagnostic-Code for a reply, or for a reason without a code."""
    kind = "smtp" if has_code(text) else "X-pgmta"
    return folded("Diagnostic-Code", f"{kind}; {text_of(text, utf8=utf8)}")


def has_code(diagnostic: str) -> bool:
    """Return whether a text is an SMTP reply with its code."""
    return _REPLY.match(diagnostic) is not None


@lru_cache(maxsize=4096)
def status_of(action: Kind, diagnostic: str, answer_class: str) -> str:
    """Return the enhanced code of a reply or reason, or else one for its class.

    A failure keeps 4.x.y of a problem that lasted until the time for it was over: RFC 3463,
    section 3.1, has it for abandoned mail, and X.4.7 only if no real code is known. A delay has
    4.x.y and a success 2.x.y, whatever the reply says.
    """
    reply, found = _REPLY.match(diagnostic), _ENHANCED.match(diagnostic)
    first = reply[1] if reply else found[1] if found else ""
    if action in ("relayed", "delivered"):
        return f"2{found[2]}" if found and found[1] == "2" else "2.0.0"
    detail = found[2] if found and found[1] != "2" else _DETAILS.get(answer_class, ".0.0")
    if action == "delayed":
        return f"4{detail}"
    lasted = first == "4" or (not first and answer_class == "expired")
    return f"4{detail}" if lasted else f"5{detail}"

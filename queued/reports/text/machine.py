"""The part of a DSN for programs: message/delivery-status (RFC 3464, section 2; RFC 6533; pure)."""

from __future__ import annotations

from datetime import datetime
from functools import lru_cache

from queued.reports.text.fields import (
    date,
    folded,
    from_xtext,
    mta,
    original_recipient,
    text_of,
    typed_address,
    whole,
)
from queued.reports.text.status import has_code, status_of
from queued.reports.text.values import Report, ReportedRecipient


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


def _recipient(recipient: ReportedRecipient, until: datetime | None, *, utf8: bool) -> str:
    fields = ""
    if recipient.orcpt and (value := original_recipient(recipient.orcpt, utf8=utf8)):
        fields = whole("Original-Recipient", value)
    fields += whole("Final-Recipient", typed_address(recipient.address, utf8=utf8))
    action, diagnostic = recipient.action, recipient.diagnostic
    status = status_of(action, diagnostic, recipient.answer_class)
    fields += f"Action: {action}\r\nStatus: {status}\r\n"
    if recipient.remote_mta:
        fields += f"Remote-MTA: {mta(recipient.remote_mta)}\r\n"
    if diagnostic or recipient.reason:
        fields += _diagnostic(diagnostic or recipient.reason, utf8)
    if recipient.last_attempt:
        fields += f"Last-Attempt-Date: {date(recipient.last_attempt)}\r\n"
    if recipient.log_id:
        fields += folded("Final-Log-ID", text_of(recipient.log_id, utf8=False))
    if action == "delayed" and (end := recipient.until or until):
        fields += f"Will-Retry-Until: {date(end)}\r\n"
    return fields


@lru_cache(maxsize=1024)
def _diagnostic(text: str, utf8: bool) -> str:
    """Return the field Diagnostic-Code for a reply, or for a reason without a code."""
    kind = "smtp" if has_code(text) else "X-pgmta"
    return folded("Diagnostic-Code", f"{kind}; {text_of(text, utf8=utf8)}")

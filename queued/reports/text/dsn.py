"""The facts of which a DSN is composed, and the composed DSN (pure)."""

from __future__ import annotations

from collections.abc import AsyncIterable
from dataclasses import dataclass, field
from datetime import datetime

from pgmta.report_row import Kind, ReportRow


@dataclass(slots=True)
class Original:
    """The message that a DSN reports on.

    `header` are the octets of its header as stored, the trace field included, without the empty
    line. `size` are the octets of the whole message. `content` is the whole message, header
    included; None: the DSN returns the header alone.
    """

    header: bytes
    size: int
    content: bytes | AsyncIterable[bytes] | None = None


@dataclass(slots=True)
class Report:
    """One DSN before it is written. Every text may come from a peer, or by SQL.

    `sent_to` is its recipient and `sender` the reverse-path of the original. `origin` is its field
    From. `envid` is as MAIL gave it, in xtext. `message_id` is the Message-ID of the original.
    `utf8` says that the original came with SMTPUTF8. `until` is the last time at which delivery is
    tried, for a delay notice.
    """

    kind: Kind
    sent_to: str
    sender: str
    origin: str
    reporting_mta: str
    arrival: datetime | None
    original: Original
    recipients: list[ReportRow] = field(default_factory=list)
    envid: str | None = None
    ret: str | None = None
    message_id: str | None = None
    utf8: bool = False
    until: datetime | None = None


@dataclass(slots=True)
class Dsn:
    """A composed DSN: `head`, the original's `content` as it was given, and `tail`.

    `size` are the octets of all three. `utf8` says that it needs SMTPUTF8.
    """

    head: bytes
    content: bytes | AsyncIterable[bytes]
    tail: bytes
    size: int
    utf8: bool = False

"""The values that pass between the store and the duty that reports: rows and their messages."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Literal

type Kind = Literal["failed", "delayed", "relayed", "delivered"]
"""The subject of a DSN, and the Action of a recipient (RFC 3464, section 2.3.3)."""


@dataclass(slots=True)
class ReportRow:
    """A row in REPORT, or one that is deferred for long, with facts of its last attempt.

    `report_kind` and `why` are `report_kind` and `hold_reason` of the row, and `delayed` and None
    for a delay. `dsn` says that its message is a DSN. The last attempt is not known if the log
    does not have it.
    """

    id: int
    message_id: int
    sender: str
    recipient: str
    domain: str
    ts: datetime
    since: datetime
    priority: int
    tenant: str
    part: str | None  # the value of `_partid` in its metadata
    dsn: bool
    report_kind: Kind | Literal["bounced"]
    why: str | None
    reply: str | None
    notify: str | None
    orcpt: str | None
    metadata: str | None = None  # JSON
    attempted: datetime | None = None
    host: str = ""
    answer_class: str = ""
    until: datetime | None = None  # the field Will-Retry-Until of a delay notice (RFC 3464, 2.3.9)

    @property
    def kind(self) -> Kind:
        """The subject of its report."""
        return "failed" if self.report_kind == "bounced" else self.report_kind

    @property
    def bounced(self) -> bool:
        """Whether an operator gave it up: no attempt says that it failed."""
        return self.report_kind == "bounced"

    def reason(self, more: str = "") -> str:
        """Return an operator's reason, and behind it another one; '' if there is neither."""
        return "; ".join(filter(None, (self.why if self.bounced else None, more)))

    @property
    def refusal(self) -> str:
        """The reply that its report names; empty if an operator gave it up before a refusal."""
        reply = self.reply or ""
        return "" if self.bounced and not reply.startswith("5") else reply


@dataclass(slots=True)
class ReportedMessage:
    """The message of such rows. `content` comes later: the whole of it, or its first octets.

    `torn` says that no DSN can return the whole: a part is gone, or no host may get it.
    """

    id: int
    size: int
    utf8: bool
    chunks: int
    trace: str
    message_id_header: str | None
    envid: str | None
    ret: str | None
    received_at: datetime
    requiretls: bool = False
    composition: str | None = None  # the parts of composed mail, as composition_shown() gives them
    origin: str | None = None
    content: bytes = b""
    torn: bool = False

"""The values that pass between the store and the duty that reports: rows and their messages."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

_SUCCESSES = ("relayed", "delivered")
_OURS = ("undeliverable", "delayed", *_SUCCESSES)


@dataclass(slots=True)
class ReportRow:
    """A row in REPORT, or one that is deferred for long, with facts of its last attempt.

    `why` and `by` are `hold_reason` and `held_by`. For a delay `why` is `delayed`. `dsn` says that
    its message is a DSN. The last attempt is not known if the log does not have it.
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
    part: str | None  # `_partid` of its metadata
    dsn: bool
    attempts: int
    why: str | None
    by: str | None
    reply: str | None
    notify: str | None
    orcpt: str | None
    metadata: str | None = None  # JSON, of a row that is deferred
    attempted: datetime | None = None
    host: str = ""
    answer_class: str = ""

    @property
    def kind(self) -> str:
        """The subject of its report: failed, delayed, relayed or delivered."""
        why = self.why or ""
        return why if why in _OURS[1:] else "failed"

    @property
    def bounced(self) -> bool:
        """Whether an operator gave it up: no attempt says that it failed."""
        return self.why not in _OURS

    @property
    def refusal(self) -> str:
        """The reply that its report names; empty if an operator gave it up before a refusal."""
        reply = self.reply or ""
        return "" if self.bounced and not reply.startswith("5") else reply


@dataclass(slots=True)
class ReportedMessage:
    """The message of such rows. `content` comes later: the whole of it, or its first octets."""

    id: int
    size: int
    utf8: bool
    chunks: int
    trace: str
    message_id_header: str | None
    envid: str | None
    ret: str | None
    received_at: datetime
    content: bytes = b""

"""Mail as programs submit it: as parts, as a template and its words, or as octets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from typing import Any


@dataclass(frozen=True, slots=True)
class Attachment:
    """A file that goes with mail; with a `content_id` it is a picture of the html.

    The html names a picture as `cid:CONTENT_ID`. `type` is a media type such as application/pdf.
    """

    name: str
    content: bytes = field(repr=False)
    type: str = "application/octet-stream"
    content_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmittedMail:
    """Mail in each of the three forms, with the options of submit() (docs/programs/sql.md).

    `send_at` and `deadline` have a time zone. `priority` is 0 (first) to 9. `metadata` goes to the
    rows of the queue. A repetition with the same `key` of a `tenant` is not sent again. `on_failed`
    is remove (the state is then failed, with the reply), hold or bounce. With `once` no recipient
    gets a second copy. `unsubscribe` is a scope, such as news: the mail has a link by which each
    recipient unsubscribes from it, and the fields of one click.
    """

    send_at: datetime | None = None
    deadline: datetime | None = None
    priority: int = 5
    metadata: Mapping[str, Any] = field(default_factory=dict)
    key: str | None = None
    tenant: str = ""
    on_failed: str = "remove"
    once: bool = False
    unsubscribe: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Mail(SubmittedMail):
    """Mail as parts, which pgmta composes when it is delivered (docs/programs/composed.md).

    `sender` is the reverse-path, and the address in From unless `from_` has another. Mailboxes are
    written as `bob@example.com` or `Bob <bob@example.com>`. `to`, `cc` and `bcc` have a recipient
    each; no reader sees those in `bcc`. `body` is plain text, and `html` may be beside it.
    """

    sender: str
    to: Sequence[str] = ()
    subject: str = ""
    body: str | None = field(default=None, repr=False)
    html: str | None = field(default=None, repr=False)
    cc: Sequence[str] = ()
    bcc: Sequence[str] = ()
    reply_to: str | None = None
    from_: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    attachments: Sequence[Attachment] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TemplateMail(SubmittedMail):
    """Mail that a template and its words make for one recipient (docs/programs/templates.md).

    Without a `version` it is the last one of now. A word is a text, a number or a boolean.
    """

    template: str
    recipient: str
    params: Mapping[str, str | int | float | bool | Decimal] = field(
        default_factory=dict, repr=False
    )
    version: int | None = None
    attachments: Sequence[Attachment] = ()


@dataclass(frozen=True, slots=True)
class RawMail(SubmittedMail):
    """Mail as octets: its envelope, and its content with CRLF at the line ends (RFC 5322).

    An empty `sender` is the null reverse-path. The header gets Date and Message-ID if they are
    missing.
    """

    sender: str
    recipients: Sequence[str]
    content: bytes = field(repr=False)

"""Mail as programs submit it: as parts, or as a template and its words."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from typing import Any, ClassVar

from pgmta.errors import SubmissionError

_UNSTORABLE = re.compile(r"[\ud800-\udfff]|(?<!\\)(?:\\\\)*\\u0000")  # JSON escapes controls


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
class MailOptions:
    """The arguments of submit() in the database beside envelope and content (docs/sql.md).

    `send_at` and `deadline` have a time zone. `on_failed` is hold, remove or bounce.
    """

    send_at: datetime | None = None
    deadline: datetime | None = None
    priority: int = 5
    metadata: Mapping[str, Any] = field(default_factory=dict)
    key: str | None = None
    tenant: str = ""
    on_failed: str = "hold"
    once: bool = False
    attachments: Sequence[Attachment] = ()

    def arguments(self) -> dict[str, Any]:
        """Return the parameters of the statement.

        Raises ValueError for a time without its zone, TypeError for a value of another type.
        """
        for name in ("send_at", "deadline"):
            time = getattr(self, name)
            if time is not None and time.tzinfo is None:
                raise ValueError(f"{name}: it has no time zone")
        files = self.attachments
        for each in files:
            if not isinstance(each, Attachment):
                raise TypeError("attachments: give a list of pgmta.Attachment")
            if not isinstance(each.content, bytes | bytearray | memoryview):
                raise TypeError(f"attachments: the content of {each.name!r} has to be bytes")
        return {
            "send_at": self.send_at,
            "deadline": self.deadline,
            "priority": self.priority,
            "metadata": _json("metadata", self.metadata),
            "key": self.key,
            "tenant": self.tenant,
            "on_failed": self.on_failed,
            "once": self.once,
            "names": [each.name for each in files],
            "types": [each.type for each in files],
            "contents": [each.content for each in files],
            "content_ids": [each.content_id for each in files],
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Mail(MailOptions):
    """Mail as parts, which pgmta composes when it is delivered (docs/composed.md).

    `sender` is the reverse-path, and the address in From unless `from_` has another. Mailboxes are
    written as `bob@example.com` or `Bob <bob@example.com>`. `to`, `cc` and `bcc` have a recipient
    each; no reader sees those in `bcc`. `body` is plain text, and `html` may be beside it.
    """

    STATEMENT: ClassVar[str] = "submit_mail"

    sender: str
    to: Sequence[str] = ()
    subject: str
    body: str | None = None
    html: str | None = None
    cc: Sequence[str] = ()
    bcc: Sequence[str] = ()
    reply_to: str | None = None
    from_: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)

    def arguments(self) -> dict[str, Any]:
        """Return the parameters of the statement.

        Raises ValueError for a time without its zone, TypeError for a value of another type.
        """
        for name in ("to", "cc", "bcc"):
            if isinstance(getattr(self, name), str):
                raise TypeError(f"{name}: give a list of mailboxes, and not one text")
        for name in ("sender", "subject", "body", "html", "reply_to", "from_"):
            if not isinstance(getattr(self, name), str | None):
                raise TypeError(f"{name}: it has to be a text, such as that of octets.decode()")
        return {
            **super(Mail, self).arguments(),  # a class with slots has no other way
            "sender": self.sender,
            "to": list(self.to),
            "subject": self.subject,
            "body": self.body,
            "html": self.html,
            "cc": list(self.cc),
            "bcc": list(self.bcc),
            "reply_to": self.reply_to,
            "from": self.from_,
            "headers": _json("headers", self.headers),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class TemplateMail(MailOptions):
    """Mail that a template and its words make for one recipient (docs/templates.md).

    Without a `version` it is the last one of now. A word is a text, a number or a boolean.
    """

    STATEMENT: ClassVar[str] = "submit_template"

    template: str
    recipient: str
    params: Mapping[str, str | int | float | bool | Decimal] = field(
        default_factory=dict, repr=False
    )
    version: int | None = None

    def arguments(self) -> dict[str, Any]:
        """Return the parameters of the statement.

        Raises ValueError for a time without its zone, TypeError for a value of another type.
        """
        return {
            **super(TemplateMail, self).arguments(),
            "template": self.template,
            "recipient": self.recipient,
            "params": _json("params", self.params),
            "version": self.version,
        }


def _json(argument: str, value: Mapping[str, Any]) -> str:
    """Return JSON that the database takes: its own error would show a value.

    Raises SubmissionError.
    """
    text = json.dumps(dict(value), default=_number, allow_nan=False, ensure_ascii=False)
    if _UNSTORABLE.search(text):
        raise SubmissionError(f"{argument}: a text has NUL or half of a character")
    return text


def _number(value: object) -> str:
    if isinstance(value, Decimal):
        return str(value)
    raise TypeError(f"{type(value).__name__} is no value of JSON")

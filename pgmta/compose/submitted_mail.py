"""Mail as programs submit it: as parts, or as a template and its words."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from typing import Any, ClassVar

from pgmta.compose.words import UNSTORABLE
from pgmta.errors import SubmissionError


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

    _TEXTS: ClassVar[tuple[str, ...]] = ("key", "tenant")

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
        Raises SubmissionError for a text that the database can't have.
        """
        for name in self._TEXTS:
            _check(name.rstrip("_"), getattr(self, name))
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
        _check("attachments", [(each.name, each.type, each.content_id) for each in files])
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
    _TEXTS: ClassVar[tuple[str, ...]] = (
        *MailOptions._TEXTS, "sender", "to", "subject", "body", "html", "cc", "bcc", "reply_to",
        "from_",
    )  # fmt: skip

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
        Raises SubmissionError for a text that the database can't have.
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
    _TEXTS: ClassVar[tuple[str, ...]] = (*MailOptions._TEXTS, "template", "recipient")

    template: str
    recipient: str
    params: Mapping[str, str | int | float | bool | Decimal] = field(
        default_factory=dict, repr=False
    )
    version: int | None = None

    def arguments(self) -> dict[str, Any]:
        """Return the parameters of the statement.

        Raises ValueError for a time without its zone, TypeError for a value of another type.
        Raises SubmissionError for a text that the database can't have.
        """
        return {
            **super(TemplateMail, self).arguments(),
            "template": self.template,
            "recipient": self.recipient,
            "params": _json("params", self.params),
            "version": self.version,
        }


def _json(argument: str, value: Mapping[str, Any]) -> str:
    _check(argument, value)
    try:
        return json.dumps(dict(value), default=_number, allow_nan=False)
    except ValueError as error:  # a number that is infinite or has over 4,300 digits
        raise SubmissionError(f"{argument}: {error}") from None


def _check(argument: str, value: object) -> None:
    """Refuse texts that PostgreSQL can't have: its error shows them. Raises SubmissionError."""
    if isinstance(value, str):
        if UNSTORABLE.search(value):
            raise SubmissionError(f"{argument}: it has NUL or half of a character")
    elif isinstance(value, Mapping):
        for each in value.items():
            _check(argument, each)
    elif isinstance(value, list | tuple):
        for each in value:
            _check(argument, each)


def _number(value: object) -> str:
    if isinstance(value, Decimal):
        return str(value)
    raise TypeError(f"{type(value).__name__} is no value of JSON")

"""Mail as a client of the API describes it, and as submit_mails() takes it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import ConfigDict, FailFast, Field, SkipValidation
from pydantic.config import JsonDict
from pydantic_core import to_json

from pgmta_features.http_api.caller import Caller
from pgmta_features.http_api.checking import HeaderFields, Path, checked_body
from pgmta_features.http_api.intake.senders import (
    Senders,
    address_of,
    check_credential,
    priority_of,
    tenant_of,
)
from pgmta_features.http_api.operation import Received, Version
from pgmta_features.http_api.problem import Problem, pointer_of

MAX_BATCH_MAILS = 1000
MAX_BATCH_OCTETS = 10 << 20
_USUAL_PRIORITY = 5  # as of submit_mails()

_TIME: JsonDict = {"format": "date-time"}
_EXAMPLE: JsonDict = {
    "from": "Shop <shop@example.org>",
    "to": ["Ann <ann@example.com>"],
    "subject": "Order 4711",
    "body": "Thank you.",
    "metadata": {"order": 4711},
}
_TEMPLATE_KEYS = ("template", "recipient", "params", "version")
_PARTS_KEYS = (
    "reply_to",
    "from",
    "subject",
    "body",
    "html",
    "headers",
    "sender",
)

type _Texts = Annotated[list[str], FailFast()]  # the first mistake of a thousand is enough
type MailObject = dict[str, Any]
"""A mail with the keys of submit_mails()."""


class _Strict(Received):
    model_config = ConfigDict(strict=True)


class Attachment(_Strict):
    """A file that goes with a mail."""

    name: str = Field(description="the file name that the reader sees")
    type: str | None = Field(
        default=None, description="media type; application/octet-stream without one"
    )
    content: str = Field(description="the octets in base64 (RFC 4648, section 4)")
    content_id: str | None = Field(
        default=None, description="name by which the html shows it as a picture: `cid:NAME`"
    )


class _Options(_Strict):
    """What every kind of mail may have."""

    send_at: str | None = Field(
        default=None, json_schema_extra=_TIME, description="no attempt is made before it"
    )
    deadline: str | None = Field(
        default=None, json_schema_extra=_TIME, description="no attempt is begun after it"
    )
    priority: int | None = Field(
        default=None,
        ge=0,
        le=9,
        description="0 goes first, 9 last; 5 without it; the key limits it",
    )
    metadata: dict[str, Any] | None = Field(
        default=None,
        description="values of yours, for routes, events and searches; up to 4,000 octets",
    )
    tenant: str | None = Field(default=None, description="whose mail it is; the key limits it")
    on_failed: Literal["remove", "hold", "bounce"] | None = Field(
        default=None, description="what becomes of a recipient that failed; remove without it"
    )
    once: bool | None = Field(
        default=None, description="rather no mail than two, if an outcome stays unknown"
    )
    unsubscribe: str | None = Field(
        default=None, description="list from which recipients unsubscribe by one click"
    )


class Message(_Options):
    """A mail: as parts, or a template with its words."""

    model_config = ConfigDict(json_schema_extra={"examples": [_EXAMPLE]})

    MEANT: ClassVar[dict[str, str]] = {
        "text": "body", "textbody": "body", "text_body": "body", "plain": "body",
        "htmlbody": "html", "html_body": "html", "recipients": "to", "replyto": "reply_to",
    }  # fmt: skip
    """Keys of other APIs, in lower case, and what they are called here."""

    sender: str | None = Field(
        default=None,
        description="envelope sender, to which bounces go; the address in from without it",
    )
    from_: str | None = Field(
        default=None, alias="from", description="`NAME <ADDRESS>` or ADDRESS; the sender without it"
    )
    to: _Texts | None = Field(default=None, description="mailboxes, as in from")
    cc: _Texts | None = Field(default=None, description="mailboxes")
    bcc: _Texts | None = Field(default=None, description="mailboxes that the header does not show")
    reply_to: str | None = Field(default=None, description="a mailbox")
    subject: str | None = Field(default=None, description="one line of up to 2,000 characters")
    body: str | None = Field(default=None, description="plain text")
    html: str | None = Field(default=None, description="HTML; with a body both go as alternatives")
    headers: HeaderFields | None = Field(
        default=None, description="further fields of the header, by name"
    )
    attachments: Annotated[list[Attachment], FailFast()] | None = Field(
        default=None, description="files and pictures"
    )
    template: str | None = Field(default=None, description="name of a template, in place of parts")
    recipient: str | None = Field(default=None, description="mailbox to which a template goes")
    params: dict[str, Any] | None = Field(
        default=None, description="the words of the template: texts, numbers, true or false"
    )
    version: Version | None = Field(
        default=None, description="of the template; the last one without it"
    )


class Envelope(_Options):
    """The envelope of mail whose content comes beside it, as the part `content`."""

    sender: str = Field(description="envelope sender, to which bounces go; empty: nobody gets them")
    recipients: _Texts = Field(description="addresses; the header does not matter")


class EnvelopeQuery(Received):
    """The envelope of a body of message/rfc822."""

    sender: str | None = Field(
        default=None, description="envelope sender; empty: nobody gets bounces"
    )
    recipients: str | None = Field(
        default=None, description="addresses with commas between them; the header does not matter"
    )
    send_at: str | None = Field(default=None, json_schema_extra=_TIME, description="as in JSON")
    deadline: str | None = Field(default=None, json_schema_extra=_TIME, description="as in JSON")
    priority: int | None = Field(default=None, ge=0, le=9, description="as in JSON")
    tenant: str | None = Field(default=None, description="as in JSON")
    unsubscribe: str | None = Field(default=None, description="as in JSON")


class Batch(Received):
    """Mails, each with a result of its own."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"messages": [_EXAMPLE]}]})

    messages: Annotated[
        list[SkipValidation[Message]], Field(min_length=1, max_length=MAX_BATCH_MAILS)
    ]


def message_of(value: Any, begin: Path) -> Message:
    """Return a mail of a batch, at `begin` of the body. Raises Problem."""
    if isinstance(value, Problem):
        raise value
    return checked_body(value, Message, begin)


def given(mail: Message | Envelope) -> MailObject:
    """Return a mail as it came."""
    return mail.model_dump(by_alias=True, exclude_none=True)


def mail_object(caller: Caller, message: Message, begin: Path = ()) -> MailObject:
    """Return a mail with the keys of submit_mails(), for the key of the request.

    Raises Problem: 403 for a sender or a tenant that is not the key's, 422 for keys that exclude
    each other. The database judges the rest.
    """
    mail = given(message)
    if "template" in mail:
        _refuse_others(
            mail, ("to", "cc", "bcc"), "A template goes to one mailbox: give `recipient`.", begin
        )  # fmt: skip
        _refuse_others(mail, _PARTS_KEYS, "A template has it already.", begin)
        Senders.of(caller).require_some(begin)  # the database judges those of the template
    else:
        _refuse_others(mail, _TEMPLATE_KEYS, "It belongs to a template, and none is named.", begin)
        author = mail.get("from")
        if "sender" not in mail and author:
            mail["sender"] = address_of(author)
        if "sender" not in mail:
            raise _missing("sender", "Give a sender or from.", begin)
        senders = Senders.of(caller)
        senders.check(mail["sender"], "sender" if message.sender is not None else "from", begin)
        if author:
            if (address := address_of(author)) != mail["sender"]:
                senders.check(address, "from", begin)
        elif not mail["sender"]:
            raise _missing("from", "The sender is empty, so give an address for From.", begin)
    _finish(caller, mail, begin)
    return mail


def raw_object(caller: Caller, envelope: Envelope) -> MailObject:
    """Return mail whose content is the first of the contents. Raises Problem."""
    mail = {**given(envelope), "content": 0}
    Senders.of(caller).check(mail["sender"], "sender")
    _finish(caller, mail, ())
    return mail


def mail_text(mail: Mapping[str, Any]) -> str:
    """Return a mail as JSON."""
    return to_json(mail).decode()


def _finish(caller: Caller, mail: MailObject, begin: Path) -> None:
    if own := next((key for key in mail.get("metadata", ()) if key.startswith("_")), None):
        raise Problem(422, "invalid", "Keys that begin with _ belong to pgmta.",
                      pointer=pointer_of(*begin, "metadata", own))  # fmt: skip
    credential = mail.get("metadata", {}).get("credential")
    check_credential(caller, credential, (*begin, "metadata", "credential"))
    priority = priority_of(caller, mail.get("priority"), _USUAL_PRIORITY, begin)
    if priority != _USUAL_PRIORITY:
        mail["priority"] = priority
    if tenant := tenant_of(caller, mail.pop("tenant", None), begin):
        mail["tenant"] = tenant


def _refuse_others(mail: MailObject, keys: tuple[str, ...], reason: str, begin: Path) -> None:
    for key in keys:
        if key in mail:
            raise Problem(422, "invalid", f"{key}: {reason}", pointer=pointer_of(*begin, key))


def _missing(key: str, reason: str, begin: Path) -> Problem:
    return Problem(422, "invalid", f"{key}: {reason}", pointer=pointer_of(*begin, key))

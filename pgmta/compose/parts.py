"""The parts of a composed message: what a program thinks in, before it is content of RFC 5322."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pgmta.compose.own_fields import name_problem, text_problem, value_problem
from pgmta.errors import AddressError
from pgmta.mail.address import parse_mailbox
from pgmta.mail.telephone import is_number

TAILS = ("", "related", "mixed", "both", "mixed 8bit", "both 8bit")
"""Values of `Parts.tail`."""

type NamedMailbox = tuple[str, str]
"""A display name, or '', and the address without brackets."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """A message as subject, texts and addresses. Line ends of texts are any; fields have none.

    The tail is the rest of the content behind the last text, with pictures and attachments. It is
    encoded and stored when the mail comes in. `tail` says which multiparts it ends: '' (there is no
    tail), 'related', 'mixed' or 'both'. With ' 8bit' behind it, an attached message has octets over
    127.
    """

    from_: NamedMailbox
    to: tuple[NamedMailbox, ...] = ()
    cc: tuple[NamedMailbox, ...] = ()
    reply_to: tuple[NamedMailbox, ...] = ()
    subject: str = ""
    body: str | None = None
    html: str | None = None
    headers: tuple[tuple[str, str], ...] = ()
    tail: str = ""


_KEYS = frozenset(("from", "to", "cc", "reply_to", "subject", "body", "html", "headers", "tail"))


def parts_of(params: dict[str, Any]) -> Parts:
    """Return the parts that `messages.params` has.

    All keys but from may be absent, or null. Raises ValueError unless a correct message can be
    composed: params may be broken by hand. The error names the key and has no value of it.
    """
    if not isinstance(params, dict):
        raise ValueError("params is no object")
    if unknown := params.keys() - _KEYS:
        raise ValueError(f"params: {len(unknown)} keys are unknown")
    sender = params.get("from")
    if sender is None:
        raise ValueError("from: it is missing")
    html = _text("html", params)
    tail = tail_of(params)
    if tail.startswith(("related", "both")) and html is None:
        raise ValueError("tail: it has pictures, and there is no html")
    subject = _text("subject", params) or ""
    if problem := text_problem(subject):
        raise ValueError(f"subject: it {problem}")
    return Parts(
        from_=_mailbox("from", sender),
        to=mailboxes_of(params, "to"),
        cc=mailboxes_of(params, "cc"),
        reply_to=mailboxes_of(params, "reply_to"),
        subject=subject,
        body=_text("body", params),
        html=html,
        headers=_headers(params.get("headers")),
        tail=tail,
    )


def tail_of(params: dict[str, Any]) -> str:
    """Return which multiparts the tail ends, '' if there is no tail. Raises ValueError."""
    tail = params.get("tail")
    if tail is None:
        return ""
    if tail not in TAILS:
        raise ValueError("tail: it is none of related, mixed, both")
    return str(tail)


def mailboxes_of(params: dict[str, Any], key: str) -> tuple[NamedMailbox, ...]:
    """Return the mailboxes of a key, none if it is absent. Raises ValueError."""
    value = params.get(key)
    if value is None:
        return ()
    if not isinstance(value, list | tuple):
        raise ValueError(f"{key}: it is no list of pairs of name and address")
    return tuple([_mailbox(key, each) for each in value])


def _mailbox(key: str, value: object) -> NamedMailbox:
    if not (
        isinstance(value, list | tuple)
        and len(value) == 2
        and isinstance(value[0], str)
        and isinstance(value[1], str)
    ):
        raise ValueError(f"{key}: there is no pair of name and address")
    name, address = value
    if problem := text_problem(name):
        raise ValueError(f"{key}: a name {problem}")
    if key == "to" and is_number(address):
        return name, address
    try:
        parse_mailbox(address, utf8=True)
    except AddressError:  # the text of the error has the address, which is not to be logged
        raise ValueError(f"{key}: an address is malformed") from None
    return name, address


def _text(key: str, params: dict[str, Any]) -> str | None:
    """Return a text of Unicode; it may have any character but a lone surrogate."""
    text = params.get(key)
    if text is None:
        return None
    if not isinstance(text, str):
        raise ValueError(f"{key}: it is no text")
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError as error:
            code = ord(text[error.start])
            raise ValueError(f"{key}: it has the lone surrogate U+{code:04X}") from None
    return text


def _headers(value: object) -> tuple[tuple[str, str], ...]:
    if value is None:
        return ()
    if not isinstance(value, dict):
        raise ValueError("headers: it is no object of names and values")
    for name, text in value.items():
        problem = name_problem(name) if isinstance(name, str) else "a name is no text"
        if not problem:
            problem = value_problem(name, text) if isinstance(text, str) else f"{name} is no text"
        if problem:
            raise ValueError(f"headers: {problem}")
    return tuple(value.items())

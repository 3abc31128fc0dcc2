"""The parts of a composed message: what a program thinks in, before it is content of RFC 5322."""

from __future__ import annotations

from dataclasses import dataclass

type NamedMailbox = tuple[str, str]
"""A display name, or '', and the address without brackets."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """A message as subject, texts and addresses. Line ends of texts are any; fields have none.

    The tail is the rest of the content behind the last text, with pictures and attachments. It is
    encoded and stored when the mail comes in. `tail` says which multiparts it ends: '' (there is no
    tail), 'related', 'mixed' or 'both'.
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

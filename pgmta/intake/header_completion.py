"""Completes the header of a user's message, and checks it (RFC 6409, sections 6.1 and 8)."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field
from email.utils import getaddresses
from enum import Enum, auto

from pgmta.errors import AddressError
from pgmta.mail.address import parse_mailbox
from pgmta.mail.address_list import AddressSpan, UnreadableError, address_spans
from pgmta.mail.header import completed, find_fields, header_block, without_bcc

_FROM = find_fields(b"from")
_SENDER = find_fields(b"sender")
# Some readers take a bare CR for a line end, and would see another From field behind it
_HIDES_FIELDS = re.compile(rb"\r(?!\n)|\0")
_BARE_LF = re.compile(rb"(?<!\r)\n")
_NEWLINE = re.compile(r"[\r\n]+")
_MAX_AUTHORS_OCTETS = 4096  # of the value of From


type MaySend = Callable[[str, str], bool]
"""Returns whether the user may send from a mailbox with this normalised domain."""


class HeaderRefusal(Enum):
    """Why a message is refused because of its header."""

    TOO_LARGE = auto()
    AUTHOR_DENIED = auto()


@dataclass(slots=True)
class HeaderCompletion:
    """Does so for one message, once: with its first octets, before any of them are stored.

    `completes` says whether Date and Message-ID are added where they are missing, and Bcc is
    removed. `may_send` knows the senders of the user, None without a user. A From of others is
    refused if it `refuses` that. With `judges_sender` a field Sender counts as From does.
    """

    hostname: str
    _: KW_ONLY
    completes: bool
    may_send: MaySend | None = None
    refuses: bool = True
    judges_sender: bool = False
    by_user: bool = field(default=False, init=False)
    """Whether all addresses in From are the user's, by every reading of the header."""

    def apply(self, content: bytes, *, whole: bool) -> tuple[bytes, HeaderRefusal | None]:
        """Return the content with its new header, or the reason why it is refused.

        The header has to end in these octets, unless they are the `whole` message.
        """
        header = header_block(content, len(content))
        if len(header) == len(content) and not whole:
            return content, HeaderRefusal.TOO_LARGE
        body = content[len(header) :]
        if self.may_send:
            own = _written_by(header, self.may_send, judges_sender=self.judges_sender)
            if self.refuses and not own:
                return content, HeaderRefusal.AUTHOR_DENIED
            # queued ends lines at CRLF alone, and the header at an empty line
            self.by_user = own and not _BARE_LF.search(header) and body[:2] in (b"", b"\r\n")
        if not self.completes:
            return content, None
        return completed(without_bcc(header), body, self.hostname), None


def _written_by(header: bytes, may_send: MaySend, *, judges_sender: bool) -> bool:
    """Return whether the header has one From, and the user may send from all its addresses.

    And the same of a Sender, if that is judged and there.
    """
    if _HIDES_FIELDS.search(header):
        return False
    authors, senders = _FROM.findall(header), _SENDER.findall(header) if judges_sender else []
    if len(authors) != 1 or len(senders) > 1:
        return False
    return all(_has_own(field, may_send) for field in authors + senders)


def _has_own(value: bytes, may_send: MaySend) -> bool:
    """Return whether the user may send from all addresses of a field."""
    if len(value) > _MAX_AUTHORS_OCTETS or value.count(b"(") > 20:
        return False  # what the parser makes of deeply nested comments is not worth knowing
    try:
        text = _NEWLINE.sub("", value.decode())
        mailboxes = [parse_mailbox(address, utf8=True) for _, address in getaddresses([text])]
        # queued finds the signing key by this reader: both have to see only addresses of the user
        found, whole = address_spans(text.encode())
        mailboxes += [parse_mailbox(_written(each), utf8=True) for each in found]
    except (AddressError, UnreadableError, UnicodeDecodeError):
        return False
    return whole and bool(found) and all(may_send(mailbox, domain) for mailbox, domain in mailboxes)


def _written(span: AddressSpan) -> str:
    return b"@".join((span.local, span.domain)).decode()

"""The parts of a mail as a reader sees them: texts, attachments, mailboxes, further fields."""

from __future__ import annotations

import base64
import email.policy
import re
from contextlib import suppress
from email.charset import Charset
from email.errors import MessageError
from email.header import decode_header, make_header
from email.message import Message
from email.parser import BytesParser
from email.utils import collapse_rfc2231_value, getaddresses
from functools import cached_property
from inspect import signature

from pgmta.mail.address import ATOM
from pgmta_features.providers.places import Unplaceable

_UNFOLDED_POLICY = email.policy.SMTP.clone(refold_source="none", utf8=True)
_CONTROLS = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]+")
_UTF8 = Charset("utf-8")
# `email` takes the square of the length of a field with parameters
_LONG_MIME = re.compile(rb"^content-[a-z-]++[ \t]*+:(?:[^\n]|\n(?=[ \t])){65536}", re.I | re.M)
_MAX_DECODED_CHARACTERS = 16384  # `email` takes the square of their number
# early versions of Python 3.12 have no such parameter
_HAS_STRICT = "strict" in signature(getaddresses).parameters
_UTF8_TEXT = re.compile(r'text/(?:plain|html); charset="?utf-8"?', re.I)  # the type of most parts
_PLAIN_NAME = re.compile(rf"{ATOM}(?: {ATOM})*")
_SIMPLE = re.compile(
    r"(?:([A-Za-z0-9_-]+(?: [A-Za-z0-9_-]+)*) )?<([A-Za-z0-9._+-]+@[A-Za-z0-9.-]+)>"
    r"|([A-Za-z0-9._+-]+@[A-Za-z0-9.-]+)"
)
_FIELDS = re.compile(rb"(?:[!-9;-~]++:[^\r\n]*+\r\n(?:[ \t][^\r\n]*+\r\n)*+)++")
_FIELD = re.compile(r"([!-9;-~]+):[ \t]*([^\n]*(?:\n[ \t][^\n]*)*)\r\n")
_OTHER_FIELDS = {
    "from", "sender", "to", "cc", "bcc", "reply-to", "subject", "date", "message-id",
    "mime-version", "return-path", "received", "received-spf", "delivered-to", "dkim-signature",
    "domainkey-signature", "authentication-results",
}  # fmt: skip
_ADDRESSES = {"from", "sender", "to", "cc", "reply-to"}
_FIELD_PREFIXES = ("content-", "resent-", "arc-")


class MailParts:
    """Reads the parts of a message; each of them is read when it is first asked for.

    Octets that no charset decodes are replacement characters. Raises RecursionError for parts, or
    comments of an address, that are nested too deeply; Unplaceable for a field Content-Type, or
    another one of MIME, of more than 64 KB.
    """

    def __init__(self, octets: bytes) -> None:
        if _LONG_MIME.search(octets):
            raise Unplaceable("a field of MIME has more than 64 KB")
        self._mail = _parsed(octets)
        self._fields = [(name.lower(), name, value) for name, value in self._mail.raw_items()]
        self._mailboxes: dict[str, list[dict[str, str | None]]] = {}

    def field(self, name: str) -> str | None:
        """Return the decoded value of the first field of a name, on one line; None if none."""
        folded = name.lower()
        if folded in _ADDRESSES:
            return ", ".join(str(each["mailbox"]) for each in self.mailboxes(folded)) or None
        return next((_decoded(n, v) for lower, n, v in self._fields if lower == folded), None)

    @cached_property
    def headers(self) -> list[dict[str, str]]:
        """Return further fields: those without a word, which no relay and no provider writes.

        Their values are ASCII, with encoded words.
        """
        return [
            {"name": name, "value": _encoded(value)}
            for lower, name, value in self._fields
            if lower not in _OTHER_FIELDS and not lower.startswith(_FIELD_PREFIXES)
        ]

    @cached_property
    def header_map(self) -> dict[str, str]:
        """Return the further fields by name; of fields with one name the first."""
        found: dict[str, tuple[str, str]] = {}
        for each in self.headers:
            found.setdefault(each["name"].lower(), (each["name"], each["value"]))
        return dict(found.values())

    def mailboxes(self, name: str) -> list[dict[str, str | None]]:
        """Return the mailboxes of the fields of a name; a name is None if there is none."""
        found = self._mailboxes.get(name)
        if found is None:
            values = [_unfolded(value) for lower, _, value in self._fields if lower == name]
            pairs = _pairs(values)
            found = [_box(_words(box), address) for box, address in pairs if "@" in address]
            self._mailboxes[name] = found
        return found

    @cached_property
    def text(self) -> str | None:
        """Return the plain text, with LF; None if there is none."""
        return self._texts[0]

    @cached_property
    def html(self) -> str | None:
        """Return the HTML, with LF; None if there is none."""
        return self._texts[1]

    @property
    def texts(self) -> list[dict[str, str]]:
        """Return plain text and HTML, in this order, as far as they have a character."""
        pairs = ("text/plain", self.text), ("text/html", self.html)
        return [{"type": kind, "content": text} for kind, text in pairs if text]

    @cached_property
    def attachments(self) -> list[dict[str, str | None]]:
        """Return all other parts. One that HTML shows has a `cid`."""
        html = self.html or ""
        bodies = self._bodies
        return [_attachment(part, html) for part in self._leaves if part not in bodies.values()]

    @cached_property
    def _leaves(self) -> list[Message]:
        return _leaves(self._mail)

    @cached_property
    def _bodies(self) -> dict[str, Message]:
        """Return the first text of each kind that is no attachment."""
        found: dict[str, Message] = {}
        for part in self._leaves:
            kind = part.get_content_type()
            if kind.startswith("multipart/"):
                kind = "text/plain"  # readers show a multipart without a boundary as text
            if kind in ("text/plain", "text/html") and (part is self._mail or not _named(part)):
                found.setdefault(kind, part)
        return found

    @cached_property
    def _texts(self) -> tuple[str | None, str | None]:
        bodies = self._bodies
        plain, html = bodies.get("text/plain"), bodies.get("text/html")
        return (
            None if plain is None else _text(plain),
            None if html is None else _text(html),
        )


def _file_name(part: Message) -> str:
    """Return the name of a file, '' without one; `get_filename` takes quotes in it away."""
    found = part.get_param("filename", header="content-disposition")
    found = part.get_param("name") if found is None else found
    if isinstance(found, tuple):
        found = collapse_rfc2231_value(found)
    return str(found or "").strip()


def _parsed(octets: bytes) -> Message:
    """Return a message as the parser of `email` does; one of a single part takes a tenth of it."""
    end = octets.find(b"\r\n\r\n") + 2
    # quick for fields that the parser of `email` would take as they are, without parts below
    if end < 2 or not _FIELDS.fullmatch(octets, 0, end):
        return BytesParser(policy=email.policy.compat32).parsebytes(octets)
    message = Message(policy=email.policy.compat32)
    head = octets[:end].decode("ascii", "surrogateescape")
    for name, value in _FIELD.findall(head):
        message.set_raw(name, value)
    if message.get_content_maintype() in ("multipart", "message"):
        return BytesParser(policy=email.policy.compat32).parsebytes(octets)
    message.set_payload(octets[end + 2 :].decode("ascii", "surrogateescape"))
    return message


def _pairs(values: list[str]) -> list[tuple[str, str]]:
    """Return names and addresses; the strict reader of newer Pythons drops odd fields."""
    if not values:
        return []
    if len(values) == 1 and (plain := _SIMPLE.fullmatch(values[0])):
        return [(plain[1] or "", plain[2] or plain[3])]
    return getaddresses(values, strict=False) if _HAS_STRICT else getaddresses(values)


def _box(name: str, address: str) -> dict[str, str | None]:
    return {"name": name or None, "address": address, "mailbox": mailbox(name, address)}


def mailbox(name: str | None, address: str) -> str:
    """Return a mailbox as a text (RFC 5322, section 3.4), whose name may have any characters."""
    if not name:
        return address
    if not _PLAIN_NAME.fullmatch(name) or "=?" in name:
        escaped = name.replace("\\", "\\\\").replace('"', '\\"')
        name = f'"{escaped}"'
    return f"{name} <{address}>"


def _unfolded(value: str) -> str:
    """Return the source of a field on one line, with octets beyond ASCII as UTF-8."""
    octets = value.encode("utf-8", "surrogateescape")
    line = octets.decode("utf-8", "replace").replace("\r\n", "").replace("\n", "")
    return _CONTROLS.sub(" ", line)


def _decoded(name: str, value: str) -> str:
    """Return the value of a field, as `email` reads it."""
    line = _unfolded(value)
    if "=?" not in line or len(line) > _MAX_DECODED_CHARACTERS:
        return line
    with suppress(Exception):  # the parser of `email` raises various errors for odd fields
        line = str(email.policy.default.header_factory(name, line))
    return _CONTROLS.sub(" ", line)


def _encoded(value: str) -> str:
    line = _unfolded(value)
    return line if line.isascii() else _UTF8.header_encode(line)


def _words(text: str) -> str:
    """Return a text with its encoded words decoded (RFC 2047)."""
    if "=?" in text and len(text) <= _MAX_DECODED_CHARACTERS:
        with suppress(LookupError, ValueError, MessageError):
            text = str(make_header(decode_header(text)))
    return _CONTROLS.sub(" ", text)


def _leaves(part: Message) -> list[Message]:
    payload = part.get_payload()
    if part.get_content_maintype() != "multipart" or not isinstance(payload, list):
        return [part]
    return [leaf for each in payload if isinstance(each, Message) for leaf in _leaves(each)]


def _named(part: Message) -> bool:
    """Return whether a part is a file."""
    if (
        "Content-Disposition" not in part
        and "name" not in str(part.get("Content-Type", "")).lower()
    ):
        return False
    return part.get_content_disposition() == "attachment" or bool(_file_name(part))


def _text(part: Message) -> str:
    octets = _octets(part)
    text = octets.decode("utf-8", "replace")
    if "\ufffd" not in text and _UTF8_TEXT.fullmatch(str(part.get("Content-Type", ""))):
        return text.replace("\r\n", "\n")
    for charset in (part.get_content_charset() or "utf-8", "utf-8", "windows-1252"):
        with suppress(LookupError, ValueError):
            text = octets.decode(charset)
            break
    text = text.replace("\r\n", "\n")
    flowed = "flowed" in str(part.get("Content-Type", "")).lower()
    if flowed and str(part.get_param("format", "")).lower() == "flowed":
        return unflowed(text, delsp=str(part.get_param("delsp", "")).lower() == "yes")
    return text


def unflowed(text: str, *, delsp: bool) -> str:
    """Return a text of `format=flowed` with one line per paragraph (RFC 3676, section 4)."""
    made: list[str] = []
    open_at = -1  # depth of the quotes of a line that goes on in the next one
    *lines, last = text.split("\n")
    for line in [*lines, *([last] if last else [])]:
        content = line.lstrip(">")
        depth = len(line) - len(content)
        content = content.removeprefix(" ")
        signature = content == "-- "
        goes_on = content.endswith(" ") and not signature
        if goes_on and delsp:
            content = content[:-1]
        if depth == open_at and content and not signature:
            made[-1] += content
        else:
            made.append(f"{'>' * depth}{' ' if depth else ''}{content}")
        open_at = depth if goes_on else -1
    return "\n".join(made) + ("\n" if lines and not last else "")


def _octets(part: Message) -> bytes:
    """Return the decoded content of a part; that of a message is the whole message."""
    payload = part.get_payload()
    if isinstance(payload, list):
        inner = payload[0] if payload else None
        if part.get_content_type() == "message/rfc822" and isinstance(inner, Message):
            return bytes(inner.as_bytes(policy=_UNFOLDED_POLICY))
        return bytes(part.as_bytes(policy=_UNFOLDED_POLICY).partition(b"\r\n\r\n")[2])
    content = part.get_payload(decode=True)
    return content if isinstance(content, bytes) else b""


def _attachment(part: Message, html: str) -> dict[str, str | None]:
    kind = part.get_content_type()
    cid = _unfolded(str(part.get("Content-ID", ""))).strip(" \t<>")
    inline = cid and (part.get_content_disposition() != "attachment" or f"cid:{cid}" in html)
    name = _words(_unfolded(_file_name(part)))
    return {
        "name": name or ("attachment.eml" if kind == "message/rfc822" else "attachment"),
        "type": kind,
        "content": base64.b64encode(_octets(part)).decode(),
        "cid": cid if inline else None,
        "cid_url": f"cid:{cid}" if inline else None,
        "disposition": "inline" if inline else "attachment",
    }

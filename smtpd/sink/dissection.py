"""Takes one mail apart: `python -m smtpd.sink.dissection FILE [PART]`, run by the dissector.

The process is bounded, because Python's parser is not: mail that nests deep, or that
has a long parameter, may take it hours. Without PART it writes JSON, with it the octets of an
attachment. It imports the standard library only, so that it starts within 50 ms.
"""

from __future__ import annotations

import base64
import json
import re
import resource
import sys
from collections.abc import Iterator
from contextlib import suppress
from email.errors import MessageError
from email.message import Message
from email.parser import BytesParser
from email.policy import compat32
from pathlib import Path
from typing import Any

from smtpd.sink.header_text import decode_text, decode_words
from smtpd.sink.links import linked, urls

MAX_MAIL_OCTETS = 32 << 20
"""The rest of a larger mail is not read."""

_MAX_CPU_S, _MAX_MEMORY_OCTETS = 5, 512 << 20  # of the process that dissects
_MAX_TEXT_CHARACTERS = 1 << 20  # of a text
_MAX_FIELDS, _MAX_FIELD_CHARACTERS = 1000, 10_000  # of a header
_MAX_PARTS = 1000
_MAX_PICTURE_OCTETS = 8 << 20  # of all pictures in HTML
_PICTURE = re.compile(r"image/[a-z0-9.+-]{1,40}")
_CID = re.compile(r"""(?<=["'(=\s])cid:([^\s"'<>()]{1,200})""", re.IGNORECASE)
# By these elements browsers look up hosts and connect to them, although the policy forbids it. The
# attribute srcdoc of a frame may have them as character references.
_CONNECTING_ELEMENT = re.compile(r"<(?=(?:link|meta|base|iframe)[\s/>])", re.IGNORECASE)
_HTML_START = '<!doctype html><base target="_blank">'  # links open windows, not the frame
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f\ud800-\udfff]")


def parts_of(message: Message) -> Iterator[Message]:
    """Yield the parts without parts; a message within the mail is one of them."""
    waiting = [message]
    while waiting:
        part = waiting.pop()
        inner = part.get_payload()
        if part.get_content_maintype() == "multipart" and isinstance(inner, list):
            waiting.extend(each for each in reversed(inner) if isinstance(each, Message))
        else:
            yield part


def octets_of(part: Message) -> bytes:
    """Return the content of a part, decoded as far as possible."""
    inner: Any = part.get_payload()
    with suppress(MessageError, LookupError, ValueError, TypeError, AttributeError):
        if isinstance(inner, list):
            return b"\n".join(each.as_bytes() for each in inner)
        found = part.get_payload(decode=True)
        return found if isinstance(found, bytes) else b""
    return b""


def _text_of(part: Message) -> str:
    charset = part.get_content_charset()
    data = octets_of(part)[: 4 * _MAX_TEXT_CHARACTERS]
    return clean(decode_text(data, charset))


def clean(text: str) -> str:
    """Return a text with LF as its line ends, and U+FFFD for each control character."""
    lines = text.replace("\r\n", "\n").replace("\r", "\n")
    return _CONTROLS.sub("\ufffd", lines)[:_MAX_TEXT_CHARACTERS]


def _value(value: object) -> str:
    """Return the value of a field as text; octets beyond ASCII are surrogates in it."""
    octets = str(value)[: 4 * _MAX_FIELD_CHARACTERS].encode("utf-8", "surrogateescape")
    return clean(decode_words(decode_text(octets)))[:_MAX_FIELD_CHARACTERS]


def _name_of(part: Message) -> str:
    with suppress(MessageError, LookupError, ValueError, TypeError):
        return _value(part.get_filename("")).replace("\n", " ")
    return ""


def _is_body(part: Message, kind: str) -> bool:
    return part.get_content_type() == kind and part.get_content_disposition() != "attachment"


def framed(markup: str, parts: list[Message]) -> str:
    """Return HTML for the frame: with its pictures inside, and without elements that reach out."""
    left = _MAX_PICTURE_OCTETS
    pictures: dict[str, str] = {}
    for part in parts:
        cid, kind = str(part.get("Content-ID", "")).strip(" \r\n<>"), part.get_content_type()
        if cid and _PICTURE.fullmatch(kind):
            octets = octets_of(part)
            left -= len(octets)
            if left >= 0:
                pictures[cid] = f"data:{kind};base64,{base64.b64encode(octets).decode()}"
    markup = _CONNECTING_ELEMENT.sub("<x-", markup)
    used: set[str] = set()

    def picture(found: re.Match[str]) -> str:
        cid = found[1]
        if cid in used:  # HTML may name one picture a thousand times
            return found[0]
        used.add(cid)
        return pictures.get(cid, found[0])

    return _HTML_START + _CID.sub(picture, markup)


def dissect(content: bytes, *, cut: bool = False) -> dict[str, Any]:
    """Return what the page shows of a mail. `cut` says that the content goes on.

    Raises RecursionError and MemoryError for mail that is made for it.
    """
    message = BytesParser(policy=compat32).parsebytes(content)
    parts = [part for part, _ in zip(parts_of(message), range(_MAX_PARTS), strict=False)]
    plain = next((part for part in parts if _is_body(part, "text/plain")), None)
    markup = next((part for part in parts if _is_body(part, "text/html")), None)
    text = _text_of(plain) if plain is not None else ""
    source = _text_of(markup) if markup is not None else ""
    attachments = [
        {"number": number, "name": _name_of(part), "kind": part.get_content_type()[:100],
         "size": len(octets_of(part))}
        for number, part in enumerate(parts) if part not in (plain, markup)
    ]  # fmt: skip
    return {
        "fields": [
            (name[:_MAX_FIELD_CHARACTERS], _value(value)) for name, value in message.raw_items()
        ][:_MAX_FIELDS],
        "text": list(linked(text)) if plain is not None else None,
        "html": framed(source, parts) if markup is not None else None,
        "links": urls(text, source),
        "attachments": attachments,
        "cut": cut,
    }


def main() -> None:
    """Write what the arguments name."""
    resource.setrlimit(resource.RLIMIT_CPU, (_MAX_CPU_S, _MAX_CPU_S))
    with suppress(ValueError, OSError):  # raised where the system has no such limit
        resource.setrlimit(resource.RLIMIT_AS, (_MAX_MEMORY_OCTETS, _MAX_MEMORY_OCTETS))
    path, *number = sys.argv[1:]
    with Path(path).open("rb") as file:
        content = file.read(MAX_MAIL_OCTETS)
        cut = bool(file.read(1))
    if number:
        parts = list(parts_of(BytesParser(policy=compat32).parsebytes(content)))
        sys.stdout.buffer.write(octets_of(parts[int(number[0])]))
    else:
        sys.stdout.write(json.dumps(dissect(content, cut=cut)))


if __name__ == "__main__":
    main()

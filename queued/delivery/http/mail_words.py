"""The values of words in requests: of the row, of its metadata, and of the composed mail."""

from __future__ import annotations

import base64
import email.policy
import json
import re
from collections.abc import Mapping
from email.message import EmailMessage
from email.parser import BytesParser
from email.utils import getaddresses
from functools import cached_property
from typing import Any

from pgmta.mail.metadata import values_of
from pgmta.model import Item, Message

_LISTS = ("attachments:", "to:", "cc:", "reply_to:")
PREFIXES = ("secrets.", "metadata.", "params.", "header.", *_LISTS)
"""The beginnings of words that go on with a name."""

ROW = ("recipient", "sender", "domain", "message_id", "row_id", "attempt", "tenant", "key")
PARTS = ("subject", "text", "html", "from", "from_name", "from_address", "to", "cc", "reply_to",
         "attachments", "message", "message_base64", "sms", "segments")  # fmt: skip
KNOWN = (*ROW, *PARTS)
"""All other words. `key` is the same at each attempt for a row, and no other row has it."""

_POLICY = email.policy.SMTP.clone(utf8=True)
_END = re.compile(r"[\r\n]+\Z")


class MailWords:
    """Answers words of one message; `octets` is the whole of it. A row is given with each look.

    Parts are read at the first word that needs them.
    """

    def __init__(self, message: Message, octets: bytes, secrets: Mapping[str, str]) -> None:
        self._message = message
        self.octets = octets
        """The whole message."""
        self._secrets = secrets

    def value(self, item: Item, word: str) -> Any:
        """Return the value of a word for a row: a text, a number, a list; None for none."""
        if word in ROW:
            return self._of_row(item, word)
        kind, dot, name = word.partition(".")
        if not dot:
            return self._part(word)
        if kind == "secrets":
            return self._secrets[name]
        if kind == "header":
            found = self._mail.get(name)
            return None if found is None else str(found)
        source = values_of(item.metadata or "{}") if kind == "metadata" else self._params
        found = source.get(name)
        return found if isinstance(found, str | int | float | bool) else None

    def _of_row(self, item: Item, word: str) -> Any:
        match word:
            case "message_id":
                return str(item.message_id)
            case "row_id":
                return str(item.id)
            case "attempt":
                return str(item.attempts)
            case "key":
                return f"pgmta-{item.message_id}-{item.id}"
        found: str = getattr(item, word)
        return found or None

    @cached_property
    def _params(self) -> dict[str, Any]:
        try:
            found = json.loads(self._message.composition or "{}")
        except ValueError:
            return {}
        words = found.get("words") if isinstance(found, dict) else None
        return words if isinstance(words, dict) else {}

    @cached_property
    def _mail(self) -> EmailMessage:
        return BytesParser(_class=EmailMessage, policy=_POLICY).parsebytes(self.octets)

    def _part(self, word: str) -> Any:
        match word:
            case "message":
                return self.octets.decode("utf-8", "replace")
            case "message_base64":
                return base64.b64encode(self.octets).decode()
            case "text" | "sms":
                return self._body("plain")
            case "html":
                return self._body("html")
            case "subject":
                return str(self._mail.get("Subject", ""))
            case "from":
                return str(self._mail.get("From", "")) or None
            case "from_name" | "from_address":
                name, address = next(iter(self._addresses("From")), ("", ""))
                return (name if word == "from_name" else address) or None
            case "to" | "cc" | "reply_to":
                found = self._addresses(word.replace("_", "-"))
                return [{"name": name or None, "address": each} for name, each in found] or None
            case "attachments":
                return [_attachment(each) for each in self._mail.iter_attachments()] or None
        return None

    def _addresses(self, name: str) -> list[tuple[str, str]]:
        return getaddresses([str(each) for each in self._mail.get_all(name, [])])

    def _body(self, kind: str) -> str | None:
        part = self._mail.get_body((kind,))
        if part is None:
            return None
        text: str = part.get_content()
        return text.replace("\r\n", "\n")


def _attachment(part: Any) -> dict[str, Any]:
    content = part.get_payload(decode=True) or b""
    if not isinstance(content, bytes) or part.get_content_maintype() == "message":
        content = part.as_bytes().partition(b"\r\n\r\n")[2]
    cid = str(part.get("Content-ID", "")).strip("<> ")
    return {
        "name": part.get_filename() or "attachment",
        "type": part.get_content_type(),
        "content": base64.b64encode(content).decode(),
        "cid": cid or None,
        "disposition": "inline" if cid else "attachment",
    }

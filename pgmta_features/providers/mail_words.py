"""The values of words in requests: of the row, of its metadata, and of the composed mail."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from functools import cached_property
from typing import Any

from pgmta.compose.composed_message import read_composition
from pgmta.compose.template import Template
from pgmta.compose.words import value_text
from pgmta.mail.address import parse_mailbox
from pgmta.mail.metadata import values_of
from pgmta.mail.telephone import Segments, segments_of
from pgmta.model import Item, Message
from pgmta_features.providers.mail_parts import MailParts, mailbox
from pgmta_features.providers.places import Unplaceable

PREFIXES = ("secrets.", "metadata.", "params.", "header.")
"""Words that begin so go on with a name."""

_MAILBOX_KEYS = ("name", "address", "mailbox")
_FILE_KEYS = ("name", "type", "content", "cid", "cid_url", "disposition")
FILE_LISTS = ("attachments", "files", "inline")
"""The words of lists of files: all attachments, and those without and with a `cid`."""

LISTS: Mapping[str, tuple[str, ...]] = {
    "to": _MAILBOX_KEYS, "cc": _MAILBOX_KEYS, "reply_to": _MAILBOX_KEYS,
    "texts": ("type", "content"), "headers": ("name", "value"), "params": ("name", "value"),
    **dict.fromkeys(FILE_LISTS, _FILE_KEYS),
}  # fmt: skip
"""The words whose value is a list, and the words of its elements."""

ROW_WORDS = ("recipient", "sender", "domain", "message_id", "row_id", "attempt", "tenant", "key")
PART_WORDS = ("subject", "text", "html", "from", "from_name", "from_address", "recipient_name",
         "recipient_mailbox", "recipient_digits", "header_map", "message", "message_base64", "sms",
         "segments", "sms_type", *LISTS)  # fmt: skip
KNOWN_WORDS = (*ROW_WORDS, *PART_WORDS)
"""All other words. `key` is the same at each attempt for a row, and no other row has it."""


class MailWords:
    """Answers words of one message; `octets` is the whole of it. A row is given with each look.

    `template` is that of which the message was composed. Parts are read at the first word that
    needs them.
    """

    def __init__(
        self,
        message: Message,
        octets: bytes,
        secrets: Mapping[str, str],
        template: Template | None = None,
    ) -> None:
        self._message = message
        self._template = template
        self.octets = octets
        """The whole message."""
        self._secrets = secrets

    def value(self, item: Item, word: str) -> Any:
        """Return the value of a word for a row: a text, a number, a list; None for none.

        Raises Unplaceable for a word of the template whose value is not stored.
        """
        if word in ROW_WORDS:
            return self._of_row(item, word)
        kind, dot, name = word.partition(".")
        if not dot:
            return self._part(item, word)
        if kind == "secrets":
            return self._secrets[name]
        if kind == "header":
            return self._mail.field(name)
        if kind == "params":
            return self._params.get(name)
        found = values_of(item.metadata or "{}").get(name)
        return found if isinstance(found, str | int | float | bool) else None

    def _of_row(self, item: Item, word: str) -> Any:
        match word:
            case "message_id":
                return str(item.message_id)
            case "row_id":
                return str(item.id)
            case "attempt":
                return str(item.attempts)
            # a redirect changes the recipient, not the domain of the row
            case "domain" if item.original:
                return parse_mailbox(item.recipient, utf8=True)[1]
            case "key":
                return f"pgmta-{item.message_id}-{item.id}"
        found: str = getattr(item, word)
        return found or None

    @cached_property
    def _params(self) -> dict[str, str]:
        """Return the values of the template's words, as the mail has them."""
        stored = self._message.composition
        if stored is None:
            return {}
        if not stored:
            raise Unplaceable("the values of the template are too large for words")
        words = read_composition(stored).params.get("words", {})
        return {name: value_text(value) for name, value in words.items()}

    def _text_params(self) -> list[dict[str, str]]:
        """Return the words of the plain text in their order, each once."""
        names = self._template.text_words if self._template else ()
        # a link or a token is made when the mail is composed, and is in its text alone
        if missing := [name for name in names if name not in self._params]:
            raise Unplaceable(f"the word {missing[0]} has no stored value")
        return [{"name": name, "value": self._params[name]} for name in names]

    @cached_property
    def sms(self) -> str:
        """Return the plain text without line ends at its end."""
        return (self._mail.text or "").rstrip("\n")

    @cached_property
    def segments(self) -> Segments:
        """Return the segments of that text."""
        return segments_of(self.sms)

    @cached_property
    def _mail(self) -> MailParts:
        return MailParts(self.octets)

    def _part(self, item: Item, word: str) -> Any:
        match word:
            case "message":
                return self.octets.decode("utf-8", "replace")
            case "message_base64":
                return base64.b64encode(self.octets).decode()
            case "recipient_digits":
                return item.recipient.removeprefix("+") or None
            case "recipient_name":
                return self._recipient_name(item)
            case "recipient_mailbox":
                return mailbox(self._recipient_name(item), item.recipient)
            case "from" | "from_name" | "from_address":
                return self._from(word)
            case "sms":
                return self.sms or None
            case "segments":
                return self.segments.number
            case "params":
                return self._text_params() or None
        return self._of_mail(self._mail, word)

    def _of_mail(self, mail: MailParts, word: str) -> Any:
        match word:
            case "text":
                return mail.text
            case "html" | "texts" | "headers" | "header_map" | "attachments":
                return getattr(mail, word) or None
            case "files" | "inline":
                wanted = word == "inline"
                return [e for e in mail.attachments if bool(e["cid"]) == wanted] or None
            case "subject":
                return mail.field("Subject") or ""
            case "to" | "cc" | "reply_to":
                return mail.mailboxes(word.replace("_", "-")) or None
            case "sms_type":
                return "unicode" if self.segments.others else "text"
        return None

    def _from(self, word: str) -> str | None:
        first = next(iter(self._mail.mailboxes("from")), None)
        if first is None:
            return None
        key = {"from_name": "name", "from_address": "address"}.get(word, "mailbox")
        return first[key]

    def _recipient_name(self, item: Item) -> str | None:
        """Return the name that the mail gives to the recipient."""
        boxes = self._mail.mailboxes("to") + self._mail.mailboxes("cc")
        folded = item.recipient.lower()
        return next((e["name"] for e in boxes if (e["address"] or "").lower() == folded), None)

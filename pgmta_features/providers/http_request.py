"""A request for one row: its target, fields and body, with each value encoded for its place."""

from __future__ import annotations

import base64
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple
from urllib.parse import quote_plus, urlsplit

from pgmta.model import Item
from pgmta_features.providers.http_parameters import HttpEndpoint, HttpField, HttpSettings
from pgmta_features.providers.mail_words import MailWords
from pgmta_features.providers.places import (
    Text,
    Unplaceable,
    Values,
    in_header,
    in_url,
    parse_json,
    within,
    write_json,
)

_DOT_SEGMENTS = frozenset((".", ".."))  # servers take them out of a path (RFC 3986, section 5.2.4)
_FILE_WORDS = ("message",)  # their value is a file in a multipart body


@dataclass(frozen=True, slots=True)
class Target:
    """An endpoint whose texts are parsed: its scheme, the field Host, and path with query."""

    https: bool
    host: str
    port: int
    field: str
    path: Text

    @classmethod
    def of(cls, endpoint: HttpEndpoint) -> Target:
        """Return the target of an endpoint, which was checked."""
        text = Text.parse(endpoint.url)
        parts = urlsplit(text.parts[0])
        hop = endpoint.hop
        start = text.parts[0].partition("://")[2]
        slash = start.find("/")
        rest = start[slash:] if slash >= 0 else "/" + start[len(parts.netloc) :]
        return cls(parts.scheme == "https", hop.host, hop.port, parts.netloc,
                   Text((rest, *text.parts[1:])))  # fmt: skip


_ESCAPED = {'"': "%22", "\r": "%0D", "\n": "%0A"}
"""As browsers write names in multipart/form-data (HTML, section 4.10.21.8)."""


class FormPart(NamedTuple):
    """A field of multipart/form-data (RFC 7578); with a file name it is a file."""

    name: str
    content: bytes
    file: str | None = None
    type: str = ""

    def octets(self) -> bytes:
        """Return its header and content. Raises Unplaceable."""
        head = f'Content-Disposition: form-data; name="{_escaped(self.name)}"'
        if self.file is not None:
            head += f'; filename="{_escaped(self.file)}"\r\nContent-Type: {in_header(self.type)}'
        return head.encode() + b"\r\n\r\n" + self.content


def _escaped(name: str) -> str:
    return "".join(_ESCAPED.get(char, char) for char in name)


class FieldMaker(NamedTuple):
    """Makes a field or file of each element of a list."""

    word: str
    key: Text
    value: Text | None
    file: Text
    type: Text

    @classmethod
    def of(cls, name: str, given: HttpField) -> FieldMaker:
        """Return one of its settings, which were checked."""
        value = None if given.value is None else Text.parse(given.value)
        return cls(given.each, Text.parse(name), value, Text.parse(given.name),
                   Text.parse(given.type))  # fmt: skip

    def fields(self, values: Values) -> list[FormPart]:
        """Return the parts, none if the list has no value."""
        return [self._field(within(row, values)) for row in values(self.word) or ()]

    def _field(self, values: Values) -> FormPart:
        key = self.key.fill(values)
        if self.value is not None:
            return FormPart(key, self.value.fill(values).encode())
        content = base64.b64decode(values("content") or "")
        return FormPart(key, content, self.file.fill(values), self.type.fill(values))


class RequestWriter:
    """Writes requests of one destination."""

    def __init__(self, settings: HttpSettings) -> None:
        self._method = settings.method
        self._headers = [(name, Text.parse(text)) for name, text in settings.headers.items()]
        self._has_type = "content-type" in {name.lower() for name in settings.headers}
        basic = settings.basic
        self._basic = (Text.parse(basic.user), Text.parse(basic.password)) if basic else None
        self._json = None if settings.json_ is None else parse_json(settings.json_)
        self._form = _pairs(settings.form)
        self._multipart = [
            (name, Text.parse(each) if isinstance(each, str) else FieldMaker.of(name, each))
            for name, each in (settings.multipart or {}).items()
        ]
        self._has_parts = settings.multipart is not None
        self._body = None if settings.body is None else Text.parse(settings.body)

    def write(self, target: Target, words: MailWords, item: Item) -> bytes:
        """Return a request (RFC 9112, section 2.1).

        Raises Unplaceable if a value can't be at its place.
        """

        def value(word: str) -> Any:
            return words.value(item, word)

        kind, body = self._content(value, words)
        fields = [("Host", target.field), ("User-Agent", "pgmta"), ("Accept-Encoding", "identity")]
        fields += [(name, text.fill(value, in_header)) for name, text in self._headers]
        if kind and not self._has_type:
            fields.append(("Content-Type", kind))
        if self._basic:
            pair = ":".join(text.fill(value) for text in self._basic)
            fields.append(("Authorization", f"Basic {base64.b64encode(pair.encode()).decode()}"))
        if body or self._method != "GET":
            fields.append(("Content-Length", str(len(body))))
        path = target.path.fill(value, in_url)
        if target.path.words and not _DOT_SEGMENTS.isdisjoint(path.partition("?")[0].split("/")):
            raise Unplaceable("a value in the path of the URL is . or .., and leads elsewhere")
        lines = [f"{self._method} {path} HTTP/1.1", *(f"{name}: {text}" for name, text in fields)]
        return "\r\n".join([*lines, "", ""]).encode("ascii") + body

    def _content(self, value: Callable[[str], Any], words: MailWords) -> tuple[str, bytes]:
        if self._json is not None:
            return "application/json", write_json(self._json, value)
        if self._form is not None:
            pairs = ((name, text.fill(value)) for name, text in self._form if _there(text, value))
            body = "&".join(f"{quote_plus(name)}={quote_plus(text)}" for name, text in pairs)
            return "application/x-www-form-urlencoded", body.encode()
        if self._has_parts:
            return self._parts(value, words)
        if self._body is not None:
            if self._body.lone == "message":
                return "message/rfc822", words.octets
            return "text/plain; charset=utf-8", self._body.fill(value).encode()
        return "", b""

    def _parts(self, value: Callable[[str], Any], words: MailWords) -> tuple[str, bytes]:
        """Return a multipart body (RFC 7578)."""
        parts: list[FormPart] = []
        for name, text in self._multipart:
            if isinstance(text, FieldMaker):
                parts += text.fields(value)
            elif text.lone in _FILE_WORDS:
                parts.append(FormPart(name, words.octets, "message.eml", "message/rfc822"))
            elif _there(text, value):
                parts.append(FormPart(name, text.fill(value).encode()))
        edge = secrets.token_hex(16)
        body = b"".join(f"--{edge}\r\n".encode() + each.octets() + b"\r\n" for each in parts)
        return f"multipart/form-data; boundary={edge}", body + f"--{edge}--\r\n".encode()


def _pairs(given: dict[str, str] | None) -> list[tuple[str, Text]] | None:
    return None if given is None else [(name, Text.parse(text)) for name, text in given.items()]


def _there(text: Text, value: Callable[[str], Any]) -> bool:
    """Return whether a field is sent: one that is a word alone needs its value."""
    return not text.lone or text.lone in _FILE_WORDS or value(text.lone) is not None

"""A request for one row: its target, fields and body, with each value encoded for its place."""

from __future__ import annotations

import base64
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote_plus, urlsplit

from pgmta.model import Item
from queued.delivery.http.http_parameters import HttpEndpoint, HttpSettings
from queued.delivery.http.mail_words import MailWords
from queued.delivery.http.places import (
    Text,
    in_header,
    in_url,
    parse_json,
    write_json,
)

_OCTETS = ("message",)  # words whose value is a file in a multipart body


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


class RequestWriter:
    """Writes requests of one destination."""

    def __init__(self, settings: HttpSettings) -> None:
        self._method = settings.method
        self._headers = [(name, Text.parse(text)) for name, text in settings.headers.items()]
        basic = settings.basic
        self._basic = (Text.parse(basic.user), Text.parse(basic.password)) if basic else None
        self._json = None if settings.json_ is None else parse_json(settings.json_)
        self._form = _pairs(settings.form)
        self._multipart = _pairs(settings.multipart)
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
        given = {name.lower() for name, _ in self._headers}
        if kind and "content-type" not in given:
            fields.append(("Content-Type", kind))
        if self._basic:
            pair = ":".join(text.fill(value) for text in self._basic)
            fields.append(("Authorization", f"Basic {base64.b64encode(pair.encode()).decode()}"))
        if body or self._method != "GET":
            fields.append(("Content-Length", str(len(body))))
        path = target.path.fill(value, in_url)
        lines = [f"{self._method} {path} HTTP/1.1", *(f"{name}: {text}" for name, text in fields)]
        return "\r\n".join([*lines, "", ""]).encode("ascii") + body

    def _content(self, value: Callable[[str], Any], words: MailWords) -> tuple[str, bytes]:
        if self._json is not None:
            return "application/json", write_json(self._json, value)
        if self._form is not None:
            pairs = ((name, text.fill(value)) for name, text in self._form if _there(text, value))
            body = "&".join(f"{quote_plus(name)}={quote_plus(text)}" for name, text in pairs)
            return "application/x-www-form-urlencoded", body.encode()
        if self._multipart is not None:
            return self._parts(value, words)
        if self._body is not None:
            if self._body.lone == "message":
                return "message/rfc822", words.octets
            return "text/plain; charset=utf-8", self._body.fill(value).encode("utf-8", "replace")
        return "", b""

    def _parts(self, value: Callable[[str], Any], words: MailWords) -> tuple[str, bytes]:
        """Return a multipart body (RFC 7578)."""
        edge = secrets.token_hex(16)
        out = bytearray()
        for name, text in self._multipart or ():
            if not _there(text, value):
                continue
            escaped = name.replace("\\", "\\\\").replace('"', "%22")
            out += f'--{edge}\r\nContent-Disposition: form-data; name="{escaped}"'.encode()
            if text.lone in _OCTETS:
                out += b'; filename="message.eml"\r\nContent-Type: message/rfc822\r\n\r\n'
                out += words.octets
            else:
                out += b"\r\n\r\n" + text.fill(value).encode("utf-8", "replace")
            out += b"\r\n"
        return f"multipart/form-data; boundary={edge}", bytes(out) + f"--{edge}--\r\n".encode()


def _pairs(given: dict[str, str] | None) -> list[tuple[str, Text]] | None:
    return None if given is None else [(name, Text.parse(text)) for name, text in given.items()]


def _there(text: Text, value: Callable[[str], Any]) -> bool:
    """Return whether a field is sent: one that is a word alone needs its value."""
    return not text.lone or text.lone in _OCTETS or value(text.lone) is not None

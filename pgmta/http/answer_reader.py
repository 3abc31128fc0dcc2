"""Answers of HTTP servers, read by httptools: bounded, with answers of 1xx before each."""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import httptools

from pgmta.mail.text import printable

MAX_BODY_OCTETS = 64 << 10
"""An answer is read up to this size; the rest is not waited for."""

_MAX_PRELIMINARY_ANSWERS = 10  # 1xx, before the answer itself
_MAX_HEADER_OCTETS = 16384
_FRAMING_FACTOR = 16  # the frames of chunks, and trailers, may be so much longer than the body


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """An answer: its status line, its fields by lower-case names, and the start of its body.

    `whole` says whether the body is all there.
    """

    status: int
    reason: str
    fields: Mapping[str, str]
    body: bytes
    whole: bool

    def document(self) -> Any:
        """Return the JSON document; None if it is none, or not whole."""
        body = self.body
        if self.fields.get("content-encoding", "").lower() in ("gzip", "x-gzip"):
            body = _unzipped(body)
        try:
            return json.loads(body) if self.whole and body else None
        except (ValueError, RecursionError):
            return None


def _unzipped(body: bytes) -> bytes:
    """Return the octets, if they are at most MAX_BODY_OCTETS; none otherwise."""
    unzip = zlib.decompressobj(16 + zlib.MAX_WBITS)
    try:
        found = unzip.decompress(body, MAX_BODY_OCTETS)
    except zlib.error:
        return b""
    return found if unzip.eof else b""


class AnswerError(Exception):
    """Octets are no answer by HTTP/1.1 (RFC 9112), or one without end."""


class AnswerReader:
    """Reads one answer after the other from octets, as they come.

    An answer has at most `max_body` octets in its body, and `max_octets` with its framing, by
    default 16 times as many. Of one that has more, the start is the answer, which is not whole.
    """

    def __init__(self, max_body: int = MAX_BODY_OCTETS, max_octets: int = 0) -> None:
        self._max_body = max_body
        self._max_octets = max_octets or _FRAMING_FACTOR * max_body
        self._parser = httptools.HttpResponseParser(self)
        self._begin()

    def _begin(self) -> None:
        self.answer: HttpAnswer | None = None
        """The answer, once it is read; `next` begins another one."""
        self.kept = False
        """Whether the server keeps the connection after the answer."""
        self._octets = 0
        self._before = 0
        self._stray = False
        self._clear()

    def _clear(self) -> None:
        self._reason = b""
        self._fields: dict[str, str] = {}
        self._body = bytearray()
        self._status = 0  # 0 until the header is read

    def next(self) -> None:
        """Begin with the answer to another request."""
        self._begin()

    def feed(self, data: bytes) -> None:
        """Read octets. Raises AnswerError."""
        for at in range(0, len(data), _MAX_HEADER_OCTETS):
            self._feed_part(data[at : at + _MAX_HEADER_OCTETS])
            if self.answer and not self.answer.whole:
                return

    def _feed_part(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            raise AnswerError(f"no HTTP: {printable(str(error))[:100]}") from None
        if self._stray:
            raise AnswerError("an answer without a request")
        if self._before > _MAX_PRELIMINARY_ANSWERS:
            raise AnswerError("answers of 1xx without end")
        if self.answer:
            return
        self._octets += len(data)
        if not self._status:
            if self._octets > _MAX_HEADER_OCTETS:
                raise AnswerError("a header without end")
        elif len(self._body) > self._max_body or self._octets > self._max_octets:
            self._done(bytes(self._body[: self._max_body]), whole=False)

    @property
    def begun(self) -> bool:
        """Whether a part of the answer has come."""
        return bool(self._status or self._octets)

    def end(self) -> None:
        """Note that no more octets come; an answer without a length ends so."""
        bounded = {"content-length", "transfer-encoding"} & self._fields.keys()
        if self._status >= 200 and not self.answer and not bounded:
            self._done(bytes(self._body), whole=True)

    def _done(self, body: bytes, *, whole: bool) -> None:
        reason = self._reason.decode("latin-1")
        self.answer = HttpAnswer(self._status, reason, self._fields, body, whole)

    # -- callbacks of the parser --

    def on_message_begin(self) -> None:
        """Begin with an answer."""
        if self.answer:
            self._stray = True
        else:
            self._clear()

    def on_status(self, reason: bytes) -> None:
        """Take a part of the reason phrase."""
        self._reason += reason

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a field; of several with one name the first counts, and trailers do not."""
        if not self._status:
            self._fields.setdefault(name.decode("latin-1").lower(), value.decode("latin-1"))

    def on_headers_complete(self) -> None:
        """Take the status."""
        self._status = self._parser.get_status_code()

    def on_body(self, data: bytes) -> None:
        """Take a part of the body."""
        if len(self._body) <= self._max_body:
            self._body += data

    def on_message_complete(self) -> None:
        """Take the end of an answer."""
        if self._stray or self.answer:
            return
        if self._status < 200:
            self._before += 1
            self._status = 0
            return
        self.kept = self._parser.should_keep_alive()
        whole = len(self._body) <= self._max_body
        self._done(bytes(self._body[: self._max_body]), whole=whole)

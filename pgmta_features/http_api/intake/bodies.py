"""Bodies that stream: message/rfc822, and multipart/form-data with files."""

from __future__ import annotations

import math
import re
import warnings
from base64 import b64encode
from collections.abc import AsyncIterator, Awaitable
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

from aiohttp import (
    BadContentDispositionHeader,
    BadContentDispositionParam,
    BodyPartReader,
    MultipartReader,
    web,
)
from aiohttp.http_exceptions import HttpProcessingError

from pgmta.http.server_connection import ServerConnection, connection_of
from pgmta.intake.header_completion import HeaderCompletion, HeaderRefusal, MaySend
from pgmta.mail.header import header_block, without_bcc
from pgmta_features.http_api.caller import Caller
from pgmta_features.http_api.checking import STRANGE, checked_body, is_strange, read_json
from pgmta_features.http_api.intake.mails import (
    Envelope,
    EnvelopeQuery,
    MailObject,
    Message,
    given,
    mail_object,
    mail_text,
    raw_object,
)
from pgmta_features.http_api.intake.senders import Senders
from pgmta_features.http_api.intake.uploads import RequestUploads, Stored
from pgmta_features.http_api.operation import RAW_TYPE
from pgmta_features.http_api.problem import Problem, pointer_of

_MAX_FILES = 100
_READ_OCTETS = 16 << 10  # of a part at once
_MAX_HEADER_OCTETS = 64 << 10  # of a content, as submit() allows
_PART_HEADER_OCTETS = 8 << 10
_ENCODINGS = ("", "binary", "8bit", "7bit")
_LINE_END = re.compile(rb"\r?\n")


# stderr would get octets of clients
warnings.filterwarnings("ignore", category=BadContentDispositionHeader)
warnings.filterwarnings("ignore", category=BadContentDispositionParam)


@dataclass(slots=True)
class Body:
    """A mail, as it came and as submit_mails() takes it, and what of it is in uploads."""

    came: Message | Envelope
    mail: MailObject
    stored: list[Stored] = field(default_factory=list)

    def text(self) -> str:
        """Return the mail as JSON."""
        return mail_text(self.mail)

    @property
    def uploads(self) -> list[tuple[str, int]]:
        """The uploads, in the order in which the mail names them."""
        return [(each.upload, each.number) for each in self.stored if each.upload]

    def fingerprint(self) -> bytes:
        """Return what the mail and its octets are, whatever way they came."""
        plain = {key: value for key, value in given(self.came).items() if key != "attachments"}
        files = list(self.mail.get("attachments", ()))
        # behind those that have their content in the JSON itself
        first = len(files) - len(self.stored) if files else 0
        files[first:] = [{**each, "content": ""} for each in files[first:]]
        digests = "".join(each.digest for each in self.stored)
        written = mail_text(
            dict(sorted(plain.items())) | {"attachments": files, "content": digests}
        )
        return sha256(written.encode()).digest()

    def add(self, stored: Stored) -> Any:
        """Add octets, and return what names them in the mail: base64, or their place."""
        place = len(self.uploads)
        self.stored.append(stored)
        return place if stored.upload else b64encode(stored.octets).decode()


class Bodies:
    """Reads the body of a request. The client has the time of a request for each piece of it."""

    def __init__(
        self, request: web.Request, caller: Caller, uploads: RequestUploads, json_octets: int,
        piece_s: float,
    ) -> None:  # fmt: skip
        self._request, self._caller, self._uploads = request, caller, uploads
        self._json_octets, self._piece_s = json_octets, piece_s
        self._connection: ServerConnection = connection_of(request)

    async def raw(self, query: EnvelopeQuery) -> Body:
        """Return the mail that a body of message/rfc822 is. Raises Problem."""
        if query.sender is None or query.recipients is None:
            missing = "sender" if query.sender is None else "recipients"
            raise Problem(400, "invalid", f"{missing}: {RAW_TYPE} needs its envelope in the query.",
                          errors=[{"parameter": missing, "detail": "It is missing."}])  # fmt: skip
        fields = query.model_dump(exclude_none=True)
        fields["recipients"] = [each.strip() for each in query.recipients.split(",")]
        envelope = Envelope.model_validate(fields)
        body = Body(envelope, raw_object(self._caller, envelope))
        self._begin(_MAX_HEADER_OCTETS)
        await self._take_content(body, self._octets())
        return body

    async def multipart(self) -> Body:
        """Return the mail of the part `message`, with files or its `content`. Raises Problem."""
        self._begin(self._json_octets + _MAX_FILES * _PART_HEADER_OCTETS)
        try:
            reader = await self._request.multipart()
            first = await self._next(reader)
            if first is None or first.name != "message":
                raise Problem(
                    422, "invalid", "The first part has to be `message`: the mail as JSON."
                )
            text = b"".join([part async for part in self._part(first, self._json_octets)])
            value = read_json(text)
            if isinstance(value, dict) and "recipients" in value:
                return await self._with_content(reader, checked_body(value, Envelope))
            return await self._with_files(reader, checked_body(value, Message))
        # aiohttp has no error of its own for what it can't read
        except (
            ValueError, AssertionError, web.RequestPayloadError, HttpProcessingError
        ) as error:  # fmt: skip
            raise Problem(400, "invalid", "The body is no whole multipart/form-data (RFC 7578).",
                          headers={"Connection": "close"}) from error  # fmt: skip

    def _begin(self, others: int) -> None:
        """Have the client send its body; up to so many octets of it may not be of the message."""
        self._connection.begin_body(self._request)
        self._uploads.announce((self._request.content_length or 0) - others)

    async def _with_content(self, reader: MultipartReader, envelope: Envelope) -> Body:
        body = Body(envelope, raw_object(self._caller, envelope))
        part = await self._next(reader)
        if part is None or part.name != "content":
            raise Problem(422, "invalid", f"The second part has to be `content`, of {RAW_TYPE}.")
        await self._take_content(body, self._part(part))
        if await self._next(reader):
            raise Problem(422, "invalid", "The part `content` has to be the last one.")
        return body

    async def _with_files(self, reader: MultipartReader, message: Message) -> Body:
        body = Body(message, mail_object(self._caller, message))
        files = list(body.mail.get("attachments", ()))
        while part := await self._next(reader):
            if not part.filename:
                raise Problem(422, "invalid", "Parts behind `message` are files, with a filename, "
                              "or with filename*=UTF-8''NAME (RFC 8187).")  # fmt: skip
            if len(files) >= _MAX_FILES:
                raise Problem(422, "invalid", f"There are more than {_MAX_FILES} files.",
                              headers={"Connection": "close"})  # fmt: skip
            about = {"name": part.filename, "type": part.headers.get("Content-Type"),
                     "content_id": part.headers.get("Content-ID")}  # fmt: skip
            if any(is_strange(text) for text in about.values() if text):
                raise Problem(422, "invalid", STRANGE,
                              pointer=pointer_of("attachments", len(files)))  # fmt: skip
            stored = await self._uploads.store(self._part(part))
            files.append(
                {key: value for key, value in about.items() if value is not None}
                | {"content": body.add(stored)}
            )
        if files:
            body.mail["attachments"] = files
        return body

    async def _take_content(self, body: Body, parts: AsyncIterator[bytes]) -> None:
        may_send = Senders.of(self._caller).may_send
        stored = await self._uploads.store(_checked(_with_line_ends(parts), may_send))
        body.mail["content"] = body.add(stored)

    async def _next(self, reader: MultipartReader) -> BodyPartReader | None:
        part = await self._from_client(reader.next())
        if part is None:
            return None
        if isinstance(part, MultipartReader):
            raise Problem(415, "body-type", "A part is a multipart itself. Each file is a part of "
                          "the form.", headers={"Connection": "close"})  # fmt: skip
        if _encoding(part) not in _ENCODINGS:
            raise Problem(
                415, "body-type", "A part has no Content-Transfer-Encoding or Content-Encoding.",
                headers={"Connection": "close"},
            )  # fmt: skip
        return part

    async def _part(self, part: BodyPartReader, most: int | None = None) -> AsyncIterator[bytes]:
        number = 0
        while not part.at_eof():
            octets = await self._from_client(part.read_chunk(_READ_OCTETS))
            number += len(octets)
            if most is not None and number > most:
                raise Problem(413, "body-size", f"The part `message` has more than {most} octets.",
                              headers={"Connection": "close"})  # fmt: skip
            yield bytes(octets)

    async def _octets(self) -> AsyncIterator[bytes]:
        while octets := await self._from_client(self._request.content.readany()):
            yield octets

    async def _from_client[T](self, reading: Awaitable[T]) -> T:
        """Return what the client has to send in time. How long it then waits for us counts not."""
        self._connection.allow_time(self._piece_s)
        found = await reading
        self._connection.allow_time(math.inf)
        return found


def _encoding(part: BodyPartReader) -> str:
    return (
        part.headers.get("Content-Transfer-Encoding", "") + part.headers.get("Content-Encoding", "")
    ).lower()


async def _with_line_ends(parts: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Yield a content; one whose first line ends with LF alone, as in files of Unix, gets CRLF."""
    first, decided, converts, held = b"", False, False, b""
    async for part in parts:
        if not decided:
            first += part
            if b"\n" not in first and len(first) < _MAX_HEADER_OCTETS:
                continue
            end = first.find(b"\n")
            decided, converts, part = True, end >= 0 and first[end - 1 : end] != b"\r", first
        if converts:
            part, held = held + part, b""
            if part.endswith(b"\r"):  # its LF may come next
                part, held = part[:-1], b"\r"
            part = _LINE_END.sub(b"\r\n", part)
        yield part
    yield held if decided else first


async def _checked(parts: AsyncIterator[bytes], may_send: MaySend) -> AsyncIterator[bytes]:
    """Yield a content without Bcc, once From and Sender are the key's. Raises Problem."""
    beginning = b""
    whole = True
    async for part in parts:
        beginning += part
        if b"\r\n\r\n" in beginning or len(beginning) > _MAX_HEADER_OCTETS:
            whole = False
            break
    completion = HeaderCompletion("", completes=False, may_send=may_send, judges_sender=True)
    _, refusal = completion.apply(beginning, whole=whole)
    if refusal is HeaderRefusal.TOO_LARGE:
        raise Problem(422, "invalid", "The header of the content does not end within 64 KB.",
                      headers={"Connection": "close"})  # fmt: skip
    if refusal is not None:
        raise Problem(
            403, "sender-refused",
            "The content needs one From field, with addresses from which the key may send. A field "
            "Sender has to be such an address, too.",
            headers={"Connection": "close"},
        )  # fmt: skip
    header = header_block(beginning, len(beginning))
    yield without_bcc(header) + beginning[len(header) :]
    async for part in parts:
        yield part

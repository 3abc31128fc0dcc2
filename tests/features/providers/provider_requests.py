"""Requests to the shipped interfaces, and the mail that a provider reads in them."""

from __future__ import annotations

import asyncio
import json
import re
from base64 import b64decode
from collections.abc import Sequence
from datetime import UTC, datetime
from email.utils import getaddresses
from typing import Any, NamedTuple, Self
from urllib.parse import parse_qsl

from pgmta.model import Item, Message
from pgmta_features.providers.http_parameters import HttpParameters, parse_parameters
from pgmta_features.providers.http_transport import HttpTransport
from queued.config import Delivery
from queued.delivery.transport.destination import Destination
from queued.delivery.transport.envelope import Envelope
from queued.delivery.transport.result import Result
from tests.features.providers.scripted_server import Got, ScriptedServer, serving
from tests.support.leases import ALWAYS

NOW = datetime(2026, 11, 27, tzinfo=UTC)
VALUES = {
    "mailgun": {"domain": "mg.example.com"},
    "mailgun_raw": {"domain": "mg.example.com"},
    "twilio": {"account": "AC123", "from": "+15005550006"},
    "vonage": {"key": "abc", "from": "Shop"},
    "whatsapp": {"number": "106540352242922", "version": "v25.0"},
    "whatsapp_text": {"number": "106540352242922", "version": "v25.0"},
}
SECRETS = {"key": "s3cret", "token": "s3cret", "secret": "s3cret"}
TRACE = b"Received: from a.example by mta.example; Fri, 27 Nov 2026 00:00:00 +0000\r\n"


def parameters(name: str, port: int = 0, **over: Any) -> HttpParameters:
    """Return the parameters of a route with an interface; with a port it asks this host.

    A secret would go over https only, so its words become plain texts then.
    """
    given: dict[str, Any] = {"interface": name, "values": VALUES.get(name), **over}
    found = parse_parameters({key: each for key, each in given.items() if each})
    if not port:
        return found
    settings = found.settings.model_dump(by_alias=True, exclude_unset=True)
    for secret, value in SECRETS.items():
        settings = json.loads(json.dumps(settings).replace(f"{{{{secrets.{secret}}}}}", value))
    path = settings["url"][0]["url"].split("/", 3)[3]
    return parse_parameters({**settings, "url": f"http://127.0.0.1:{port}/{path}"})


def envelope(content: bytes, recipient: str = "r@b.example", trace: bytes = TRACE) -> Envelope:
    """Return a row of the message 5."""
    domain = recipient.rpartition("@")[2]
    item = Item(7, 5, "s@a.example", recipient, domain, 1, NOW, 1)
    message = Message(5, len(content), False, "", 0, None)
    return Envelope([item], message, item.sender, trace, len(content), False, content, ALWAYS, NOW)


class Provider:
    """A provider behind the real transport: it keeps the last request, and gives one answer."""

    def __init__(self, name: str, answer: Sequence[bytes] = (), **over: Any) -> None:
        self.name = name
        self.over = over
        self.answer = answer
        self._runner = asyncio.Runner()
        self._server = ScriptedServer(lambda _: list(self.answer))

    def __enter__(self) -> Self:
        self._serving = serving(self._server)
        self._runner.run(self._serving.__aenter__())
        found = parameters(self.name, self._server.port, **self.over)
        self._transport = HttpTransport("mta.example", Delivery())
        self._destination = Destination("http", found)
        return self

    def __exit__(self, *_: object) -> None:
        self._runner.run(self._serving.__aexit__(None, None, None))
        self._runner.close()

    def send(self, mail: Envelope) -> tuple[Result, Got]:
        """Return the result of a row, and the request."""
        result, got = self.try_to_send(mail)
        assert got
        return result, got

    def try_to_send(self, mail: Envelope) -> tuple[Result, Got | None]:
        """Return the result of a row, and the request if there was one."""
        return self._runner.run(self._send(mail))

    async def _send(self, mail: Envelope) -> tuple[Result, Got | None]:
        channel = await self._transport.open(self._destination)
        (result,) = await channel.send(mail)
        channel.close()
        await channel.wait_closed()
        return result, self._server.got.pop() if self._server.got else None


class Field(NamedTuple):
    """A field of a form; with a file name it is a file."""

    name: str
    content: bytes
    file: str | None = None
    type: str | None = None


def form_of(got: Got) -> list[Field]:
    """Return the fields of a form, by the rules of HTML and RFC 7578."""
    kind = got.fields["content-type"]
    if kind == "application/x-www-form-urlencoded":
        pairs = parse_qsl(got.body.decode(), keep_blank_values=True, strict_parsing=True)
        return [Field(name, value.encode()) for name, value in pairs]
    edge = b"--" + kind.partition("multipart/form-data; boundary=")[2].encode()
    first, *parts, end = (b"\r\n" + got.body).split(b"\r\n" + edge)
    assert (first, end) == (b"", b"--\r\n")
    return [_field(part) for part in parts]


def _field(part: bytes) -> Field:
    head, _, content = part.removeprefix(b"\r\n").partition(b"\r\n\r\n")
    found = re.fullmatch(
        r'Content-Disposition: form-data; name="([^"\r\n]*)"'
        r'(?:; filename="([^"\r\n]*)"\r\nContent-Type: ([^\r\n]+))?',
        head.decode(),
    )
    assert found, head
    name, file, kind = found.groups()
    return Field(_unescaped(name), content, None if file is None else _unescaped(file), kind)


def _unescaped(name: str) -> str:
    return name.replace("%22", '"').replace("%0D", "\r").replace("%0A", "\n")


class Seen(NamedTuple):
    """A mail as a provider got it."""

    sender: tuple[str, str]
    reply_to: list[tuple[str, str]]
    subject: str
    text: str | None
    html: str | None
    headers: list[tuple[str, str]]
    attachments: list[tuple[str, str, bytes, str | None]]


def _boxes(line: str) -> list[tuple[str, str]]:
    return getaddresses([line], strict=False) if line else []


def _box(of: dict[str, Any]) -> tuple[str, str]:
    return of.get("name", ""), of["email"]


def seen(name: str, got: Got) -> Seen:
    """Read the mail in a request to an interface that takes parts."""
    if name == "mailgun":
        return _seen_by_mailgun(form_of(got))
    body = json.loads(got.body)
    if name == "sendgrid":
        texts = {each["type"]: each["value"] for each in body.get("content", [])}
        return Seen(
            _box(body["from"]), [_box(each) for each in body.get("reply_to_list", [])],
            body["subject"], texts.get("text/plain"), texts.get("text/html"),
            list(body.get("headers", {}).items()),
            [(e["filename"], e["type"], b64decode(e["content"]), e.get("content_id"))
             for e in body.get("attachments", [])],
        )  # fmt: skip
    if name == "postmark":
        return Seen(
            _boxes(body["From"])[0], _boxes(body.get("ReplyTo", "")), body["Subject"],
            body.get("TextBody"), body.get("HtmlBody"),
            [(each["Name"], each["Value"]) for each in body.get("Headers", [])],
            [(e["Name"], e["ContentType"], b64decode(e["Content"]),
              e["ContentID"].removeprefix("cid:") if "ContentID" in e else None)
             for e in body.get("Attachments", [])],
        )  # fmt: skip
    return Seen(
        _boxes(body["from"])[0], [_boxes(each)[0] for each in body.get("reply_to", [])],
        body["subject"], body.get("text"), body.get("html"),
        list(body.get("headers", {}).items()),
        [(e["filename"], e["content_type"], b64decode(e["content"]), e.get("content_id"))
         for e in body.get("attachments", [])],
    )  # fmt: skip


def _seen_by_mailgun(fields: list[Field]) -> Seen:
    texts = {each.name: each.content.decode() for each in fields if each.file is None}
    known = ("h:Reply-To",)
    headers = [(each.name[2:], each.content.decode()) for each in fields
               if each.name.startswith("h:") and each.name not in known]  # fmt: skip
    files = [
        (
            each.file or "",
            each.type or "",
            each.content,
            each.file if each.name == "inline" else None,
        )
        for each in fields
        if each.file is not None
    ]
    return Seen(_boxes(texts["from"])[0], _boxes(texts.get("h:Reply-To", "")), texts["subject"],
                texts.get("text"), texts.get("html"), headers, files)  # fmt: skip

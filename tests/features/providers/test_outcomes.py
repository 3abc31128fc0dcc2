"""Answers of a provider and their results: unknown only after the last octet of a request."""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Sequence
from datetime import UTC, datetime
from email.utils import format_datetime
from typing import Any

import pytest

from pgmta.errors import DeliveryError
from pgmta.http.answer_reader import HttpAnswer
from pgmta.model import Item, Message
from pgmta.states import Event
from pgmta_features.providers.http_answer import result_of, retry_after
from pgmta_features.providers.http_parameters import parse_parameters
from pgmta_features.providers.http_transport import HttpTransport
from queued.config import Delivery
from queued.delivery.transport.destination import Destination
from queued.delivery.transport.envelope import Envelope
from queued.delivery.transport.result import Result
from tests.features.providers.scripted_server import (
    CUT,
    HANG,
    ScriptedServer,
    said,
    serving,
)
from tests.support.leases import ALWAYS
from tests.support.waiting import let_others_run

NOW = datetime.now(UTC)
CONTENT = b"From: s@a.example\r\nSubject: x\r\n\r\nbody\r\n"
DELIVERED, DEFER, FAIL, UNKNOWN = Event.DELIVERED, Event.DEFER, Event.FAIL, Event.UNKNOWN
BODY = {"json": {"to": "{{recipient}}", "subject": "{{subject}}"}}
QUICK = {"timeouts": {"connect": "2s", "request": "500ms", "answer": "500ms"}}
PATH = {"success": {"path": "status", "values": ["queued"], "later": ["busy"]}}


def envelope(number: int = 1, recipient: str = "r@b.example", content: bytes = CONTENT) -> Envelope:
    item = Item(number, number, "s@a.example", recipient, "b.example", 1, NOW, number)
    message = Message(number, len(content), False, "", 0, None)
    return Envelope([item], message, item.sender, b"", len(content), False, content, ALWAYS, NOW)


async def send(
    server: ScriptedServer, mails: Sequence[Envelope] = (), **given: Any
) -> list[Result]:
    """Send mails over one channel, or another one once it is closed."""
    async with serving(server):
        url = f"http://127.0.0.1:{server.port}/v1/send"
        settings = {"url": url, **BODY, **QUICK, **given}
        transport = HttpTransport("mta.example", Delivery())
        destination = Destination("http", parse_parameters(settings))
        channel = await transport.open(destination)
        results = []
        for mail in mails or [envelope()]:
            if channel.closed:
                channel = await transport.open(destination)
            try:
                results += await channel.send(mail)
            except DeliveryError as error:
                results.append(Result.from_error(error, channel.name))
        channel.close()
        await channel.wait_closed()
        return results


TRAILER = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\nX: "
JSON = "Content-Type: application/json"
ANSWERS: list[tuple[str, list[bytes], dict[str, Any], Event, str]] = [
    ("2xx", said("202 Accepted"), {}, DELIVERED, "HTTP 202 Accepted"),
    ("id", said("200 OK", b'{"id": 7}'), {"id": "id"}, DELIVERED, "HTTP 200 OK id=7"),
    ("2xx that means no", said("200 OK", b'{"status": "bad"}'), PATH, FAIL, "HTTP 200 OK"),
    ("2xx, later", said("200 OK", b'{"status": "busy"}'), PATH, DEFER, "HTTP 200 OK"),
    ("2xx, another", said("202 Accepted"), {"success": {"status": [200]}}, UNKNOWN, "HTTP 202 Acc"),
    ("2xx without JSON", said("200 OK", b"<html>"), PATH, UNKNOWN, "HTTP 200 OK"),
    ("4xx", said("422 No", b'{"code": "bad_to"}'), {"error": "code"}, FAIL, "error=bad_to"),
    ("401", said("401 Unauthorized"), {}, DEFER, "HTTP 401"),
    ("408", said("408 Request Timeout"), {}, DEFER, "HTTP 408"),
    ("429", said("429 Slow", b"", "Retry-After: 7"), {}, DEFER, "HTTP 429"),
    ("5xx", said("503 Down", b"try later"), {}, DEFER, "try later"),
    ("redirect", said("302 Found", b"", "Location: http://127.0.0.1:1/"), {}, DEFER, "HTTP 302"),
    ("slow", [b"HTTP/1.1 200 OK\r\nContent-Le", HANG], {}, UNKNOWN, "timeout"),
    ("cut before the answer", [CUT], {}, UNKNOWN, "closed"),
    ("cut within the answer", [b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n1", CUT], {}, UNKNOWN,
     "within the answer"),
    ("100-continue", [b"HTTP/1.1 100 Continue\r\n\r\n", *said("200 OK")], {}, DELIVERED, "200"),
    ("1xx without end", [b"HTTP/1.1 103 Early\r\n\r\n" * 12], {}, UNKNOWN, "without end"),
    ("endless header", [b"HTTP/1.1 200 OK\r\nX: " + b"x" * 40_000, HANG], {}, UNKNOWN, ""),
    ("endless trailer", [TRAILER, *[b"x" * 16_000] * 100, HANG], {}, DELIVERED, "HTTP 200"),
    ("another protocol", [b"HTTP/1.1 101 Switching\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n",
                          *said("200 OK")], {}, UNKNOWN, "no HTTP"),
    ("no HTTP", [b"220 mail.example ESMTP\r\n", CUT], {}, UNKNOWN, ""),
    ("10 MB", said("200 OK", b"x" * 10_000_000), {}, DELIVERED, "HTTP 200"),
    ("gzip", said("200 OK", gzip.compress(b'{"status": "queued"}'), "Content-Encoding: gzip"),
     PATH, DELIVERED, "HTTP 200"),
    ("a bomb", said("200 OK", gzip.compress(b" " * 9_000_000), "Content-Encoding: gzip"),
     PATH, UNKNOWN, "HTTP 200"),
    ("closes after it", said("200 OK", b"", "Connection: close"), {}, DELIVERED, "HTTP 200"),
    ("until the end", [b"HTTP/1.1 200 OK\r\n\r\nbody", CUT], {}, DELIVERED, "HTTP 200"),
]  # fmt: skip


@pytest.mark.parametrize(("parts", "given", "event", "text"), [row[1:] for row in ANSWERS],
                         ids=[row[0] for row in ANSWERS])  # fmt: skip
async def test_each_answer(
    parts: list[bytes], given: dict[str, Any], event: Event, text: str
) -> None:
    server = ScriptedServer(lambda _: parts)
    (result,) = await send(server, **given)
    assert (result.event, text in result.reply.text) == (event, True), result
    assert result.reply.code == {DELIVERED: 250, DEFER: 451, FAIL: 554, UNKNOWN: 0}[event]
    assert result.host == f"127.0.0.1:{server.port}"
    assert json.loads(server.got[0].body) == {"to": "r@b.example", "subject": "x"}


async def test_before_the_last_octet_nothing_is_unknown() -> None:
    large = envelope(content=CONTENT + b"x" * 5_000_000)
    for server, event in (
        (ScriptedServer(lambda _: [CUT], deaf=True), DEFER),
        (ScriptedServer(lambda _: said("200 OK"), early=True), DEFER),
        (ScriptedServer(lambda _: said("413 Too large"), early=True), FAIL),
        (ScriptedServer(lambda _: said("503 Down"), early=True), DEFER),
        (ScriptedServer(lambda _: [HANG], early=True), DEFER),
    ):
        (result,) = await send(server, [large], json={"raw": "{{message_base64}}"})
        assert result.event is event, result


async def test_a_provider_that_repeats_secrets() -> None:
    """In any text of an answer, in another spelling, or spread over two texts."""
    key = "s3cret/Key-4711+xyz"
    login = {"user": "u", "password": "{{secrets.key}}"}
    given = {"url": "https://api.example/", "basic": login, "id": "id", "error_text": "text"}
    parameters = parse_parameters(given).with_secrets({"key": key})
    spelled = "".join(f"%{octet:02x}" for octet in key.encode())
    for told in (key, spelled, key.lower(), key.encode().hex(), key[3:12],
                 base64.b64encode(f"u:{key}".encode()).decode(), f"{'x' * 280}{key}"):  # fmt: skip
        for status, document in ((200, {"id": told}), (422, {"text": told}), (422, {"x": told})):
            body = json.dumps(document).encode()
            answer = HttpAnswer(status, "No", {}, body, whole=True)
            text = result_of(
                parameters.settings, answer, "h", NOW, parameters.secret_parts
            ).reply.text
            assert f"HTTP {status} No" in text
            assert "(left out)" in text
            assert told[-9:] not in text
    halves = HttpAnswer(422, key[:5], {}, json.dumps({"text": key[5:10]}).encode(), whole=True)
    found = result_of(parameters.settings, halves, "h", NOW, parameters.secret_parts)
    assert (found.event, found.reply.text) == (FAIL, "5.3.0 HTTP 422 (left out)")


async def test_mail_that_is_nested_too_deeply_fails() -> None:
    nested = b"Content-Type: message/rfc822\r\n\r\n" * 5000
    comments = b"From: s@a.example\r\nTo: " + b"(" * 20_000 + b"\r\n\r\nbody\r\n"
    words = {"json": {"to": "{{recipient_mailbox}}", "attachments": "{{attachments}}"}}
    server = ScriptedServer(lambda _: said("200 OK"))
    results = await send(server, [envelope(1, content=nested), envelope(2, content=comments),
                                  envelope(3)], **words)  # fmt: skip
    assert [each.event for each in results] == [FAIL, FAIL, DELIVERED]
    assert results[0].reply.text == "5.6.0 the mail is nested too deeply"


async def test_a_connection_is_kept_and_made_anew() -> None:
    server = ScriptedServer(lambda n: said("200 OK", b"", *["Connection: close"] * (n == 2)))
    results = await send(server, [envelope(n) for n in range(1, 5)])
    assert [each.event for each in results] == [DELIVERED] * 4
    assert server.connections == 2


async def test_octets_of_an_idle_connection_are_no_answer() -> None:
    """Servers say 408 or 400 when they close a connection that waited."""
    late = said("400 Bad Request")
    server = ScriptedServer(lambda n: [*said("200 OK"), *(late if n == 1 else [])])
    results = await send(server, [envelope(n) for n in range(1, 4)])
    assert [each.event for each in results] == [DELIVERED] * 3
    assert server.connections == 2


async def test_an_error_of_ours_after_the_last_octet_leaves_it_in_doubt(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(*_: object) -> Result:
        raise RuntimeError

    monkeypatch.setattr("pgmta_features.providers.http_channel.result_of", broken)
    async with serving(ScriptedServer(lambda _: said("200 OK"))) as server:
        parameters = parse_parameters({"url": f"http://127.0.0.1:{server.port}/", **BODY})
        channel = await HttpTransport("mta.example", Delivery()).open(
            Destination("http", parameters)
        )
        with pytest.raises(RuntimeError):
            await channel.send(envelope())
        assert channel.in_doubt
        channel.abort()


async def test_retry_after_in_both_forms() -> None:
    now = datetime(2026, 11, 27, tzinfo=UTC)
    later = format_datetime(now.replace(minute=5), usegmt=True)
    assert retry_after("7", now) == 7
    assert retry_after(later, now) == 300
    assert retry_after("999999999", now) == 7 * 86400
    odd = "Fri, 27 Nov 2026 00:00:00 +99999999999999999999"
    for text in (odd, None, "", "soon", "-1", "1e9", "²", format_datetime(NOW.replace(year=1999))):
        assert retry_after(text, now) == 0.0
    (result,) = await send(ScriptedServer(lambda _: said("503 No", b"", "Retry-After: 7")))
    assert result.wait is not None
    assert 3 <= result.wait <= 7


async def test_endpoints_take_turns_by_weight() -> None:
    first, second = (ScriptedServer(lambda _: said("200 OK")) for _ in range(2))
    async with serving(second):
        async with serving(first):
            urls = [
                {"url": f"http://127.0.0.1:{server.port}/{{{{row_id}}}}", "weight": weight}
                for server, weight in ((first, 3), (second, 1))
            ]
            parameters = parse_parameters({"url": urls, **BODY, **QUICK})
            transport = HttpTransport("mta.example", Delivery())
            channel = await transport.open(Destination("http", parameters))
            for number in range(400):
                await channel.send(envelope(number))
            # opening took the first turn
            assert abs(len(first.got) - 300) <= 1
        await let_others_run(50)
        (result,) = await channel.send(envelope(9))  # the first one is gone
        assert (result.event, result.host) == (DELIVERED, f"127.0.0.1:{second.port}")
        channel.abort()

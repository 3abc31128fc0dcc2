"""Mail by a provider, as parts and as raw message, is read back equal."""

from __future__ import annotations

import re
from collections.abc import Iterator
from email.header import decode_header, make_header
from typing import Any

import pytest
from hypothesis import assume, given, settings

from pgmta.states import Event
from tests.features.providers.provider_requests import (
    TRACE,
    Provider,
    Seen,
    envelope,
    form_of,
    seen,
)
from tests.features.providers.scripted_server import said
from tests.pgmta.compose.test_mime import composed
from tests.queued.delivery.sending import attempt
from tests.support.composing import Attachment, expected, files, params
from tests.support.odd_messages import odd_messages
from tests.support.rawhop import PIPED, RawHop, run

OK = said("200 OK", b'{"id": "x", "MessageID": "x"}')
PARTS = ["sendgrid", "mailgun", "postmark", "resend"]


def wanted(name: str, given: dict[str, Any], attachments: list[Attachment]) -> Seen:
    """Return the mail of the oracle of the composer, as far as an interface takes it."""
    read = expected(given, attachments)
    html = read.html and read.html.replace("\r\n", "\n")
    body = None if read.body is None else read.body.replace("\r\n", "\n")
    cids = [(n, t, c, i and i.strip("<>")) for n, t, c, i in read.attachments]
    if name == "mailgun":  # the file of a picture has its Content-ID as name
        cids = [(i or n, t, c, i) for n, t, c, i in cids]
        cids.sort(key=lambda each: each[3] is not None)
    if name == "sendgrid":
        body = body or None
    return Seen(read.mailboxes["from"][0], read.mailboxes.get("reply-to", []), read.subject,
                body, html or None, sorted(read.headers), cids)  # fmt: skip


@pytest.fixture(scope="module", params=PARTS)
def provider(request: pytest.FixtureRequest) -> Iterator[Provider]:
    with Provider(request.param, OK) as made:
        yield made


@pytest.fixture(scope="module")
def raw() -> Iterator[Provider]:
    with Provider("mailgun_raw", OK) as made:
        yield made


@pytest.mark.slow
@given(given=params(utf8=False), attachments=files(inline=True))
@settings(max_examples=150, deadline=None)
def test_parts(provider: Provider, given: dict[str, Any], attachments: list[Attachment]) -> None:
    name = provider.name
    if given.get("html") is None:
        attachments = [each for each in attachments if not each.content_id]
    assume(len({key.lower() for key in given.get("headers", {})}) == len(given.get("headers", {})))
    mail = envelope(composed(given, attachments))
    _, got = provider.send(mail)
    found = seen(name, got)
    headers = [
        (n, str(make_header(decode_header(v))) if "=?" in v else v) for n, v in found.headers
    ]
    assert found._replace(headers=sorted(headers)) == wanted(name, given, attachments)
    assert all(value.isascii() for _, value in found.headers)


def by_smtp(content: bytes) -> bytes:
    """Return the octets that a next hop gets."""
    hop = RawHop(ehlo=PIPED.replace(b"250 PIPELINING", b"250-8BITMIME\r\n250 PIPELINING"))
    (result,) = run(attempt(hop, envelope(content)))
    assert result.event is Event.DELIVERED
    return re.sub(rb"^\.", b"", hop.messages[0][1], flags=re.MULTILINE)


@pytest.mark.slow
@given(given=params(utf8=False), attachments=files(inline=True))
@settings(max_examples=100, deadline=None)
def test_raw_message(raw: Provider, given: dict[str, Any], attachments: list[Attachment]) -> None:
    content = composed(given, attachments)
    _, got = raw.send(envelope(content))
    fields = {each.name: each for each in form_of(got)}
    assert fields["message"].content == by_smtp(content) == TRACE + content
    assert fields["message"].file
    assert fields["to"].content == b"r@b.example"
    assert b"\r\nbcc:" not in content.lower()


def test_raw_message_of_any_form(raw: Provider) -> None:
    for content in odd_messages(30, 7, doubled=True):
        _, got = raw.send(envelope(content))
        fields = {each.name: each for each in form_of(got)}
        found = fields["message"].content
        assert by_smtp(content) == found + (b"" if found.endswith(b"\r\n") else b"\r\n")

"""Values in requests: each is encoded for its place, and read back equal."""

from __future__ import annotations

import base64
import json
from dataclasses import replace
from datetime import UTC, datetime
from email import message_from_bytes, policy
from email.message import EmailMessage
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

import h11
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgmta.config.loader import load
from pgmta.config.types import SectionError
from pgmta.errors import ConfigError
from pgmta.model import Item, Message
from pgmta_features.providers.http_parameters import HttpParameters, parse_parameters
from pgmta_features.providers.http_request import RequestWriter, Target
from pgmta_features.providers.mail_words import MailWords
from pgmta_features.providers.places import Unplaceable
from queued.config.shaping import Shaping
from queued.delivery.transports import parsers

NOW = datetime.now(UTC)
URL = "https://api.example/v1/send"
SECRETS = {"key": "s3cret", "user": "shop"}


def mail(subject: str = "Hello") -> bytes:
    """A mail with text, html, an attachment and a picture of the html."""
    message = EmailMessage()
    message["From"] = "Ann <ann@a.example>"
    message["To"] = "Bob <bob@b.example>"
    message["Subject"] = subject
    message.set_content("Grüße\n")
    message.add_alternative("<p>Grüße</p>", subtype="html")
    message.add_attachment(b"\x00\xff", maintype="application", subtype="pdf", filename="ü.pdf")
    return message.as_bytes(policy=policy.SMTP)


def request(
    octets: bytes = b"", metadata: dict[str, Any] | None = None, recipient: str = "r@b.example",
    **given: Any,
) -> tuple[h11.Request, bytes]:  # fmt: skip
    """Write a request, and read it as a server does."""
    parameters: HttpParameters = parse_parameters({"url": URL, **given})
    item = Item(7, 5, "s@a.example", recipient, "b.example", 1, NOW, 1,
                metadata=json.dumps(metadata) if metadata else None)  # fmt: skip
    message = Message(5, len(octets), False, "", 0, None)
    words = MailWords(message, octets or mail(), SECRETS)
    target = Target.of(parameters.settings.url[0])
    server = h11.Connection(h11.SERVER)
    server.receive_data(RequestWriter(parameters.settings).write(target, words, item))
    head, body = server.next_event(), b""
    assert isinstance(head, h11.Request)
    while isinstance(part := server.next_event(), h11.Data):
        body += part.data
    assert isinstance(part, h11.EndOfMessage)
    assert server.trailing_data == (b"", False)
    return head, body


def fields(of: h11.Request) -> dict[str, str]:
    return {name.decode(): value.decode() for name, value in of.headers}


# a path with . or .. is refused: it leads elsewhere
VALUES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1)


@given(VALUES.filter(lambda value: value not in (".", "..")))
def test_any_value_is_read_back(value: str) -> None:
    metadata = {"v": value}
    _, body = request(metadata=metadata, json={"a": ["x{{metadata.v}}"], "b": "{{metadata.v}}"})
    assert json.loads(body) == {"a": [f"x{value}"], "b": value}
    _, body = request(metadata=metadata, form={"v": "{{metadata.v}}"})
    assert parse_qsl(body.decode(), keep_blank_values=True) == [("v", value)]
    made, _ = request(metadata=metadata, url=f"{URL}/{{{{metadata.v}}}}?q={{{{metadata.v}}}}")
    parts = urlsplit(made.target.decode())
    assert unquote(parts.path.removeprefix("/v1/send/")) == value
    assert parse_qsl(parts.query, keep_blank_values=True) == [("q", value)]


@pytest.mark.parametrize("value", ["a\r\nX: y", "a\nb", "\x00", "ü", "\x7f"])
def test_header_fields_refuse_what_they_cannot_have(value: str) -> None:
    with pytest.raises(Unplaceable):
        request(metadata={"v": value}, headers={"X-V": "{{metadata.v}}"}, body="x")


@pytest.mark.parametrize("value", [".", ".."])
def test_a_value_leads_to_no_other_path(value: str) -> None:
    url = f"{URL}/{{{{metadata.v}}}}/send"
    with pytest.raises(Unplaceable, match="leads elsewhere"):
        request(metadata={"v": value}, url=url, body="x")
    made, _ = request(metadata={"v": f"{value}/x"}, url=f"{url}?q={{{{metadata.v}}}}", body="x")
    assert made.target == f"/v1/send/{value}%2Fx/send?q={value}%2Fx".encode()


def test_numbers_lists_and_words_without_a_value() -> None:
    _, body = request(
        metadata={"n": 5, "yes": True, "list": [1]},
        json={"n": "{{metadata.n}}", "yes": "{{metadata.yes}}", "list": "{{metadata.list}}",
              "none": {"a": "{{metadata.none}}"}, "kept": "<{{metadata.none}}>",
              "fixed": [1, None]},
    )  # fmt: skip
    assert json.loads(body) == {"n": "5", "yes": True, "kept": "<>", "fixed": [1, None]}


def test_mail_as_parts_and_as_a_whole() -> None:
    document = {
        "from": {"email": "{{from_address}}", "name": "{{from_name}}"},
        "to": [{"email": "{{recipient}}"}],
        "subject": "{{subject}}", "text": "{{text}}", "html": "{{html}}",
        "attachments": {"each": "attachments",
                        "item": {"name": "{{name}}", "type": "{{type}}", "data": "{{content}}",
                                 "cid": "{{cid}}"}},
        "key": "{{key}}", "raw": "{{message_base64}}",
    }  # fmt: skip
    octets = mail("Sch\u00f6n \U0001f600")
    made, body = request(octets, json=document)
    found = json.loads(body)
    assert base64.b64decode(found.pop("raw")) == octets
    assert found == {
        "from": {"email": "ann@a.example", "name": "Ann"}, "to": [{"email": "r@b.example"}],
        "subject": "Sch\u00f6n \U0001f600", "text": "Grüße\n", "html": "<p>Grüße</p>\n",
        "attachments": [{"name": "ü.pdf", "type": "application/pdf", "data": "AP8="}],
        "key": "pgmta-5-7",
    }  # fmt: skip
    assert fields(made)["content-type"] == "application/json"
    made, body = request(octets, body="{{message}}")
    assert (body, fields(made)["content-type"]) == (octets, "message/rfc822")
    made, body = request(octets, multipart={"to": "{{recipient}}", "message": "{{message}}"})
    kind = fields(made)["content-type"]
    whole = message_from_bytes(f"Content-Type: {kind}\r\n\r\n".encode() + body)
    names = [part.get_param("name", header="content-disposition") for part in whole.walk()]
    assert names[1:3] == ["to", "message"]
    assert octets in body


def test_secrets_are_in_requests_alone() -> None:
    login = {"user": "{{secrets.user}}", "password": "{{secrets.key}}"}
    made, _ = request(basic=login, body="x")
    assert fields(made)["authorization"] == "Basic " + base64.b64encode(b"shop:s3cret").decode()
    parameters = parse_parameters({"url": URL, "basic": login, "body": "x"})
    filled = parameters.with_secrets(SECRETS)
    assert "s3cret" not in f"{filled} {filled!r} {filled.key}"
    assert filled.key != parameters.key
    assert parameters.secret_names == {"key", "user"}
    for body in (
        {"json": [{"each": "headers", "item": "{{secrets.key}}"}]},
        {"multipart": {"x": {"each": "headers", "value": "{{secrets.key}}"}}},
    ):
        assert parse_parameters({"url": URL, **body}).secret_names == {"key"}
        with pytest.raises(SectionError, match="https only"):
            parse_parameters({"url": "http://api.example/", **body})


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"url": "api.example/x"}, "expected https://host/path"),
        ({"url": "https://user@api.example/"}, "without a login"),
        ({"url": "https://{{recipient}}/x"}, "expected https://host/path"),
        ({"url": "https://api.example/x#y"}, "fragment"),
        ({"body": "{{recipiend}}"}, "did you mean 'recipient'"),
        ({"body": "{{recipient"}, "not closed"),
        ({"headers": {"Host": "x"}}, "set by pgmta"),
        ({"headers": {"X Y": "x"}}, "pattern"),
        ({"json": {}, "form": {}}, "a request has one body"),
        ({"method": "GET", "body": "x"}, "a GET has no body"),
        ({"url": "http://api.example/", "body": "{{secrets.key}}"}, "https only"),
        ({"success": {"path": "a..b"}}, "no path"),
        ({"success": {"values": ["queued"]}}, "values: needs the path"),
        ({"json": {"each": "recipient", "item": "x"}}, "'recipient' is no list"),
        ({"success": {"status": 700}}, "less than or equal to 599"),
    ],
)
def test_mistakes(given: dict[str, Any], reason: str) -> None:
    with pytest.raises(SectionError, match="1 validation error") as caught:
        parse_parameters({"url": URL, **given})
    assert reason in str(caught.value)


def test_mistakes_have_the_line_of_their_key(tmp_path: Path) -> None:
    file = tmp_path / "shaping.yaml"
    file.write_text(
        "routes:\n- transport: http\n  parameters:\n    url: https://api.example/\n"
        "    sucess: {path: a}\n    timeouts: {answr: 1s}\n"
        "- transport: http\n  parameters:\n    url: htps://api.example/\n"
        "- transport: http\n  parameters:\n    interface: resend\n    bdy: x\n"
    )
    with pytest.raises(ConfigError) as caught:
        load(file, Shaping, transports=parsers())
    begin = f"{file}:"
    assert str(caught.value).splitlines() == [
        f"{begin}5: routes[0].parameters.sucess: unknown key; did you mean 'success'?",
        f"{begin}6: routes[0].parameters.timeouts.answr: unknown key; did you mean 'answer'?",
        f"{begin}9: routes[1].parameters.url[0]: 'htps://api.example/': "
        "expected https://host/path, without a login",
        f"{begin}13: routes[2].parameters.bdy: unknown key; did you mean 'body'?",
    ]


def test_the_domain_of_redirected_mail_is_that_of_its_address() -> None:
    row = Item(7, 5, "s@a.example", "r@b.example", "b.example", 1, NOW, 1)
    words = MailWords(Message(5, 1, False, "", 0, None), mail(), SECRETS)
    assert words.value(row, "domain") == "b.example"
    copy = replace(row, recipient="team@Staging.example", original=row)
    assert words.value(copy, "domain") == "staging.example"

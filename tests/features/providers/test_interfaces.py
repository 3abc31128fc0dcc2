"""Each shipped description: its request, its answers, and what a route may say of it.

The forms of requests and answers are those of the sources that the description names.
"""

from __future__ import annotations

import json
import re
from email.message import EmailMessage
from email.policy import SMTP
from functools import cache
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from pgmta.compose.mime import MessageIdentity, compose_head
from pgmta.compose.template import TemplateSource, compile_template
from pgmta.states import Event
from pgmta_features.providers.http_parameters import parse_parameters
from pgmta_features.providers.interface import interface_names, read_interface
from queued.delivery.transport.envelope import Envelope
from tests.features.providers.provider_requests import (
    VALUES,
    Field,
    Provider,
    envelope,
    form_of,
    parameters,
)
from tests.features.providers.scripted_server import said
from tests.support.daemons import ROOT

DELIVERED, DEFER, FAIL, UNKNOWN = Event.DELIVERED, Event.DEFER, Event.FAIL, Event.UNKNOWN
SMS = ("twilio", "vonage", "whatsapp", "whatsapp_text")
OK = said("200 OK")


@cache
def sample() -> bytes:
    """A mail with all that an interface may take."""
    mail = EmailMessage()
    mail["From"] = '"Jörg, Shop" <shop@a.example>'
    mail["To"] = "Bob <r@b.example>, Eve <eve@b.example>"
    mail["Cc"] = "cc@b.example"
    mail["Reply-To"] = "Help <help@a.example>"
    mail["Subject"] = "Grüße \U0001f600"
    mail["List-Unsubscribe"] = "<https://a.example/u?t=1>"
    mail["List-Unsubscribe-Post"] = "List-Unsubscribe=One-Click"
    mail["Message-ID"] = "<1@a.example>"
    mail.set_content("Hello\n")
    mail.add_alternative('<img src="cid:logo@x">', subtype="html")
    html = mail.get_payload()[1]  # type: ignore[index]
    html.add_related(b"png", "image", "png", cid="<logo@x>", filename="l.png")  # type: ignore[union-attr]
    mail.add_attachment(b"%PDF", maintype="application", subtype="pdf", filename='ü".pdf')
    return mail.as_bytes(policy=SMTP)


def sms(text: str = "Hi €") -> bytes:
    mail = EmailMessage()
    mail["From"] = "shop@a.example"
    mail.set_content(text)
    return mail.as_bytes(policy=SMTP)


ORDER = TemplateSource(
    sender="shop@a.example", from_="Shop <shop@a.example>", subject="{{number}}",
    body="Hello {{name}}, your order {{number}} is on its way. Bye, {{name}}!",
    headers={"WhatsApp-Template": "order_shipped", "WhatsApp-Language": "en_US"},
)  # fmt: skip


def of_template(mail: Envelope, stored: str | None = None) -> Envelope:
    """Return the mail as one of the template ORDER; `stored` is its composition."""
    template = compile_template(ORDER)
    words: dict[str, object] = {"number": 4711, "name": "Ann"}
    parts = template.fill(words, [("", "+4917012345678")])
    mail.content = compose_head(parts, MessageIdentity(f"<{'0' * 32}@a.example>", mail.started))
    mail.template = template
    composition = json.dumps([3, {"to": [], "words": words}])
    mail.message.composition = composition if stored is None else stored
    return mail


UNSUBSCRIBE = {
    "List-Unsubscribe": "<https://a.example/u?t=1>",
    "List-Unsubscribe-Post": "List-Unsubscribe=One-Click",
}
HTML = '<img src="cid:logo@x">\n'
REQUESTS: dict[str, Any] = {
    "sendgrid": {
        "personalizations": [{"to": [{"email": "r@b.example", "name": "Bob"}]}],
        "from": {"email": "shop@a.example", "name": "Jörg, Shop"},
        "reply_to_list": [{"email": "help@a.example", "name": "Help"}],
        "subject": "Grüße \U0001f600",
        "content": [{"type": "text/plain", "value": "Hello\n"},
                    {"type": "text/html", "value": HTML}],
        "attachments": [
            {"content": "cG5n", "type": "image/png", "filename": "l.png",
             "disposition": "inline", "content_id": "logo@x"},
            {"content": "JVBERg==", "type": "application/pdf", "filename": 'ü".pdf',
             "disposition": "attachment"},
        ],
        "headers": UNSUBSCRIBE,
        "custom_args": {"pgmta": "pgmta-5-7"},
    },
    "postmark": {
        "From": '"Jörg, Shop" <shop@a.example>', "To": "Bob <r@b.example>",
        "ReplyTo": "Help <help@a.example>", "Subject": "Grüße \U0001f600", "TextBody": "Hello\n",
        "HtmlBody": HTML,
        "Headers": [{"Name": name, "Value": value} for name, value in UNSUBSCRIBE.items()],
        "Attachments": [
            {"Name": "l.png", "Content": "cG5n", "ContentType": "image/png",
             "ContentID": "cid:logo@x"},
            {"Name": 'ü".pdf', "Content": "JVBERg==", "ContentType": "application/pdf"},
        ],
        "Metadata": {"pgmta": "pgmta-5-7"},
    },
    "resend": {
        "from": '"Jörg, Shop" <shop@a.example>', "to": ["Bob <r@b.example>"],
        "reply_to": ["Help <help@a.example>"], "subject": "Grüße \U0001f600", "text": "Hello\n",
        "html": HTML, "headers": UNSUBSCRIBE, "tags": [{"name": "pgmta", "value": "pgmta-5-7"}],
        "attachments": [
            {"content": "cG5n", "filename": "l.png", "content_type": "image/png",
             "content_id": "logo@x"},
            {"content": "JVBERg==", "filename": 'ü".pdf', "content_type": "application/pdf"},
        ],
    },
    "mailgun": [
        Field("from", '"Jörg, Shop" <shop@a.example>'.encode()),
        Field("to", b"Bob <r@b.example>"), Field("subject", "Grüße \U0001f600".encode()),
        Field("text", b"Hello\n"), Field("html", HTML.encode()),
        Field("h:Reply-To", b"Help <help@a.example>"),
        *(Field(f"h:{name}", value.encode()) for name, value in UNSUBSCRIBE.items()),
        Field("v:pgmta", b"pgmta-5-7"),
        Field("attachment", b"%PDF", 'ü".pdf', "application/pdf"),
        Field("inline", b"png", "logo@x", "image/png"),
    ],
    "mailgun_raw": [
        Field("to", b"r@b.example"), Field("message", sample(), "message.eml", "message/rfc822"),
        Field("v:pgmta", b"pgmta-5-7"),
    ],
    "twilio": [
        Field("To", b"+4917012345678"), Field("From", b"+15005550006"),
        Field("Body", "Hi €".encode()),
    ],
    "whatsapp": {
        "messaging_product": "whatsapp", "recipient_type": "individual", "to": "+4917012345678",
        "type": "template", "template": {
            "name": "order_shipped", "language": {"code": "en_US"},
            "components": [{"type": "body", "parameters": [
                {"type": "text", "text": "Ann"}, {"type": "text", "text": "4711"},
            ]}],
        },
        "biz_opaque_callback_data": "pgmta-5-7",
    },
    "whatsapp_text": {
        "messaging_product": "whatsapp", "recipient_type": "individual", "to": "+4917012345678",
        "type": "text", "text": {"body": "Hi €"}, "biz_opaque_callback_data": "pgmta-5-7",
    },
    "vonage": [
        Field("to", b"4917012345678"), Field("from", b"Shop"), Field("text", "Hi €".encode()),
        Field("type", b"text"), Field("client-ref", b"pgmta-5-7"),
    ],
}  # fmt: skip

PATHS = {
    "sendgrid": ("/v3/mail/send", "authorization", "Bearer s3cret"),
    "mailgun": ("/v3/mg.example.com/messages", "authorization", "Basic YXBpOnMzY3JldA=="),
    "mailgun_raw": ("/v3/mg.example.com/messages.mime", "authorization", "Basic YXBpOnMzY3JldA=="),
    "postmark": ("/email", "x-postmark-server-token", "s3cret"),
    "resend": ("/emails", "idempotency-key", "pgmta-5-7"),
    "twilio": ("/2010-04-01/Accounts/AC123/Messages.json", "authorization",
               "Basic QUMxMjM6czNjcmV0"),
    "whatsapp": ("/v25.0/106540352242922/messages", "authorization", "Bearer s3cret"),
    "whatsapp_text": ("/v25.0/106540352242922/messages", "authorization", "Bearer s3cret"),
    "vonage": ("/sms/json", "authorization", "Basic YWJjOnMzY3JldA=="),
}  # fmt: skip


def test_all_are_here() -> None:
    assert sorted(REQUESTS) == sorted(PATHS) == interface_names()


@pytest.mark.parametrize("name", interface_names())
def test_each_request(name: str) -> None:
    to_phone = name in SMS
    mail = envelope(sms(), "+4917012345678", b"") if to_phone else envelope(sample(), trace=b"")
    if name == "whatsapp":
        mail = of_template(mail)
    with Provider(name, OK) as provider:
        _, got = provider.send(mail)
    found = json.loads(got.body) if isinstance(REQUESTS[name], dict) else form_of(got)
    assert found == REQUESTS[name]
    path, field, value = PATHS[name]
    assert got.line == f"POST {path} HTTP/1.1"
    assert got.fields[field] == value


def test_a_text_beyond_gsm_7_bit_is_unicode() -> None:
    with Provider("vonage", OK) as provider:
        _, got = provider.send(envelope(sms("мир"), "+4917012345678", b""))
    assert Field("type", b"unicode") in form_of(got)


@pytest.mark.parametrize(
    ("stored", "reason"),
    [
        ("", "the values of the template are too large for words"),
        ('[3, {"to": [], "words": {"number": 1}}]', "the word name has no stored value"),
    ],
)
def test_a_parameter_without_a_stored_value_fails_the_mail(stored: str, reason: str) -> None:
    """Without one of them the others would be in its place."""
    with Provider("whatsapp", OK) as provider:
        result, asked = provider.try_to_send(
            of_template(envelope(sms(), "+4917012345678", b""), stored)
        )
    assert (result.event, result.reply.text) == (FAIL, f"5.6.0 {reason}")
    assert not asked


def fault(code: int, message: str, details: str = "") -> dict[str, Any]:
    """Return an error of Meta's Graph API."""
    error: dict[str, Any] = {"message": message, "type": "OAuthException", "code": code}
    if details:
        error["error_data"] = {"messaging_product": "whatsapp", "details": details}
    return {"error": error | {"fbtrace_id": "Az8or2"}}


NAMED = {"each": "params", "item": {"type": "text", "parameter_name": "{{name}}",
                                    "text": "{{value}}"}}  # fmt: skip
PAGE = (ROOT / "docs" / "mail" / "whatsapp.md").read_text(encoding="utf-8")
(ROUTE,) = re.findall(r"```yaml\n( +parameters:\n.*?)```", PAGE, re.DOTALL)


@pytest.mark.parametrize(
    ("components", "expected"),
    [
        (yaml.safe_load(ROUTE.replace("code", "number"))["parameters"]["json"]["template"],
         [[{"type": "text", "text": "4711"}]] * 2),
        ({"components": [{"type": "body", "parameters": NAMED}]},
         [[{"type": "text", "parameter_name": name, "text": text}
           for name, text in (("name", "Ann"), ("number", "4711"))]]),
        ({"components": None}, []),
    ],
)  # fmt: skip
def test_a_route_says_which_words_go(components: Any, expected: Any) -> None:
    """As the page has it: words by their name, named parameters, and none."""
    with Provider("whatsapp", OK, json={"template": components}) as provider:
        _, got = provider.send(of_template(envelope(sms(), "+4917012345678", b"")))
    found = json.loads(got.body)["template"].get("components", [])
    assert [each["parameters"] for each in found] == expected


# answers of the sources, and their results
ANSWERS: list[tuple[str, str, Any, Event, str]] = [
    ("sendgrid", "202 Accepted\r\nX-Message-Id: 14c5d75ce93", None, DELIVERED, "id=14c5d75ce93"),
    ("sendgrid", "200 OK", None, UNKNOWN, "HTTP 200"),
    ("sendgrid", "400 BAD REQUEST",
     {"errors": [{"field": "identifier1", "message": "error message explained"}]}, FAIL,
     "error_sub_type=identifier1 error_text=error message explained"),
    ("sendgrid", "401 Unauthorized", {"errors": [{"field": None, "message": "no"}]}, DEFER, "no"),
    ("sendgrid", "413 Payload too large", None, FAIL, "HTTP 413"),
    ("sendgrid", "429 Too Many Requests", None, DEFER, "HTTP 429"),
    *((name, *row) for name in ("mailgun", "mailgun_raw") for row in [
        ("200 OK", {"id": "<20160306015544.116301.25145@example.org>",
                    "message": "Queued. Thank you."}, DELIVERED,
         "id=<20160306015544.116301.25145@example.org>"),
        ("200 OK", "Mailgun Magnificent API", UNKNOWN, "HTTP 200"),
        ("400 Bad Request", {"message": "to parameter is not a valid address"}, FAIL,
         "error_text=to parameter is not a valid address"),
        ("404 Not Found", {"message": "Domain not found: mg.example.com"}, DEFER, "not found"),
        ("429 Too Many Requests", None, DEFER, "HTTP 429"),
    ]),
    ("postmark", "200 OK", {"To": "r@b.example", "SubmittedAt": "2026-02-10T12:00:00.000-05:00",
                            "MessageID": "0a12-b", "ErrorCode": 0, "Message": "OK"}, DELIVERED,
     "id=0a12-b"),
    ("postmark", "200 OK", {"To": "r@b.example", "MessageID": "0a12-b",
                            "Message": "Message accepted, but delivery may be delayed."},
     DELIVERED, "id=0a12-b"),
    ("postmark", "422 Unprocessable Entity",
     {"ErrorCode": 300, "Message": "Invalid 'To' address: 'x'."}, FAIL,
     "error=300 error_text=Invalid 'To' address: 'x'."),
    ("postmark", "422 Unprocessable Entity",
     {"ErrorCode": 406, "Message": "You tried to send to a recipient that has been marked as "
      "inactive."}, FAIL, "error=406"),
    ("postmark", "422 Unprocessable Entity", {"ErrorCode": 405, "Message": "Not allowed to send"},
     DEFER, "error=405"),
    ("postmark", "401 Unauthorized", {"ErrorCode": 10, "Message": "Bad or missing API token"},
     DEFER, "error=10"),
    ("resend", "200 OK", {"id": "49a3999c-0ce1-4ea6-ab68-afcd6dc2e794"}, DELIVERED,
     "id=49a3999c-0ce1-4ea6-ab68-afcd6dc2e794"),
    ("resend", "422 Unprocessable Entity",
     {"statusCode": 422, "name": "missing_required_field", "message": "Missing `from` field"},
     FAIL, "error=missing_required_field error_text=Missing `from` field"),
    ("resend", "409 Conflict",
     {"statusCode": 409, "name": "concurrent_idempotent_requests", "message": "under way"},
     DEFER, "error=concurrent_idempotent_requests"),
    ("resend", "429 Too Many Requests",
     {"statusCode": 429, "name": "rate_limit_exceeded", "message": "Too many requests"}, DEFER,
     "error=rate_limit_exceeded"),
    ("twilio", "201 Created", {"sid": "SM1f0e8ae6ade43cb3c0ce4525424e404f", "status": "queued",
                               "error_code": None}, DELIVERED,
     "id=SM1f0e8ae6ade43cb3c0ce4525424e404f"),
    ("twilio", "400 Bad Request", {"code": 21211, "message": "The 'To' number is not valid.",
                                   "more_info": "https://www.twilio.com/docs/errors/21211",
                                   "status": 400}, FAIL, "error=21211 error_text=The 'To' number"),
    ("twilio", "400 Bad Request", {"code": 21611, "message": "queue full", "status": 400}, DEFER,
     "error=21611"),
    ("twilio", "429 Too Many Requests", {"code": 20429, "message": "Too many requests."}, DEFER,
     "error=20429"),
    ("vonage", "200 OK", {"message-count": "1", "messages": [
        {"to": "447700900000", "message-id": "0C000000217B7F02", "status": "0",
         "remaining-balance": "15.53590000", "message-price": "0.03330000",
         "network": "23410"}]}, DELIVERED, "id=0C000000217B7F02"),
    ("vonage", "200 OK", {"message-count": "1", "messages": [
        {"status": "2", "error-text": "Missing to param"}]}, FAIL,
     "error=2 error_text=Missing to param"),
    ("vonage", "200 OK", {"message-count": "1", "messages": [
        {"status": "1", "error-text": "Throughput Rate Exceeded"}]}, DEFER, "error=1"),
    ("vonage", "200 OK", {"message-count": "0", "messages": []}, FAIL, "HTTP 200"),
    *((name, *row) for name in ("whatsapp", "whatsapp_text") for row in [
        ("200 OK", {"messaging_product": "whatsapp",
                    "contacts": [{"input": "+16505551234", "wa_id": "16505551234"}],
                    "messages": [{"id": "wamid.HBgLMTY1MDU1NTEyMzQVAgARGBI=",
                                  "message_status": "accepted"}]}, DELIVERED,
         "id=wamid.HBgLMTY1MDU1NTEyMzQVAgARGBI="),
        ("400 Bad Request", fault(131047, "(#131047) Re-engagement message", "24 hours"), FAIL,
         "error=131047 error_text=24 hours"),
        ("400 Bad Request", fault(131026, "(#131026) Message undeliverable"), FAIL,
         "error=131026"),
        ("404 Not Found", fault(132001, "(#132001) Template name does not exist"), FAIL,
         "error=132001"),
        ("400 Bad Request", fault(130429, "(#130429) Rate limit hit"), DEFER, "error=130429"),
        ("400 Bad Request", fault(131056, "(#131056) Pair rate limit hit"), DEFER, "error=131056"),
        ("401 Unauthorized", fault(190, "Error validating access token"), DEFER, "error=190"),
        ("403 Forbidden", fault(368, "Temporarily blocked"), DEFER, "error=368"),
        ("500 Internal Server Error", fault(131000, "(#131000) Something went wrong"), DEFER,
         "error=131000"),
    ]),
]  # fmt: skip


@pytest.mark.parametrize("name", interface_names())
def test_each_answer(name: str) -> None:
    with Provider(name) as provider:
        for of, status, body, event, text in ANSWERS:
            if of != name:
                continue
            octets = b"" if body is None else json.dumps(body).encode()
            provider.answer = said(status, body.encode() if isinstance(body, str) else octets)
            result, _ = provider.send(envelope(sample()))
            assert (result.event, text in result.reply.text) == (event, True), result


@given(
    text=st.text(st.characters(exclude_categories=["Cs"]), max_size=60),
    recipient=st.text(min_size=1, max_size=20),
    name=st.sampled_from(interface_names()),
)
def test_hostile_values_stay_values(
    providers: dict[str, Provider], text: str, recipient: str, name: str
) -> None:
    """Whatever a recipient, a subject or a text has, the form of the request is the same."""
    mail = EmailMessage()
    mail["Subject"] = "x"
    mail.set_content("\ud800\x00\"}{{key}}\\'<>\r\n--x--&=%&\n".encode("utf-8", "replace").decode())
    content = mail.as_bytes(policy=SMTP).replace(b"Subject: x", b"Subject: " + text.encode())
    _, got = providers[name].send(envelope(content, recipient))
    clean = recipient.encode("utf-8", "replace").decode()
    if got.fields["content-type"] == "application/json":
        keys = {"personalizations", "from", "subject", "content", "custom_args", "headers", "To",
                "Subject", "TextBody", "Headers", "Metadata", "to", "text", "tags", "type",
                "messaging_product", "recipient_type", "template",
                "biz_opaque_callback_data"}  # fmt: skip
        assert json.loads(got.body).keys() <= keys | {"attachments", "Attachments"}
        assert json.dumps(clean)[1:-1] in json.dumps(json.loads(got.body)) or name != "sendgrid"
    else:
        fields = form_of(got)
        known = {"from", "to", "subject", "text", "type", "client-ref", "To", "From", "Body",
                 "v:pgmta", "message", "attachment"}  # fmt: skip
        assert {field.name for field in fields if not field.name.startswith("h:")} <= known
        if name == "twilio":
            assert Field("To", clean.encode()) in fields


@pytest.fixture(scope="module")
def providers() -> Any:
    made = {name: Provider(name, OK) for name in interface_names()}
    for each in made.values():
        each.__enter__()
    yield made
    for each in made.values():
        each.__exit__()


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"interface": "sendgird"}, "no interface 'sendgird'; did you mean 'sendgrid'?"),
        ({"interface": "mailgun"}, "values.domain is required: domain of the account"),
        ({"interface": "mailgun", "values": {"domian": "x"}}, "did you mean 'domain'?"),
        ({"interface": "mailgun", "values": {"domain": " "}}, "not empty"),
        ({"interface": "mailgun", "values": {"domain": 5}}, "in quotes"),
        ({"interface": "mailgun", "values": {"domain": "{{recipient}}"}}, "has a word"),
        ({"interface": "mailgun", "values": {"domain": "a\r\nb"}}, "line end"),
        ({"interface": "sendgrid", "values": {"x": "y"}}, "the interface has none"),
        ({"interface": "sendgrid", "secrets": {"kye": "y"}}, "did you mean 'key'?"),
        ({"interface": "sendgrid", "secrets": {"key": "}}x"}}, "secrets.key: has a word"),
        ({"interface": "sendgrid", "secrets": {"key": "a b"}}, "no name of a secret"),
        ({"interface": "sendgrid", "secrets": ["key"]}, "expected a mapping"),
        ({"interface": "sendgrid", "ulr": "https://x.example/"}, "ulr"),
        ({"interface": "sendgrid", "form": {}}, "one body"),
        ({"url": "https://x.example/", "values": {"a": "b"}}, "values"),
        ({"url": "https://x.example/", "json": {"each": "subject", "item": "x"}}, "no list"),
        ({"url": "https://x.example/", "json": {"each": "headers", "item": "{{nmae}}"}},
         "did you mean 'name'?"),
        ({"url": "https://x.example/", "multipart": {"a": {"each": "headers"}}}, "has no files"),
        ({"url": "https://x.example/", "error_later": [1]}, "needs the path"),
    ],
)  # fmt: skip
def test_mistakes(given: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=r"(?s).*") as caught:
        parse_parameters(given)
    assert reason in str(caught.value)


def test_what_a_route_says_goes_first() -> None:
    given = {
        "interface": "sendgrid",
        "secrets": {"key": "shop-key"},
        "url": "https://api.eu.example/v3/mail/send",
        "headers": {"X-Test": "1", "Accept": None},
        "json": {"custom_args": {"order": "{{metadata.order}}"}, "headers": None},
    }
    found = parse_parameters(given)
    usual = parameters("sendgrid")
    assert found.secret_names == {"shop-key"}
    assert usual.secret_names == {"key"}
    assert str(found) == "api.eu.example:443"
    assert found.settings.headers == {
        "Authorization": "Bearer {{secrets.shop-key}}", "X-Test": "1",
    }  # fmt: skip
    assert found.settings.json_["custom_args"] == {
        "pgmta": "{{key}}", "order": "{{metadata.order}}",
    }  # fmt: skip
    assert "headers" not in found.settings.json_
    assert "headers" in read_interface("sendgrid").parameters["json"]  # nothing is changed in place


def test_optional_values() -> None:
    form = parameters("twilio").settings.form
    assert form
    assert "StatusCallback" not in form
    values = {**VALUES["twilio"], "callback": "https://mta.example/sms"}
    form = parameters("twilio", values=values).settings.form
    assert form
    assert form["StatusCallback"] == "https://mta.example/sms?key={{key}}"
    values = {"domain": "a/../b?x=1#y"}
    (url,) = parameters("mailgun", values=values).settings.url
    assert url.url == "https://api.mailgun.net/v3/a%2F..%2Fb%3Fx%3D1%23y/messages"
    hosts = yaml.safe_dump([read_interface(name).parameters["url"] for name in interface_names()])
    assert "//{{" not in hosts

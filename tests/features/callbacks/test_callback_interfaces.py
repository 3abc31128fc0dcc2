"""The shipped descriptions read the examples of their sources."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from pydantic import ValidationError

from pgmta.config.types import FOLDER
from pgmta.errors import Stage
from pgmta_features.callbacks.events import EventReader
from pgmta_features.callbacks.proof import BodyMalformed, CallbackRequest
from pgmta_features.callbacks.settings import CallbackSettings, interface_files
from queued.answers.answer_rules import AnswerRules
from queued.config import shipped_answers
from queued.config.answer_index import shipped_index
from queued.config.answer_text import parse_reply
from tests.features.callbacks.provided import secret_file
from tests.features.callbacks.test_callback_proofs import SENDGRID_KEY

KEY = "pgmta-42-7"
KEYS = {
    "sendgrid": SENDGRID_KEY,
    "resend": "whsec_c2VjcmV0IG9mIHRoaXM=",
    "postmark": "user:a long password",
}
MAILGUN: dict[str, Any] = {"user-variables": {"pgmta": KEY}, "timestamp": 1534110422.389832}
POSTMARK = {"Metadata": {"pgmta": KEY}, "BouncedAt": "2016-04-27T16:28:50.3963933-04:00"}
NO_ADDRESS = "5.1.1 The email account that you tried to reach does not exist. Please try\n5.1.1"


def whatsapp(status: dict[str, Any]) -> dict[str, Any]:
    """Return a notification of Meta with one status."""
    status = status | {"id": "wamid.ID", "timestamp": "1749416383", "recipient_id": "16505551234",
                       "biz_opaque_callback_data": KEY}  # fmt: skip
    metadata = {"display_phone_number": "15550783881", "phone_number_id": "106540352242922"}
    value = {"messaging_product": "whatsapp", "metadata": metadata, "statuses": [status]}
    change = {"value": value, "field": "messages"}
    return {"object": "whatsapp_business_account", "entry": [{"id": "1", "changes": [change]}]}


RESEND = {"created_at": "2023-10-02T18:11:26.101Z"}
CASES: list[tuple[str, Any, str]] = [
    ("sendgrid", {"event": "delivered", "response": "250 OK", "timestamp": 1513299569},
     "delivered   250 OK 2017-12-15"),
    ("sendgrid", {"event": "bounce", "type": "bounce", "reason": "500 unknown recipient",
                  "status": "5.0.0", "timestamp": 1513299569},
     "bounced 5.0.0  500 unknown recipient 2017-12-15"),
    ("sendgrid", {"event": "bounce", "type": "blocked", "reason": "unable to get mx info",
                  "bounce_classification": "Unclassified", "timestamp": 1740300320},
     "failed  Unclassified unable to get mx info 2025-02-23"),
    ("sendgrid", {"event": "dropped", "reason": "Bounced Address", "timestamp": 1600112492},
     "bounced   Bounced Address 2020-09-14"),
    ("sendgrid", {"event": "dropped", "reason": "Unsubscribed Address", "timestamp": 1600112492},
     "failed   Unsubscribed Address 2020-09-14"),
    ("sendgrid", {"event": "spamreport", "timestamp": 1513299569}, "complained    2017-12-15"),
    ("sendgrid", {"event": "deferred", "response": "400 try again later"}, ""),
    ("mailgun", {"event-data": MAILGUN | {"event": "delivered", "delivery-status": {
        "code": 250, "message": "OK"}}}, "delivered 250  OK 2018-08-12"),
    ("mailgun", {"event-data": MAILGUN | {
        "event": "failed", "severity": "permanent", "reason": "bounce",
        "delivery-status": {"code": 550, "message": NO_ADDRESS, "description": ""}}},
     f"bounced 550 bounce {NO_ADDRESS.replace(chr(10), ' ')} 2018-08-12"),
    ("mailgun", {"event-data": MAILGUN | {
        "event": "failed", "severity": "temporary", "reason": "generic"}}, ""),
    ("mailgun", {"event-data": MAILGUN | {"event": "complained"}}, "complained    2018-08-12"),
    ("postmark", POSTMARK | {
        "RecordType": "Bounce", "Type": "HardBounce", "TypeCode": 1,
        "Details": "smtp;550 5.1.1 The email account that you tried to reach does not exist."},
     "bounced  HardBounce smtp;550 5.1.1 The email account that you tried to reach does not exist."
     " 2016-04-27"),
    ("postmark", {"Metadata": {"pgmta": KEY}, "RecordType": "Delivery",
                  "DeliveredAt": "2014-08-01T13:28:10.2735393-04:00",
                  "Details": "Test delivery webhook details"},
     "delivered   Test delivery webhook details 2014-08-01"),
    ("postmark", POSTMARK | {"RecordType": "SpamComplaint", "Type": "SpamComplaint"},
     "complained  SpamComplaint  2016-04-27"),
    ("postmark", POSTMARK | {"RecordType": "Bounce", "Type": "Transient"}, ""),
    ("postmark", POSTMARK | {"RecordType": "Open"}, ""),
    ("resend", RESEND | {"type": "email.delivered", "data": {"tags": {"pgmta": KEY}}},
     "delivered    2023-10-02"),
    ("resend", RESEND | {"type": "email.bounced", "data": {"tags": {"pgmta": KEY}, "bounce": {
        "type": "Permanent", "subType": "Suppressed", "message": "suppressed sending"}}},
     "bounced  Suppressed suppressed sending 2023-10-02"),
    ("resend", RESEND | {"type": "email.bounced", "data": {"tags": {"pgmta": KEY}, "bounce": {
        "message": "sent a hard bounce message"}}},
     "failed   sent a hard bounce message 2023-10-02"),
    ("resend", RESEND | {"type": "email.complained", "data": {"tags": {"pgmta": KEY}}},
     "complained    2023-10-02"),
    ("resend", RESEND | {"type": "email.delivery_delayed", "data": {"tags": {"pgmta": KEY}}}, ""),
    ("twilio", {"MessageSid": "SM1", "MessageStatus": "delivered"}, "delivered    2026-01-01"),
    ("twilio", {"MessageSid": "SM1", "MessageStatus": "undelivered", "ErrorCode": "30003"},
     "failed 30003   2026-01-01"),
    ("twilio", {"MessageSid": "SM1", "MessageStatus": "sent"}, ""),
    ("vonage", {"client-ref": KEY, "status": "delivered", "err-code": "0",
                "messageId": "0B00000127FDBC63"}, "delivered 0   2026-01-01"),
    ("vonage", {"client-ref": KEY, "status": "expired", "err-code": "1"},
     "failed 1   2026-01-01"),
    ("vonage", {"client-ref": KEY, "status": "buffered", "err-code": "0"}, ""),
    ("whatsapp", whatsapp({"status": "read"}), "delivered    2025-06-08"),
    ("whatsapp", whatsapp({"status": "sent"}), ""),
    ("whatsapp", whatsapp({"status": "failed", "errors": [
        {"code": 131026, "title": "Receiver is incapable of receiving this message",
         "message": "Receiver is incapable of receiving this message",
         "error_data": {"details": "Message Undeliverable."}}]}),
     "failed 131026  Message Undeliverable. 2025-06-08"),
]  # fmt: skip


def settings(folder: Path, name: str) -> CallbackSettings:
    key = secret_file(folder, f"{name}.key", KEYS.get(name, "0123456789abcdef"))
    given = {"interface": name, "proof": {"keys": key}}
    return CallbackSettings.model_validate(given, context={FOLDER: folder})


@pytest.mark.parametrize(("name", "event", "expected"), CASES)
def test_examples(tmp_path: Path, name: str, event: dict[str, Any], expected: str) -> None:
    found = settings(tmp_path, name)
    if name == "sendgrid":
        event = event | {"pgmta": KEY}
    form = found.events.body == "form"
    body = urlencode(event) if form else json.dumps([event, event] if name == "sendgrid" else event)
    asked = CallbackRequest(f"https://a.example/x?key={KEY}", "", {}, body.encode())
    read = EventReader(found.events).read(asked, datetime(2026, 1, 1, tzinfo=UTC), 10)
    assert read
    assert read.foreign == 0
    shown = [
        f"{e.kind} {e.code} {e.sub_type} {e.text} {e.at:%Y-%m-%d}" for e in read.events
    ]  # fmt: skip
    wanted = [expected] * (2 if name == "sendgrid" else 1) if expected else []
    assert shown == wanted
    assert {(e.message_id, e.row_id) for e in read.events} == ({(42, 7)} if expected else set())


def test_each_interface_has_an_example() -> None:
    assert {name for name, _, _ in CASES} == set(interface_files())


def test_whatsapp_errors_have_the_class_of_an_answer(tmp_path: Path) -> None:
    """Of all codes that the answer rules spell out, and that the description has."""
    classes = settings(tmp_path, "whatsapp").events.classes
    rules = AnswerRules(shipped_index())
    spelled = {
        code
        for book in shipped_answers()
        for rule in book.rules
        if "whatsapp" in (rule.provider or ())
        for code in re.findall(r"(?<![\d\\])\d+(?![\d\\])", str(rule.text))
    }
    assert len(spelled) > 20
    for code in {*spelled, *classes, "131000", "131026"}:
        reply = parse_reply(f"554 5.3.0 HTTP 400 Bad Request error={code}")
        answer = rules.read_reply(reply, "graph.facebook.com:443", Stage.END_OF_DATA)
        assert classes.get(code, "other") == answer.answer_class, code


def test_lists_in_lists(tmp_path: Path) -> None:
    """An entry without statuses, such as what a recipient writes, has no events."""
    reader = EventReader(settings(tmp_path, "whatsapp").events)
    event = {"status": "delivered", "biz_opaque_callback_data": KEY}
    changes = [{"value": {"statuses": [event, event]}}, {"value": {"messages": [{}]}}, 7]
    cases: list[tuple[Any, int]] = [
        ({"entry": [{"changes": changes}, {"changes": changes[:1]}, None, {}]}, 4),
        ({"entry": []}, 0), ({"entry": {"changes": {"value": {"statuses": event}}}}, 1),
    ]  # fmt: skip
    for document, number in cases:
        asked = CallbackRequest("https://a.example/x", "", {}, json.dumps(document).encode())
        read = reader.read(asked, datetime(2026, 1, 1, tzinfo=UTC), 10)
        assert read
        assert (len(read.events), read.foreign, read.strange) == (number, 0, 0)
    for malformed in (b"{}", b"7", b'{"entry": 1}'):
        asked = CallbackRequest("https://a.example/x", "", {}, malformed)
        with pytest.raises(BodyMalformed):
            reader.read(asked, datetime(2026, 1, 1, tzinfo=UTC), 10)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"events": {"each": "entry[].[]"}}, "is no path"),
        ({"challenge": {"key": "short.token"}}, "short.token has no line of at least 16 octets"),
        ({"events": {"classes": {"7": "disabled"}}}, "disabled is the kind bounced"),
        ({"challenge": {"kye": "short.token"}}, "kye"),
    ],
)
def test_mistakes(tmp_path: Path, changes: dict[str, Any], reason: str) -> None:
    key = secret_file(tmp_path, "a.key", "0123456789abcdef")
    secret_file(tmp_path, "short.token", "short")
    given = {"interface": "whatsapp", "proof": {"keys": key}, **changes}
    with pytest.raises(ValidationError, match=reason):
        CallbackSettings.model_validate(given, context={FOLDER: tmp_path})


def test_other_keys_go_over_a_description(tmp_path: Path) -> None:
    key = secret_file(tmp_path, "a.key", "user:a long password")
    given = {
        "interface": "sendgrid", "hosts": ["api.eu.sendgrid.com", "h:8443"],
        "proof": {"by": "basic", "keys": [key]},
        "events": {"key": "other", "kinds": {"dropped": "bounced", "blocked": "failed"}},
    }  # fmt: skip
    found = CallbackSettings.model_validate(given, context={FOLDER: tmp_path})
    assert found.hosts == ["api.eu.sendgrid.com:443", "h:8443"]
    assert (found.proof.by, found.proof.message) == ("basic", None)
    assert found.events.key == ["other"]
    assert found.events.kinds["dropped"] == "bounced"
    assert found.events.kinds["delivered"] == "delivered"

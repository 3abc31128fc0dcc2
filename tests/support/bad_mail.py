"""Submissions that are refused: as arguments of Python, from which SQL and commands are made."""

from __future__ import annotations

from typing import Any, NamedTuple

from pgmta.compose.submitted_mail import Attachment

SENDER = "shop@example.org"
LONG = "x" * 1_000_001


class Bad(NamedTuple):
    """A call: its arguments beside those of a good one, the argument that is bad, and words."""

    arguments: dict[str, Any]
    argument: str
    words: str


def _file(**changes: Any) -> dict[str, Any]:
    good: dict[str, Any] = {"name": "a.pdf", "content": b"x", "type": "application/pdf"}
    return {"attachments": [Attachment(**(good | changes))]}


BAD_PARTS = [
    Bad({"sender": "shop"}, "sender", "no domain"),
    Bad({"sender": "Shop <shop@example.org>"}, "sender", "malformed"),
    Bad({"sender": "", "from_": None}, "from", "missing"),
    Bad({"from_": "Shop\r\nBcc: eve@example.net <shop@example.org>"}, "from", "line end"),
    Bad({"from_": "a@a.example, b@b.example"}, "from", "malformed"),
    Bad({"to": []}, "to", "no recipient"),
    Bad({"to": ["bob"]}, "to", "no domain"),
    Bad({"to": ["ann@a.example", "bob@b..example"]}, "to", "malformed"),
    Bad({"to": ["Bob\n <bob@b.example>"]}, "to", "line end"),
    Bad({"to": [f"{'n' * 256} <bob@b.example>"]}, "to", "255 characters"),
    Bad({"to": ["bob@bücher.example"]}, "to", "malformed"),
    Bad({"cc": ["a@b.example\r\nX: y"]}, "cc", "control character"),
    Bad({"bcc": ["bob@b.example, eve@b.example"]}, "bcc", "malformed"),
    Bad({"to": [f"r{n}@b.example" for n in range(1001)]}, "to", "over 1000"),
    Bad(
        {"to": [f"{'n' * 255} <r{n}@b.example>" for n in range(1000)]}
        | {"cc": [f"{'é' * 255} <r{n}@b.example>" for n in range(400)]},
        "to",
        "400000 octets",
    ),
    Bad({"reply_to": "a@b.example\n"}, "reply_to", "control character"),
    Bad({"subject": "Order\r\nBcc: eve@example.net"}, "subject", "line end"),
    Bad({"subject": "Order\n4711"}, "subject", "line end"),
    Bad({"subject": LONG}, "subject", "2000 characters"),
    Bad({"subject": "a\x07b"}, "subject", "control character"),
    Bad({"body": None}, "body", "neither body nor html"),
    Bad({"body": "x" * (5 << 20)}, "body", "4 MB"),
    Bad({"headers": {"From": "eve@example.net"}}, "headers", "reserved"),
    Bad({"headers": {"content-type": "text/html"}}, "headers", "reserved"),
    Bad({"headers": {"X-Order": "4711\r\nBcc: eve@example.net"}}, "headers", "line end"),
    Bad({"headers": {"X Order": "4711"}}, "headers", "no name"),
    Bad({"headers": {"X-Order": ""}}, "headers", "empty"),
    Bad({"headers": {"List-Id": "Grüße <a.example>"}}, "headers", "ASCII"),
    Bad(_file(name=None), "attachments", "name is missing"),
    Bad(_file(name=" "), "attachments", "name is missing"),
    Bad(_file(name="a\r\nContent-Type: text/html\r\n\r\n.pdf"), "attachments", "line end"),
    Bad(_file(type="pdf"), "attachments", "no media type"),
    Bad(_file(type='text/plain; x="\U0001f600"'), "attachments", "no media type"),
    Bad(_file(type="multipart/mixed"), "attachments", "can't be attached"),
    Bad(_file(type="message/rfc822", content=b"Subject: x\n\nx\n"), "attachments", "bare CR or LF"),
    Bad(_file(content_id="logo"), "attachments", "needs html"),
    Bad(_file(content_id="lo go") | {"html": "<p>x</p>"}, "attachments", "content_id"),
    Bad({"key": ""}, "key", "empty"),
    Bad({"tenant": "no name!"}, "tenant", "no name"),
    Bad({"priority": 10}, "priority", "0 (first) to 9"),
    Bad({"on_failed": "retry"}, "on_failed", "neither hold"),
    Bad({"metadata": {"_secret": "x"}}, "metadata", "begins with _"),
]
"""Of mail as parts."""

GOOD_PARTS: dict[str, Any] = {
    "sender": SENDER, "to": ["bob@example.com"], "subject": "Order 4711", "body": "Thank you.",
}  # fmt: skip

BAD_TEMPLATES = [
    Bad({"template": "recipt"}, "template", "none with this name"),
    Bad({"version": 9}, "version", "no such version"),
    Bad({"recipient": "bob"}, "recipient", "no domain"),
    Bad({"params": {"name": "Ann"}}, "params", "missing"),
    Bad({"params": {"name": "Ann", "number": 7, "nmae": "x"}}, "params", "no such word"),
    Bad({"params": {"name": "Ann", "number": "7\r\nBcc: eve@example.net"}}, "params", "line end"),
    Bad({"params": {"name": ["Ann"], "number": 7}}, "params", "no text"),
    Bad({"params": {"name": None, "number": 7}}, "params", "no text"),
]
"""Of mail by the template `receipt`: the words are name, in its body, and number, in Subject."""

GOOD_TEMPLATE: dict[str, Any] = {
    "template": "receipt", "recipient": "bob@example.com", "params": {"name": "Ann", "number": 7},
}  # fmt: skip

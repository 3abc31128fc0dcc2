"""Bodies, queries and fields that no client should send, each with the problem that it gets."""

from __future__ import annotations

import gzip
import json
from base64 import b64encode
from collections.abc import Mapping
from typing import Any, NamedTuple

MAIL: dict[str, Any] = {
    "from": "Shop <shop@example.org>", "to": ["Ann <ann@b.example>"], "subject": "Order 1",
    "body": "Thank you.",
}  # fmt: skip
JSON = "application/json"
_DEEP = 100_000
_LARGE = (1 << 20) + 1
_PART = 'Content-Disposition: form-data; name="message"\r\n\r\n'
_FILE = '--b\r\nContent-Disposition: form-data; name="f"; filename="f"\r\n'
_ENVELOPE = "?sender=shop@example.org&recipients=ann@b.example"


class Bad(NamedTuple):
    """A request, and status, word and pointer of its problem. `named` stands in the detail."""

    name: str
    body: Any
    status: int
    word: str
    pointer: str = ""
    named: str = ""
    path: str = "/v1/messages"
    kind: str = JSON
    method: str = "POST"
    headers: Mapping[str, str] = {}


def mail(**changes: Any) -> dict[str, Any]:
    """A mail with changes; `from_` is from."""
    return {**MAIL, **{name.rstrip("_"): value for name, value in changes.items()}}


def text(**changes: str) -> bytes:
    """A mail as JSON, with values that are JSON themselves, as they are."""
    inner = {name: json.dumps(value) for name, value in MAIL.items()} | changes
    return ("{" + ",".join(f'"{name}":{value}' for name, value in inner.items()) + "}").encode()


def _file(**changes: Any) -> dict[str, Any]:
    return mail(attachments=[{"name": "a.txt", "content": "YQ==", **changes}])


def _nested(levels: int, key: str = "a") -> str:
    return f'{{"{key}":{"[" * levels}{"]" * levels}}}'


def _form(*parts: str, end: str = "--b--\r\n") -> str:
    return "".join(f"{each}\r\n" for each in parts) + end


def _named(name: str) -> str:
    """A file whose name is encoded (RFC 8187)."""
    return _FILE.replace('="f"\r\n', f"*=UTF-8''{name}\r\n") + "\r\nx"


def _message(value: Any) -> str:
    return f"--b\r\n{_PART}{json.dumps(value)}"


def _invalid(name: str, body: Any, pointer: str, named: str = "", **more: Any) -> Bad:
    return Bad(name, body, 422, "invalid", pointer, named, **more)


def _not_json(name: str, body: str | bytes, pointer: str = "", named: str = "") -> Bad:
    return Bad(name, body, 400, "not-json", pointer, named)


TYPES = [
    _invalid("a list", b"[]", ""),
    _invalid("a string", b'"mail"', ""),
    _invalid("null", b"null", ""),
    _invalid("nothing but an object", b"{}", "/sender"),
    _invalid("to is a string", mail(to="ann@b.example"), "/to"),
    _invalid("to has a number", mail(to=["ann@b.example", 7]), "/to/1"),
    _invalid("to has null", mail(to=[None]), "/to/0"),
    _invalid("subject is a number", mail(subject=1), "/subject"),
    _invalid("subject is a list", mail(subject=["a"]), "/subject"),
    _invalid("priority is text", mail(priority="5"), "/priority"),
    _invalid("priority is a fraction", mail(priority=5.5), "/priority"),
    _invalid("priority is true", mail(priority=True), "/priority"),
    _invalid("priority is 10", mail(priority=10), "/priority"),
    _invalid("priority has 31 digits", mail(priority=10**30), "/priority"),
    _invalid("metadata is a list", mail(metadata=[]), "/metadata"),
    _invalid("metadata is too long", mail(metadata={"a": "x" * 5000}), "/metadata"),
    _invalid("metadata of ours", mail(metadata={"_holdid": 1}), "/metadata/_holdid"),
    _invalid("headers are a list", mail(headers=["X-A: b"]), "/headers"),
    _invalid("a header is a number", mail(headers={"X-A": 1}), "/headers/X-A"),
    _invalid("attachments are an object", mail(attachments={}), "/attachments"),
    _invalid("an attachment lacks its content", mail(attachments=[{"name": "a"}]),
             "/attachments/0/content"),
    _invalid("once is text", mail(once="true"), "/once"),
    _invalid("on_failed is another word", mail(on_failed="removed"), "/on_failed", "remove"),
    _invalid("version has 13 digits", mail(version=10**12), "/version"),
    _invalid("version of no template", mail(version=1), "/version"),
    _invalid("a template that is not there", {"template": "none", "recipient": "a@b.example"},
             "/template"),
    _invalid("a template and parts", mail(template="none"), "/to", "give `recipient`"),
    _invalid("send_at is a number", mail(send_at=1893456000), "/send_at"),
    _invalid("send_at is a word", mail(send_at="tomorrow"), "/send_at"),
    _invalid("send_at is the word of a database", mail(send_at="infinity"), "/send_at"),
    _invalid("send_at has no zone", mail(send_at="2030-01-31T09:00:00"), "/send_at"),
    _invalid("send_at is no day", mail(send_at="2030-02-30T09:00:00Z"), "/send_at"),
    _invalid("NUL in metadata", mail(metadata={"a": "\0"}), "/metadata/a"),
]  # fmt: skip

KEYS = [
    _invalid("an unknown key", mail(subjekt="x"), "/subjekt", "subject"),
    _invalid("a key of another API", mail(TextBody="x"), "/TextBody", "body"),
    _invalid("an unknown key that is a place", mail(**{"a/b~c": 1}), "/a~1b~0c"),
    _invalid("an unknown key of an attachment", _file(nmae="a"), "/attachments/0/nmae", "name"),
    _invalid("a thousand unknown keys", mail(**{f"k{n}": n for n in range(1000)}), "/k0"),
    _invalid("an unknown key as long as the body", mail(**{"k" * 900_000: 1}), ""),
    _not_json("a key twice", text(subject='"a","subject":"b"'), "/subject"),
    _not_json("a key twice, once escaped", text(subject=r'"a","sub\u006aect":"b"'), "/subject"),
    _not_json("a key twice in an object of it", text(metadata='{"a":1,"a":2}'), "/metadata/a"),
    _invalid("an unknown key of a batch", {"mails": [MAIL]}, "/mails", "messages",
             path="/v1/messages/batch"),
    _invalid("an empty batch", {"messages": []}, "/messages", path="/v1/messages/batch"),
    _invalid("a batch of 1,001", {"messages": [MAIL] * 1001}, "/messages",
             path="/v1/messages/batch"),
]  # fmt: skip

TEXTS = [
    Bad("nothing", b"", 400, "body-missing"),
    _not_json("half of a mail", json.dumps(MAIL)[:-10]),
    _not_json("a mail and more", json.dumps(MAIL) + "x"),
    _not_json("two mails", json.dumps(MAIL) * 2),
    _not_json("NaN", text(priority="NaN")),
    _not_json("Infinity", text(priority="-Infinity")),
    _not_json("a number beyond a double", text(metadata='{"a":1e999}')),
    _not_json("a number of 5,000 digits", text(metadata=f'{{"a":{"9" * 5000}}}')),
    _not_json("100,000 brackets", "[" * _DEEP, named="levels"),
    _not_json("100,000 objects", '{"a":' * _DEEP),
    _not_json("100,000 brackets that close", text(metadata=_nested(_DEEP))),
    _not_json("33 levels", text(metadata=_nested(33)), named="32 levels"),
    _not_json("brackets behind a quote", text(metadata=_nested(99, r"\""))),
    _not_json("UTF-16", json.dumps(MAIL).encode("utf-16")),
    _not_json("a byte order mark", b"\xef\xbb\xbf" + json.dumps(MAIL).encode()),
    _not_json("Latin-1", text(subject='"caf\u00e9"').decode().encode("latin-1")),
    _not_json("an overlong octet", text(subject='"X"').replace(b"X", b"\xc0\xae")),
    _not_json("a surrogate in UTF-8", text(subject='"X"').replace(b"X", b"\xed\xa0\x80")),
    _not_json("a line end in a text", text(subject='"a\r\nBcc: eve@b.example"')),
    _not_json("single quotes", "{'from': 'shop@example.org'}"),
    _not_json("a comment", b"/* mail */" + json.dumps(MAIL).encode()),
    _invalid("half of a pair", text(subject=r'"\ud83d"'), "/subject"),
    _invalid("a pair in another order", text(body=r'"\ude00\ud83d"'), "/body"),
    _invalid("half of a pair in a key", text(**{r"\ud800": "1"}), ""),
    _invalid("NUL", text(body=r'"a\u0000b"'), "/body"),
    _invalid("NUL in a recipient", text(to=r'["a\u0000@b.example"]'), "/to/0"),
]  # fmt: skip

SIZES = [
    _not_json("half a million values", text(to=f"[{','.join(['1'] * 400_000)}]"), named="values"),
    Bad("three million lists", '{"messages":[' + "[]," * 3_000_000 + "0]}", 400, "not-json",
        path="/v1/messages/batch", named="values"),
    _invalid("50,000 unknown keys", {f"k{n}": n for n in range(50_000)}, "/k0"),
    _invalid("50,000 headers", mail(headers={f"k{n}": n for n in range(50_000)}), "/headers"),
    Bad("1 MB and an octet", b'"' + b"x" * (_LARGE - 2) + b'"', 413, "body-size"),
    Bad("a text of 50 MB", bytes(50 << 20), 413, "body-size"),
    Bad("a batch of 10 MB and an octet", bytes((10 << 20) + 1), 413, "body-size",
        path="/v1/messages/batch"),
    Bad("gzip", gzip.compress(json.dumps(MAIL).encode()), 415, "body-type",
        headers={"Content-Encoding": "gzip"}),
    Bad("an encoding that is none", b"x", 415, "body-type", headers={"Content-Encoding": "x, br"}),
]  # fmt: skip

INJECTIONS = [
    _invalid("a line end in subject", mail(subject="a\r\nBcc: eve@b.example"), "/subject",
             "subject: "),
    _invalid("LF in subject", mail(subject="a\nBcc: eve@b.example"), "/subject"),
    _invalid("CR in subject", mail(subject="a\rBcc: eve@b.example"), "/subject"),
    _invalid("a line end in a name", mail(from_="S\r\nBcc: e@b.example <shop@example.org>"),
             "/from"),
    _invalid("a line end in to", mail(to=["A\r\nBcc: e@b.example <ann@b.example>"]), "/to"),
    _invalid("a second mailbox in to", mail(to=["ann@b.example, eve@b.example"]), "/to"),
    _invalid("a line end in reply_to", mail(reply_to="a@b.example\r\nBcc: e@b.example"),
             "/reply_to"),
    _invalid("a line end in the name of a header", mail(headers={"X-A\r\nBcc": "x"}), "/headers"),
    _invalid("a line end in a header", mail(headers={"X-A": "b\r\nBcc: e@b.example"}), "/headers"),
    _invalid("a colon in the name of a header", mail(headers={"Bcc:": "e@b.example"}), "/headers"),
    _invalid("a header Bcc", mail(headers={"Bcc": "e@b.example"}), "/headers"),
    _invalid("a header From", mail(headers={"fRom": "x@other.example"}), "/headers"),
    _invalid("a header Content-Type", mail(headers={"Content-Type": "text/html"}), "/headers"),
    _invalid("a line end in the sender", mail(sender="a@example.org>\r\nRCPT TO:<e@b.example"),
             "/sender"),
    _invalid("a line end in a file's name", _file(name="a\r\nX: y"), "/attachments"),
    _invalid("a line end in a file's type", _file(type="text/plain\r\nX: y"), "/attachments"),
    _invalid("a type that is none", _file(type="text"), "/attachments"),
    _invalid("a line end in a Content-ID", _file(content_id="a>\r\nX: <b"), "/attachments"),
    _invalid("a line end in unsubscribe", mail(unsubscribe="a\r\nb"), "/unsubscribe"),
    Bad("a second author in from", mail(from_="shop@example.org, x@other.example"), 422, "invalid",
        "/from"),
    Bad("a foreign author behind ours", mail(from_="<shop@example.org> <x@other.example>"), 403,
        "sender-refused", "/from", "example.org"),
    Bad("a foreign sender", mail(sender="x@other.example"), 403, "sender-refused", "/sender"),
    Bad("a foreign tenant", mail(tenant="t2"), 403, "tenant-refused", "/tenant"),
]  # fmt: skip

BASE64 = [
    _invalid("another letter", _file(content="Y!=="), "/attachments/0"),
    _invalid("no padding", _file(content="YQ"), "/attachments/0"),
    _invalid("letters of URLs", _file(content="_-8="), "/attachments/0"),
    _invalid("no ASCII", _file(content="ÿ==="), "/attachments/0"),
]

ADDRESSES = [
    _invalid("no domain", mail(to=["nobody"]), "/to"),
    _invalid("nobody", mail(to=[]), "/to"),
    _invalid("1,001 recipients", mail(to=[f"a{n}@b.example" for n in range(1001)]), "/to"),
    _invalid("a local part of 65 letters", mail(to=["a" * 65 + "@b.example"]), "/to"),
    _invalid("a label of 64 letters", mail(to=["a@" + "b" * 64 + ".example"]), "/to"),
    _invalid("a domain with a space", mail(to=["a@b example"]), "/to"),
]

KINDS = [
    Bad("text", json.dumps(MAIL), 415, "body-type", kind="text/plain"),
    Bad("a form", "to=ann@b.example", 415, "body-type", kind="application/x-www-form-urlencoded"),
    Bad("no type", json.dumps(MAIL), 415, "body-type", kind=""),
    Bad("a form without a boundary", _form(_message(MAIL)), 400, "invalid",
        kind="multipart/form-data"),
    Bad("a form without an end", _form(_message(MAIL), end=""), 400, "invalid",
        kind="multipart/form-data; boundary=b"),
    Bad("a form of another boundary", _form(_message(MAIL)), 400, "invalid",
        kind="multipart/form-data; boundary=c"),
    _invalid("a form without mail", _form(_FILE + "\r\nx"), "",
             kind="multipart/form-data; boundary=b"),
    Bad("a form whose mail is no JSON", _form(f"--b\r\n{_PART}{{"), 400, "not-json",
        kind="multipart/form-data; boundary=b"),
    _invalid("a form whose mail has an unknown key", _form(_message(mail(subjekt="x"))), "/subjekt",
             kind="multipart/form-data; boundary=b"),
    _invalid("a field that is no file", _form(_message(MAIL), _message(MAIL)), "",
             kind="multipart/form-data; boundary=b"),
    _invalid("101 files", _form(_message(MAIL), *[_FILE + "\r\nx"] * 101), "",
             kind="multipart/form-data; boundary=b"),
    Bad("a file in base64",
        _form(_message(MAIL), _FILE + "Content-Transfer-Encoding: base64\r\n\r\nYQ=="), 415,
        "body-type", kind="multipart/form-data; boundary=b"),
    Bad("a form within a form",
        _form(_message(MAIL), "--b\r\nContent-Type: multipart/mixed; boundary=c\r\n",
              "--c\r\n\r\nx\r\n--c--"), 415, "body-type", named="multipart itself",
        kind="multipart/form-data; boundary=b"),
    Bad("a control in the header of a part", _form(_message(MAIL), _FILE + "X-A: \1\r\n\r\nx"), 400,
        "invalid", kind="multipart/form-data; boundary=b"),
    _invalid("a line end in the name of a file", _form(_message(MAIL), _named("a%0d%0aX: y")), "",
             kind="multipart/form-data; boundary=b"),
    _invalid("NUL in the name of a file", _form(_message(MAIL), _named("a%00")), "/attachments/0",
             kind="multipart/form-data; boundary=b"),
    _invalid("half of a pair in the name of a file", _form(_message(MAIL), _named("%ed%a0%80")), "",
             kind="multipart/form-data; boundary=b"),
    Bad("a message without an envelope", b"From: shop@example.org\r\n\r\nx", 400, "invalid",
        kind="message/rfc822", named="sender"),
    Bad("a message without recipients", b"From: shop@example.org\r\n\r\nx", 400, "invalid",
        path="/v1/messages?sender=shop@example.org", kind="message/rfc822", named="recipients"),
    Bad("a message of a foreign author", b"From: x@other.example\r\n\r\nx", 403, "sender-refused",
        path=f"/v1/messages{_ENVELOPE}", kind="message/rfc822"),
    Bad("a message of two authors", b"From: shop@example.org\r\nFrom: a@example.org\r\n\r\n", 403,
        "sender-refused", path=f"/v1/messages{_ENVELOPE}", kind="message/rfc822"),
    Bad("a message whose header does not end", b"X: y\r\n" * 20_000, 422, "invalid",
        path=f"/v1/messages{_ENVELOPE}", kind="message/rfc822"),
    Bad("a message with NUL in its recipients", b"From: shop@example.org\r\n\r\nx", 400, "invalid",
        path="/v1/messages?sender=shop@example.org&recipients=a%00@b.example",
        kind="message/rfc822", named="recipients"),
    Bad("a mail with an envelope", MAIL, 400, "invalid", path=f"/v1/messages{_ENVELOPE}",
        named="message/rfc822"),
]  # fmt: skip

_LATE = {"since": "9999-12-31T23:59:59-12:00"}

TIMES = [
    *(
        Bad(path, None, 400, "invalid", path=path, method="GET", named="1970")
        for path in (
            "/v1/usage?until=0001-01-03", "/v1/usage?since=0001-01-01&until=0001-01-01",
            "/v1/usage?after=0001-01-01", "/v1/messages?until=0001-01-01T00:00:00Z",
            "/v1/events?since=9999-12-31T23:59:59-12:00",
        )
    ),
    _invalid("a replay since a time out of reach", _LATE, "/since", path="/v1/webhooks/1/replay"),
]  # fmt: skip

PLACES = [
    Bad("an unknown parameter", MAIL, 400, "invalid", path="/v1/messages?sendr=a", named="sender"),
    Bad("a parameter twice", MAIL, 400, "invalid", path="/v1/messages?sender=a&sender=b"),
    Bad("a parameter where there are none", None, 400, "invalid", path="/v1/key?a=1", method="GET"),
    Bad("a body of GET", MAIL, 400, "body-unexpected", path="/v1/key", method="GET"),
    Bad("a time in words", None, 400, "invalid", path="/v1/events?since=yesterday", method="GET",
        named="2026-"),
    *(
        Bad(f"a place of {each!r}", None, 400, "invalid", method="GET", named="after",
            path=f"/v1/suppressions?after={b64encode(json.dumps(each).encode()).decode()}")
        for each in (["\ud800", "x"], ["x", "\0"], ["x"], [1, "x"])
    ),
    Bad("another path", MAIL, 404, "", path="/v1/mesages", named="/v1/messages"),
    Bad("a method of another path", None, 405, "", path="/v1/messages/batch", method="GET"),
    Bad("another version", MAIL, 404, "", path="/v2/messages"),
    Bad("a path upwards", MAIL, 404, "", path="/v1/key/../messages"),
    Bad("a path with an octet of UTF-8", MAIL, 404, "", path="/v1/%ff"),
    Bad("another method", MAIL, 405, "", method="PUT"),
    Bad("a method that is none", None, 400, "", method="BREW", path="/v1/key"),
    Bad("an empty Idempotency-Key", MAIL, 400, "invalid", headers={"Idempotency-Key": ""},
        named="Idempotency-Key"),
    Bad("a long Idempotency-Key", MAIL, 400, "invalid", headers={"Idempotency-Key": "k" * 256},
        named="Idempotency-Key"),
    Bad("an Idempotency-Key of two words", MAIL, 400, "invalid",
        headers={"Idempotency-Key": "a b"}, named="Idempotency-Key"),
    Bad("an Idempotency-Key that is no ASCII", MAIL, 400, "invalid",
        headers={"Idempotency-Key": "\u00fc"}, named="Idempotency-Key"),
]  # fmt: skip

ALL = [*TYPES, *KEYS, *TEXTS, *SIZES, *INJECTIONS, *BASE64, *ADDRESSES, *KINDS, *TIMES, *PLACES]

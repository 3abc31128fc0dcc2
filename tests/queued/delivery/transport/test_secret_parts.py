"""Parts of secrets in what a next hop says, in the spellings that programs have."""

from __future__ import annotations

import base64
import binascii
import html
import json
import quopri
from collections.abc import Callable
from urllib.parse import quote, quote_plus

import pytest

from queued.delivery.transport.secret_parts import LEFT_OUT, SecretParts

KEYS = [
    "SG.aB3-xY_9kLmNoPq.rStUvWxYz0123456789-_abcdef",
    's3cr"et/Ä& über+key=',
    "0123456789abcdef0123456789abcdef",
    "k7Q!zT",
]
ORDINARY = [
    "The from address does not match a verified Sender Identity.",
    "Bad Request error=E101 error_text=recipient is not allowed in sandbox mode",
    "Accepted id=0100018f2c9e7d3a-5b1f0c9e-7a44-4d0b-9a53-2f6f0c1d2e3f-000000",
    "OK id=<20261129063455.1.8D2F@mg.example.org>",
    "5.7.8 Error: authentication failed: UGFzc3dvcmQ6",
    "error=21211 error_text=The 'To' number +491709876543 is not a valid phone number.",
    "<html><body>Bad &lt;key&gt; U+110000 \\U00110000 \\u{ffffff} \\ud800 0xzz AAAA====</body>",
    "Unauthorized error_text=API key ****cdef is not active (0x1F, %20, =3D, \\u00e4)",
]

type Spelling = Callable[[str], str]


def _octets(form: str) -> Spelling:
    return lambda text: "".join(form.format(octet) for octet in text.encode())


def _base64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


SPELLINGS: dict[str, Spelling] = {
    "plain": str,
    "lower": str.lower,
    "upper": str.upper,
    "URL": lambda text: quote(text, safe=""),
    "form": quote_plus,
    "each octet as %XX": _octets("%{:02X}"),
    "each octet as %xx": _octets("%{:02x}"),
    "twice": lambda text: quote(_octets("%{:02X}")(text)),
    "hex": _octets("{:02x}"),
    "HEX with blanks": _octets("{:02X} "),
    "hex with 0x": _octets("0x{:02x}, "),
    "\\x": _octets("\\x{:02x}"),
    "=XX": _octets("={:02X}"),
    "numbers": _octets("{} "),
    "octal": _octets("\\{:03o}"),
    "JSON": lambda text: json.dumps(text)[1:-1],
    "\\u": lambda text: "".join(f"\\u{ord(c):04x}" for c in text),
    "HTML": html.escape,
    "&#": lambda text: "".join(f"&#{ord(c)};" for c in text),
    "&#x": lambda text: "".join(f"&#x{ord(c):x};" for c in text),
    "base64": _base64,
    "base64 of a login": lambda text: _base64(f"user:{text}"),
    "base64 of JSON": lambda text: _base64(json.dumps({"key": text}, ensure_ascii=False)),
    "base64url": lambda text: base64.urlsafe_b64encode(f"a:{text}".encode()).decode().rstrip("="),
    "base64, lower": lambda text: _base64(text).lower(),
    "base32": lambda text: base64.b32encode(text.encode()).decode(),
    "quoted-printable": lambda text: quopri.encodestring(text.encode()).decode(),
    "with blanks": " ".join,
    "with hyphens": "-".join,
    "hexlify": lambda text: binascii.hexlify(text.encode(), "-").decode(),
    "\\u{}": lambda text: "".join(f"\\u{{{ord(c):x}}}" for c in text),
    "\\U": lambda text: "".join(f"\\U{ord(c):08x}" for c in text),
    "%u": lambda text: "".join(f"%u{ord(c):04x}" for c in text),
    "U+": lambda text: " ".join(f"U+{ord(c):04X}" for c in text),
    "0x, no blanks": _octets("0x{:02x}"),
    "base64 of base64": lambda text: _base64(_base64(text)),
    "base64 of hex": lambda text: _base64(_octets("{:02x}")(text)),
    "base64 of a URL": lambda text: _base64(_octets("%{:02X}")(text)),
    "base64 of UTF-16": lambda text: base64.b64encode(text.encode("utf-16")).decode(),
    "hex of base64": lambda text: _base64(text).encode().hex(),
    "hex of UTF-16": lambda text: text.encode("utf-16-be").hex(),
    "with tags": "<b>".join,
    "with tags, in HTML": lambda text: html.escape("<b>".join(text)),
    "wide": lambda text: "".join(chr(ord(c) + 0xFEE0) if "!" <= c <= "~" else c for c in text),
}


@pytest.mark.parametrize("name", SPELLINGS)
def test_no_part_in_any_spelling(name: str) -> None:
    for key in KEYS:
        parts = SecretParts([key, "another-secret"])
        whole = SPELLINGS[name](key)
        for text in (whole, f"key={whole}", f"No such key {whole}, sorry", f"{'x' * 200}{whole}"):
            assert parts.hide(text) == LEFT_OUT, text
        for first in range(0, max(len(key) - 12, 1), 3):  # twelve characters, wherever they begin
            part = SPELLINGS[name](key[first : first + 12])
            assert parts.are_in(f"no {part} here"), part


def test_ordinary_answers_stay() -> None:
    parts = SecretParts(KEYS)
    for text in ORDINARY:
        assert parts.hide(text) == text
    assert not SecretParts([]).are_in("anything")
    assert not SecretParts([""]).are_in("anything")

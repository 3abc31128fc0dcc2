"""Octets that are no HTTP/1.1, or two requests for one server and one for another."""

from __future__ import annotations

from typing import NamedTuple

_SECOND = b"POST /v1/messages HTTP/1.1\r\nHost: x\r\nX: "
_HEAD = b"POST /v1/messages HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer TOKEN\r\n"
_KIND = b"Content-Type: application/json\r\n"


class Wire(NamedTuple):
    """Octets with TOKEN in place of a key, and the status that they get; 0 for no answer."""

    name: str
    octets: bytes
    status: int


def _post(fields: bytes, body: bytes) -> bytes:
    return _HEAD + _KIND + fields + b"\r\n" + body


def _get(line: bytes = b"GET /v1/key HTTP/1.1\r\n", fields: bytes = b"Host: x\r\n") -> bytes:
    return line + fields + b"Authorization: Bearer TOKEN\r\nConnection: close\r\n\r\n"


_END = b"\r\n0\r\n\r\n"
_CHUNKED = b"Transfer-Encoding: chunked\r\n"
_WHOLE = b"2\r\n{}" + _END


def _coded(field: bytes) -> bytes:
    return _post(b"Transfer-Encoding" + field + b"\r\n", _WHOLE + _SECOND)


ALL = [
    Wire("chunks and a length", _post(_CHUNKED + b"Content-Length: 2\r\n", _WHOLE + _SECOND), 400),
    Wire("a length and chunks", _post(b"Content-Length: 2\r\n" + _CHUNKED, _WHOLE + _SECOND), 400),
    Wire("two lengths", _post(b"Content-Length: 2\r\nContent-Length: 9\r\n", b"{}" + _SECOND), 400),
    Wire("two lengths in a field", _post(b"Content-Length: 2, 60\r\n", b"{}" + _SECOND), 400),
    Wire("a length with a sign", _post(b"Content-Length: +2\r\n", b"{}" + _SECOND), 400),
    Wire("a length below 0", _post(b"Content-Length: -1\r\n", b"{}" + _SECOND), 400),
    Wire("a length in hex", _post(b"Content-Length: 0x2\r\n", b"{}" + _SECOND), 400),
    Wire("a length of 30 digits", _post(b"Content-Length: " + b"9" * 30 + b"\r\n", b"{}"), 400),
    Wire("another coding", _coded(b": xchunked"), 400),
    Wire("chunks twice", _coded(b": chunked, chunked"), 400),
    Wire("chunks, then another coding", _coded(b": chunked, identity"), 400),
    Wire("a coding, then chunks", _coded(b": gzip, chunked"), 501),
    Wire("chunks in HTTP/1.0", _coded(b": chunked").replace(b"HTTP/1.1", b"HTTP/1.0", 1), 400),
    Wire("two expectations", _get(fields=b"Host: x\r\nExpect: 100-continue\r\nExpect: x\r\n"), 417),
    Wire("a space before the colon", _coded(b" : chunked"), 400),
    Wire("a folded field", _post(b"X-A: b\r\n Content-Length: 2\r\n", b"{}" + _SECOND), 400),
    Wire("a field that begins with a space", _HEAD + b" X: y\r\n\r\n", 400),
    Wire("a chunk with a sign", _post(_CHUNKED, b"+2\r\n{}" + _END + _SECOND), 400),
    Wire("a chunk in 0x", _post(_CHUNKED, b"0x2\r\n{}" + _END + _SECOND), 400),
    Wire("a chunk of 2^64", _post(_CHUNKED, b"10000000000000002\r\n{}" + _END + _SECOND), 400),
    Wire("a chunk without its end", _post(_CHUNKED, b"2\r\n{}0\r\n\r\n" + _SECOND), 400),
    Wire("LF after the size of a chunk", _post(_CHUNKED, b"2\n{}" + _END + _SECOND), 400),
    Wire("LF in a chunk's extension", _post(_CHUNKED, b"2;a=\nb\r\n{}" + _END + _SECOND), 400),
    Wire("LF for all line ends", _get().replace(b"\r\n", b"\n"), 400),
    Wire("LF for one line end", _get(fields=b"Host: x\nX: y\r\n"), 400),
    Wire("CR in a field", _get(fields=b"Host: x\r\nX: a\rTransfer-Encoding: chunked\r\n"), 400),
    Wire("NUL in a field", _get(fields=b"Host: x\r\nX: a\0b\r\n"), 400),
    Wire("NUL in the path", _get(b"GET /v1/key\0 HTTP/1.1\r\n"), 400),
    Wire("a space in the path", _get(b"GET /v1/key x HTTP/1.1\r\n"), 400),
    Wire("no version", _get(b"GET /v1/key\r\n"), 400),
    Wire("HTTP/2", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400),
    Wire("HTTP/3.7", _get(b"GET /v1/key HTTP/3.7\r\n"), 400),
    Wire("TLS", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(200), 400),
    Wire("SMTP", b"EHLO client.example\r\nMAIL FROM:<a@b.example>\r\n", 400),
    Wire("a line of 5,000 octets", _get(b"GET /v1/key?" + b"a" * 5000 + b" HTTP/1.1\r\n"), 400),
    Wire("100 fields", _get(fields=b"Host: x\r\n" + b"X: y\r\n" * 100), 400),
    Wire("a header of 50 KB", _get(fields=b"Host: x\r\nX: " + b"y" * 50_000 + b"\r\n"), 0),
    Wire("another host's URL", _get(b"GET http://other.example/v1/key HTTP/1.1\r\n"), 200),
    Wire("two hosts", _get(fields=b"Host: x\r\nHost: y\r\n"), 400),
    Wire("two keys", _get(fields=b"Host: x\r\nAuthorization: Bearer pgmta_x_y\r\n"), 400),
]  # fmt: skip

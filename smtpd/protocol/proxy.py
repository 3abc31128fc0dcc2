"""The header that a proxy puts before a connection: PROXY protocol, versions 1 and 2 (pure).

https://www.haproxy.org/download/3.2/doc/proxy-protocol.txt
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass

_TEXT = b"PROXY "
_TEXT_MOST = 107  # octets of version 1, with CRLF
_SIGNATURE = b"\r\n\r\n\x00\r\nQUIT\n"
_FIXED = 16  # octets of version 2 before its addresses
_REST_MOST = 4096  # octets of version 2 after them: addresses and type-length-value fields
_VERSION, _LOCAL, _PROXY = 0x20, 0, 1
_ADDRESSES = {1: 4, 2: 16}  # octets of an address by family: IPv4, IPv6
_TYPES = {"TCP4": 4, "TCP6": 6}


class ProxyError(Exception):
    """The octets are no PROXY header."""


@dataclass(frozen=True, slots=True)
class ProxyHeader:
    """Name the client, and how many octets the header has.

    `client` is empty if the connection is the proxy's own, or if its client has no IP address.
    """

    client: str
    port: int
    length: int


def parse(data: bytes) -> ProxyHeader | None:
    """Return the header at the beginning of the octets, None if more of it has to come.

    Raises ProxyError.
    """
    if data.startswith(_SIGNATURE[: len(data)]):
        return _binary(data)
    if data.startswith(_TEXT[: len(data)]):
        return _text(data)
    raise ProxyError("is no PROXY header")


def _text(data: bytes) -> ProxyHeader | None:
    end = data.find(b"\r\n", 0, _TEXT_MOST)
    if end < 0:
        if len(data) >= _TEXT_MOST:
            raise ProxyError("header is too long")
        return None
    words = data[:end].decode("ascii", "replace").split(" ")
    length = end + 2
    if words[1] == "UNKNOWN":
        return ProxyHeader("", 0, length)
    version = _TYPES.get(words[1])
    if not version or len(words) != 6:
        raise ProxyError("header has no addresses")
    try:
        client, target = (ipaddress.ip_address(word) for word in words[2:4])
    except ValueError:
        raise ProxyError("header has no IP addresses") from None
    if not client.version == target.version == version or "%" in words[2]:
        raise ProxyError("header has addresses of another family")
    return ProxyHeader(str(client), _port(words[4]), length)


def _port(word: str) -> int:
    if not (word.isascii() and word.isdigit() and len(word) <= 5 and int(word) < 1 << 16):
        raise ProxyError("header has no port")
    return int(word)


def _binary(data: bytes) -> ProxyHeader | None:
    if len(data) < _FIXED:
        return None
    command, family = data[12] - _VERSION, data[13] >> 4
    size = int.from_bytes(data[14:16])
    if command not in (_LOCAL, _PROXY):
        raise ProxyError("header has an unknown version or command")
    if size > _REST_MOST:
        raise ProxyError("header is too long")
    length = _FIXED + size
    if len(data) < length:
        return None
    octets = _ADDRESSES.get(family)
    if command == _LOCAL or not octets:
        return ProxyHeader("", 0, length)
    if size < 2 * octets + 4:
        raise ProxyError("header is too short for its addresses")
    client = ipaddress.ip_address(data[_FIXED : _FIXED + octets])
    ports = _FIXED + 2 * octets
    return ProxyHeader(str(client), int.from_bytes(data[ports : ports + 2]), length)

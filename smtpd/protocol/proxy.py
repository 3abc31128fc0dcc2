"""The header that a proxy puts before a connection: PROXY protocol, versions 1 and 2 (pure).

https://www.haproxy.org/download/3.2/doc/proxy-protocol.txt
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass

_TEXT_START = b"PROXY "
_MAX_TEXT_OCTETS = 107  # of version 1, with CRLF
_SIGNATURE = b"\r\n\r\n\x00\r\nQUIT\n"
_FIXED_OCTETS = 16  # of version 2, before its addresses
# of version 2, after the fixed part: addresses and type-length-value fields
_MAX_REST_OCTETS = 4096
_VERSION, _LOCAL, _PROXY = 0x20, 0, 1
_ADDRESS_OCTETS = {1: 4, 2: 16}  # by family: IPv4, IPv6
_IP_VERSIONS = {"TCP4": 4, "TCP6": 6}


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
    if data.startswith(_TEXT_START[: len(data)]):
        return _text(data)
    raise ProxyError("is no PROXY header")


def _text(data: bytes) -> ProxyHeader | None:
    end = data.find(b"\r\n", 0, _MAX_TEXT_OCTETS)
    if end < 0:
        if len(data) >= _MAX_TEXT_OCTETS:
            raise ProxyError("header is too long")
        return None
    fields = data[:end].decode("ascii", "replace").split(" ")
    length = end + 2
    if fields[1] == "UNKNOWN":
        return ProxyHeader("", 0, length)
    version = _IP_VERSIONS.get(fields[1])
    if not version or len(fields) != 6:
        raise ProxyError("header has no addresses")
    try:
        client, target = (ipaddress.ip_address(word) for word in fields[2:4])
    except ValueError:
        raise ProxyError("header has no IP addresses") from None
    if not client.version == target.version == version or "%" in fields[2]:
        raise ProxyError("header has addresses of another family")
    return ProxyHeader(str(client), _port(fields[4]), length)


def _port(word: str) -> int:
    if not (word.isascii() and word.isdigit() and len(word) <= 5 and int(word) < 1 << 16):
        raise ProxyError("header has no port")
    return int(word)


def _binary(data: bytes) -> ProxyHeader | None:
    if len(data) < _FIXED_OCTETS:
        return None
    command, family = data[12] - _VERSION, data[13] >> 4
    size = int.from_bytes(data[14:16])
    if command not in (_LOCAL, _PROXY):
        raise ProxyError("header has an unknown version or command")
    if size > _MAX_REST_OCTETS:
        raise ProxyError("header is too long")
    length = _FIXED_OCTETS + size
    if len(data) < length:
        return None
    octets = _ADDRESS_OCTETS.get(family)
    if command == _LOCAL or not octets:
        return ProxyHeader("", 0, length)
    if size < 2 * octets + 4:
        raise ProxyError("header is too short for its addresses")
    client = ipaddress.ip_address(data[_FIXED_OCTETS : _FIXED_OCTETS + octets])
    ports = _FIXED_OCTETS + 2 * octets
    return ProxyHeader(str(client), int.from_bytes(data[ports : ports + 2]), length)

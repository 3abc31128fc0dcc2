"""The arguments of XCLIENT: a proxy says for whom it speaks (pure).

https://www.postfix.org/XCLIENT_README.html
"""

from __future__ import annotations

import ipaddress
import re

_KNOWN = ("NAME", "ADDR", "PORT", "PROTO", "HELO", "DESTADDR", "DESTPORT")
_UNKNOWN = ("[UNAVAILABLE]", "[TEMPUNAVAIL]")
_XTEXT = re.compile(r"(?:[!-*,-<>-~]|\+[0-9A-F]{2})+")  # RFC 3461, section 4
_HEX = re.compile(r"\+([0-9A-F]{2})")

KEYWORD = "XCLIENT " + " ".join(_KNOWN)
"""The line of the reply to EHLO."""


def parse(argument: str) -> tuple[str, int]:
    """Return address and port of the client; the address is empty if the proxy does not know it.

    Only these two count. Raises ValueError.
    """
    values: dict[str, str] = {}
    for word in argument.split():
        name, _, value = word.partition("=")
        if name.upper() not in _KNOWN or not _XTEXT.fullmatch(value):
            raise ValueError(word)
        values[name.upper()] = _HEX.sub(lambda match: chr(int(match[1], 16)), value)
    if "ADDR" not in values:
        raise ValueError("ADDR")
    address, port = values["ADDR"], values.get("PORT", "")
    if address.upper() in _UNKNOWN:
        return "", 0
    client = ipaddress.ip_address(re.sub(r"^IPV6:", "", address, flags=re.IGNORECASE))
    if "%" in address:
        raise ValueError(address)
    known = port.isascii() and port.isdigit() and len(port) <= 5
    return str(client), int(port) if known else 0

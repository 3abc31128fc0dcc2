"""The arguments of XCLIENT: a proxy says for whom it speaks (pure).

https://www.postfix.org/XCLIENT_README.html
"""

from __future__ import annotations

import ipaddress
import re
from typing import NamedTuple

from pgmta.password import login_name

_ATTRIBUTES = ("NAME", "ADDR", "PORT", "PROTO", "HELO", "LOGIN", "DESTADDR", "DESTPORT")
_UNKNOWN_VALUES = ("[UNAVAILABLE]", "[TEMPUNAVAIL]")
_XTEXT = re.compile(r"(?:[!-*,-<>-~]|\+[0-9A-F]{2})+")  # RFC 3461, section 4
_HEX = re.compile(r"\+([0-9A-F]{2})")

XCLIENT_LINE = "XCLIENT " + " ".join(_ATTRIBUTES)
"""The line of the reply to EHLO."""


class Named(NamedTuple):
    """The client that a proxy names; the address is empty if the proxy does not know it.

    `login` is the user that the proxy has let in, '' if there is none.
    """

    address: str
    port: int
    login: str


def parse(argument: str) -> Named:
    """Return the client; attributes that it has no field for are ignored. Raises ValueError."""
    values: dict[str, str] = {}
    for word in argument.split():
        name, _, value = word.partition("=")
        name = name.upper()
        empty = name == "LOGIN" and word.endswith("=")
        if name not in _ATTRIBUTES or not (empty or _XTEXT.fullmatch(value)):
            raise ValueError(word)
        octets = _HEX.sub(lambda match: chr(int(match[1], 16)), value).encode("latin-1")
        values[name] = "" if value.upper() in _UNKNOWN_VALUES else octets.decode()
    if values.keys().isdisjoint(("ADDR", "LOGIN")):
        raise ValueError("ADDR")
    address, port, login = (values.get(name, "") for name in ("ADDR", "PORT", "LOGIN"))
    if address:
        client = ipaddress.ip_address(re.sub(r"^IPV6:", "", address, flags=re.IGNORECASE))
        if "%" in address:
            raise ValueError(address)
        address = str(client)
    known = bool(address) and port.isascii() and port.isdigit() and len(port) <= 5
    return Named(address, int(port) if known else 0, login_name(login) if login else "")

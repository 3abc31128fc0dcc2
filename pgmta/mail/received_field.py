"""The trace field of a message that came by SMTP: who handed it over (RFC 5321, section 4.4)."""

from __future__ import annotations

import re
from functools import lru_cache
from ipaddress import ip_address
from typing import NamedTuple

_UNSAFE_IN_NAME = re.compile(r"[^A-Za-z0-9.:_\[\]-]")
_TRACE_FIELD = re.compile(
    r"Received: from (?P<helo>[A-Za-z0-9.:_\[\]?-]+) "
    r"\(\[(?:IPv6:)?(?P<address>[0-9A-Fa-f.:]+)\]\)\s+"
    r"by \S+ \(pgmta\) with (?P<protocol>[A-Z0-9]+(?: \([^()|\r\n]*\))?)\s"
)
_BEFORE_PROTOCOL = " (pgmta) with "


class ClientFacts(NamedTuple):
    """The client that handed a message over.

    `helo` is the name that the client gave. `protocol` is that of RFC 3848, with the version and
    the cipher of TLS.
    """

    address: str
    helo: str
    protocol: str


@lru_cache(maxsize=1024)
def trace_field(helo: str, client: str, hostname: str, protocol: str) -> str:
    """Return a folded Received field up to the message id; `client` is an IP address.

    The name that the client gave is cut down to the characters of a host name.
    """
    literal = f"[IPv6:{client}]" if ":" in client else f"[{client}]"
    name = _UNSAFE_IN_NAME.sub("?", helo)[:255] or "unknown"
    gap = "" if protocol.endswith("\t") else " "
    return f"Received: from {name} ({literal})\r\n\tby {hostname} (pgmta) with {protocol}{gap}id "


def client_of(trace: str) -> ClientFacts | None:
    """Return the client of the message with this trace field; None: it did not come by SMTP."""
    end = trace.find(_BEFORE_PROTOCOL)
    # the id and the date behind the protocol differ in each message of a session
    return _parsed(trace[: trace.find("id ", end + len(_BEFORE_PROTOCOL))]) if end > 0 else None


@lru_cache(maxsize=1024)
def _parsed(start: str) -> ClientFacts | None:
    match = _TRACE_FIELD.match(start)
    if not match:
        return None
    try:
        address = str(ip_address(match["address"]))
    except ValueError:
        return None
    return ClientFacts(address, match["helo"], match["protocol"])

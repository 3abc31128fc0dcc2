"""The trace field that smtpd adds (RFC 5321, section 4.4)."""

from __future__ import annotations

import re
import time
from functools import lru_cache

from smtpd.tls.facts import TlsFacts

_UNSAFE = re.compile(r"[^A-Za-z0-9.:_\[\]-]")

_FUNCTION = {(False, False): "", (True, False): "S", (False, True): "A", (True, True): "SA"}


def protocol(name: str, *, utf8: bool, tls: TlsFacts | None, login: bool) -> str:
    """Return the name of the protocol of a session, with its TLS version and cipher.

    `name` is SMTP, ESMTP or LMTP. The others are those of RFC 3848, and of RFC 6531, section 4.3.
    """
    extended = utf8 or name != "SMTP"  # there are no other names for HELO
    if utf8:
        name = f"UTF8{name.removeprefix('E')}"
    if extended:
        name += _FUNCTION[bool(tls), login]
    return f"{name} ({tls.version} {tls.cipher})\r\n\t" if tls else name


@lru_cache(maxsize=1024)
def received(helo: str, client: str, hostname: str, protocol: str) -> str:
    """Return a folded Received field up to the message id; `client` is an IP address.

    The name that the client gave is cut down to the characters of a host name.
    """
    literal = f"[IPv6:{client}]" if ":" in client else f"[{client}]"
    name = _UNSAFE.sub("?", helo)[:255] or "unknown"
    gap = "" if protocol.endswith("\t") else " "
    return f"Received: from {name} ({literal})\r\n\tby {hostname} (pgmta) with {protocol}{gap}id "


@lru_cache(maxsize=2)
def trace_date(second: int) -> str:
    """Return the date of a trace field (RFC 5322, section 3.3), for a second since the epoch."""
    return time.strftime("%a, %d %b %Y %H:%M:%S +0000", time.gmtime(second))

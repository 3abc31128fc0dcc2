"""The trace field that smtpd adds (RFC 5321, section 4.4)."""

from __future__ import annotations

import re
from functools import lru_cache

_UNSAFE = re.compile(r"[^A-Za-z0-9.:_\[\]-]")

DATE = "%a, %d %b %Y %H:%M:%S +0000"
"""The date of a trace field in UTC, for `time.strftime` (RFC 5322, section 3.3)."""


@lru_cache(maxsize=1024)
def received(helo: str, client: str, hostname: str, protocol: str) -> str:
    """Return a folded Received field up to the message id; `client` is an IP address.

    The name that the client gave is cut down to the characters of a host name.
    """
    literal = f"[IPv6:{client}]" if ":" in client else f"[{client}]"
    name = _UNSAFE.sub("?", helo)[:255] or "unknown"
    return f"Received: from {name} ({literal})\r\n\tby {hostname} (pgmta) with {protocol} id "

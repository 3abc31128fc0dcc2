"""The trace header (RFC 5321, section 4.4)."""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime
from email.utils import format_datetime
from functools import lru_cache

_UNSAFE = re.compile(r"[^A-Za-z0-9.:_\[\]-]")


def received(
    *,
    helo: str,
    client: str,
    hostname: str,
    protocol: str,
    message_id: int,
    now: float | None = None,
) -> str:
    """Return one folded Received field with its CRLF; `client` is an IP address.

    `now` is the time in seconds since the epoch, by default that of the clock. What the client
    called itself is cut down to the characters of a host name.
    """
    stamp = _stamp(int(time.time() if now is None else now))
    return f"{_origin(helo, client, hostname, protocol)}{message_id};\r\n\t{stamp}\r\n"


@lru_cache(maxsize=1024)
def _origin(helo: str, client: str, hostname: str, protocol: str) -> str:
    literal = f"[IPv6:{client}]" if ":" in client else f"[{client}]"
    name = _UNSAFE.sub("?", helo)[:255] or "unknown"
    return f"Received: from {name} ({literal})\r\n\tby {hostname} (pgmta) with {protocol} id "


@lru_cache(maxsize=4)
def _stamp(second: int) -> str:
    return format_datetime(datetime.fromtimestamp(second, UTC))

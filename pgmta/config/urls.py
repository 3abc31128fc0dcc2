"""URLs that browsers follow: where links begin, and pages of an application."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import urlsplit

_HERE = ("localhost", "127.0.0.1", "::1")


def parse_public_url(value: Any) -> str:
    """Return a URL without a slash at its end, to which a path can be added. Raises ValueError."""
    text = value if isinstance(value, str) else ""
    try:
        parts = urlsplit(text)
        host, _ = parts.hostname, parts.port
    except ValueError:
        host = None
    if (
        not host
        or parts.scheme not in ("http", "https")
        or not text.isascii()
        or re.search(r"\s", text)
    ):
        raise ValueError(f"{value!r} is no URL such as https://mail.example.com")
    if parts.query or parts.fragment or "?" in text or "#" in text or parts.username is not None:
        raise ValueError(f"{value!r} has more than a scheme, a host, a port and a path")
    if parts.scheme == "http" and host not in _HERE:
        raise ValueError(f"{value!r}: a link with a token needs https, except on localhost")
    return text.rstrip("/")


def parse_return_url(value: Any) -> str:
    """Return the URL of a page of the application, maybe with a query. Raises ValueError."""
    reason = f"{value!r} is no URL such as https://shop.example/password"
    if not isinstance(value, str) or not value.isascii() or not value.isprintable():
        raise ValueError(reason)
    try:
        parts = urlsplit(value)
        port = parts.port
    except ValueError:
        raise ValueError(reason) from None
    if parts.scheme not in ("http", "https") or not parts.hostname or port == 0:
        raise ValueError(reason)
    if parts.username is not None or parts.fragment or set(value) & set(" \"'<>\\;,"):
        raise ValueError(f"{value!r} has a login, a fragment or a character that is not allowed")
    if parts.scheme == "http" and parts.hostname not in _HERE:
        raise ValueError(f"{value!r}: a proof needs https, except on localhost")
    return value

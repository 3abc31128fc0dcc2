"""URLs that browsers follow: where links begin, and pages of an application."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import SplitResult, urlsplit

_VISIBLE = re.compile(r"[!-~]+")
_LOCAL_HOSTS = ("localhost", "127.0.0.1", "::1")


def parse_public_url(value: Any) -> str:
    """Return a URL without a slash at its end, to which a path can be added. Raises ValueError."""
    text, parts = _split(value, "https://mail.example.com")
    if parts.username is not None or set(text) & set("?#"):
        raise ValueError(f"{value!r} has more than a scheme, a host, a port and a path")
    if parts.scheme == "http" and parts.hostname not in _LOCAL_HOSTS:
        raise ValueError(f"{value!r}: a link with a token needs https, except on localhost")
    return text.rstrip("/")


def parse_return_url(value: Any) -> str:
    """Return the URL of a page of the application, maybe with a query. Raises ValueError."""
    text, parts = _split(value, "https://shop.example/password")
    if parts.username is not None or set(text) & set("#\"'<>\\;,"):
        raise ValueError(f"{value!r} has a login, a fragment or a character that is not allowed")
    if parts.scheme == "http" and parts.hostname not in _LOCAL_HOSTS:
        raise ValueError(f"{value!r}: a proof needs https, except on localhost")
    return text


def _split(value: Any, example: str) -> tuple[str, SplitResult]:
    """Return a URL of HTTP in visible ASCII, and its parts. Raises ValueError."""
    reason = f"{value!r} is no URL such as {example}"
    if not isinstance(value, str) or not _VISIBLE.fullmatch(value):
        raise ValueError(reason)
    try:
        parts = urlsplit(value)
        port = parts.port
    except ValueError:
        raise ValueError(reason) from None
    if parts.scheme not in ("http", "https") or not parts.hostname or port == 0:
        raise ValueError(reason)
    return value, parts

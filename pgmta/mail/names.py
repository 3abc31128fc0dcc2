"""Names of things that mail has: its tenant, its template."""

from __future__ import annotations

import re

_TEMPLATE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_TENANT = re.compile(r"([A-Za-z0-9][A-Za-z0-9._@+-]{0,63})?")


def check_name(text: str) -> str:
    """Return the name of a template. Raises ValueError."""
    if not _TEMPLATE.fullmatch(text):
        raise ValueError(f"{text[:80]!r} is no name of 1 to 64 letters, digits and . _ -")
    return text


def check_tenant(text: str) -> str:
    """Return a tenant, '' for none. Raises ValueError."""
    if not _TENANT.fullmatch(text):
        raise ValueError(f"{text[:80]!r} is no name of 1 to 64 letters, digits and . _ @ + -")
    return text

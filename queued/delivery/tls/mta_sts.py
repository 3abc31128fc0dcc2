"""MTA-STS: records and policies of recipient domains (RFC 8461, pure)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

MAX_POLICY_OCTETS = 65_536
"""The largest policy (RFC 8461, section 3.3)."""

MAX_AGE_S = 31_557_600
"""A policy is kept for a year at most (RFC 8461, section 3.2)."""

_MODES = ("enforce", "testing", "none")
_ID = re.compile(r"[A-Za-z0-9]{1,32}")
_NAME = re.compile(r"(\*\.)?[A-Za-z0-9_]([A-Za-z0-9_-]*[A-Za-z0-9_])?(\.[A-Za-z0-9_-]+)*\.?")
_MAX_MX_PATTERNS = 200  # of a policy that count


@dataclass(frozen=True, slots=True)
class FetchedPolicy:
    """The policy on a web server: mode, mx patterns, and seconds to keep it."""

    mode: str
    mx: tuple[str, ...]
    max_age: int


def record_id(records: Iterable[str]) -> str | None:
    """Return the policy id in the TXT records of `_mta-sts.DOMAIN`; None if there is no policy.

    More than one record of the right version means none (RFC 8461, section 3.1).
    """
    found = [record for record in records if re.match(r"v=STSv1[ \t]*;", record)]
    if len(found) != 1:
        return None
    for part in found[0].split(";")[1:]:
        name, _, value = part.strip(" \t").partition("=")
        if name == "id":
            return value if _ID.fullmatch(value) else None
    return None


def parse_policy(text: str) -> FetchedPolicy:
    """Return the policy in a policy file (section 3.2). Raises ValueError.

    Of a field that comes twice the first counts, except of mx, of which all do.
    """
    fields: dict[str, str] = {}
    mx: list[str] = []
    for line in re.split(r"\r?\n", text):
        name, colon, value = line.partition(":")
        name, value = name.strip(" \t"), value.strip(" \t")
        if not colon:
            if line.strip():
                raise ValueError(f"a line without a colon: {line[:60]!r}")
        elif name == "mx":
            if not _NAME.fullmatch(value):
                raise ValueError(f"mx is no host name: {value[:60]!r}")
            mx.append(value.lower().rstrip("."))
        else:
            fields.setdefault(name, value)
    mode, max_age = fields.get("mode", ""), fields.get("max_age", "")
    if fields.get("version") != "STSv1":
        raise ValueError("version is not STSv1")
    if mode not in _MODES:
        raise ValueError(f"mode is not enforce, testing or none: {mode[:60]!r}")
    if not (max_age.isascii() and max_age.isdigit() and len(max_age) <= 10):
        raise ValueError(f"max_age is no number of seconds: {max_age[:60]!r}")
    if not mx and mode != "none":
        raise ValueError("no mx")
    return FetchedPolicy(
        mode, tuple(dict.fromkeys(mx[:_MAX_MX_PATTERNS])), min(int(max_age), MAX_AGE_S)
    )


def mx_matches(patterns: Sequence[str], host: str) -> bool:
    """Return whether a policy names the host; `*.` stands for one label (section 4.1)."""
    host = host.lower().rstrip(".")
    return host in patterns or f"*.{host.partition('.')[2]}" in patterns

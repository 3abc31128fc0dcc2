"""The metadata of a row: its values as conditions of configuration files name them (pure)."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta
from typing import Any


def values_of(metadata: str) -> dict[str, Any]:
    """Return the values of metadata in JSON; a number of any length is a text.

    Raises ValueError, RecursionError if they can't be read.
    """
    values = json.loads(metadata, parse_int=str, parse_float=str)
    return values if isinstance(values, dict) else {}


DEADLINE_KEY = "_deadline"
"""The key of a row's metadata whose value is the time after which no attempt is made."""

SCOPE_KEY = "_scope"
"""The key of a row whose recipient can unsubscribe from this kind of mail."""

EXEMPT_KEY = "_exempt"
"""The key of a row that goes whether its recipient is suppressed or not; its value says why."""

OWN_KEYS = frozenset((SCOPE_KEY, EXEMPT_KEY))
"""Keys that neither smtpd.yaml nor hooks may give: they decide which suppressions count."""

_TIME = re.compile(
    r"(\d{4}-\d\d-\d\d)[Tt ](\d\d:\d\d:)(\d\d)(\.\d+)?([Zz]|[+-]\d\d:\d\d)", re.ASCII
)
_LEAP_SECOND = "60"  # RFC 3339, section 5.7
_SHOWN_CHARACTERS = 60  # of a bad value


def parse_time(text: str) -> datetime:
    """Return a time of RFC 3339, section 5.6, in UTC. Raises ValueError."""
    match = _TIME.fullmatch(text)
    if not match:
        raise ValueError("it is no time of RFC 3339 with its zone, such as 2026-01-31T09:30:00Z")
    day, clock, second, fraction, zone = match.groups()
    leap = second == _LEAP_SECOND
    second = "59" if leap else second
    zone = "+00:00" if zone in "Zz" else zone
    time = datetime.fromisoformat(f"{day}T{clock}{second}{(fraction or '')[:7]}{zone}")
    try:
        return time.astimezone(UTC) + timedelta(seconds=leap)
    except OverflowError:  # at the end of the calendar
        raise ValueError("it is too far away") from None


def deadline_of(metadata: str) -> tuple[datetime | None, str]:
    """Return the deadline in a row's metadata, as JSON; and the reason why a bad one is ignored."""
    try:
        value = values_of(metadata).get(DEADLINE_KEY)
    except (ValueError, RecursionError):
        return None, f"{DEADLINE_KEY} is ignored: the metadata can't be read"
    if value is None:
        return None, ""
    try:
        if not isinstance(value, str):
            raise ValueError(
                "it is no time of RFC 3339 with its zone, such as 2026-01-31T09:30:00Z"
            )
        return parse_time(value), ""
    except ValueError as error:
        shown = ascii(value) if isinstance(value, str) else type(value).__name__
        shown = shown if len(shown) <= _SHOWN_CHARACTERS else f"{shown[:_SHOWN_CHARACTERS]}..."
        return None, f"{DEADLINE_KEY} {shown} is ignored: {error}"

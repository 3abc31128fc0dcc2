"""The kinds of events."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pgmta.config.types import hint

KINDS: Final = (
    "accepted",
    "deferred",
    "delivered",
    "bounced",
    "unknown",
    "expired",
    "cancelled",
    "held",
    "released",
    "complained",
    "unsubscribed",
    "suppressed",
)
"""As in `mail_events.kind`, which a test compares. The type in a document has `mail.` before it."""


def check_kinds(kinds: Sequence[str]) -> None:
    """Raise ValueError for a kind of events that does not exist."""
    for kind in kinds:
        if kind not in KINDS:
            raise ValueError(f"{kind[:80]!r} is no kind of events: {hint(kind, KINDS)}")

"""The kinds of events."""

from __future__ import annotations

from typing import Final

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

"""What a key may be allowed to do."""

from __future__ import annotations

SCOPES = {
    "send": "submit mail",
    "messages": "read what became of mail",
    "messages:change": "cancel, hold and release mail",
    "templates": "read and write templates",
    "campaigns": "read and write campaigns",
    "suppressions": "read and write suppressions",
    "events": "read events",
    "webhooks": "read and write webhooks",
    "usage": "read counts of mail",
}
"""The scopes, each with what it allows."""

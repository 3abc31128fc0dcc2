"""The notices beside failures that a sender gets (RFC 3461, sections 4.1 and 5.2; pure)."""

from __future__ import annotations

from collections.abc import Sequence

from pgmta.model import Item, Outcome
from queued.delivery.reply import Result


def success_notice(item: Item, result: Result) -> str:
    """Return `relayed` or `delivered` if the sender wants to know of a success; '' if not.

    A next hop that knows DSN got NOTIFY, and notifies the sender itself.
    """
    if not (item.notify and item.on_failed == "bounce" and item.sender):
        return ""
    if "SUCCESS" not in item.notify.upper() or result.facts is None:
        return ""
    return result.facts.confirms


def overdue(outcome: Outcome, delays: Sequence[float]) -> float:
    """Return the last of these ages in seconds that mail which waits has passed; 0.0 if none."""
    item = outcome.item
    if item.on_failed != "bounce" or not item.sender:
        return 0.0
    age = (outcome.ended - item.ts).total_seconds()
    passed = [delay for delay in delays if delay <= age]
    return passed[-1] if passed else 0.0

"""Transactions of campaigns are marked as begun a little before their turn; other mail is not."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import cast

import pytest

from pgmta.model import Item
from pgmta.store.queue.lease import RowLeases
from queued.worker.leases import Leases

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
OF_CAMPAIGN = '{"_campaign": "1.2.3"}'


class Noted:
    """Notes the rows that are marked; `stopped` rows may not begin."""

    seconds = 60.0

    def __init__(self) -> None:
        self.statements: list[list[int]] = []
        self.stopped: set[int] = set()

    async def mark_begun(self, items: list[Item]) -> set[int]:
        """Return the ids of the rows that may begin."""
        ids = [item.id for item in items]
        self.statements.append(ids)
        return set(ids) - self.stopped


def claimed(
    number: int, metadata: str | None, *, once: bool = True
) -> tuple[Noted, Leases, list[Item]]:
    items = [
        Item(n, n, "s@a.example", "r@b.example", "b.example", 1, NOW, 3, once=once,
             metadata=metadata)
        for n in range(1, number + 1)
    ]  # fmt: skip
    noted = Noted()
    leases = Leases(cast(RowLeases, noted))
    leases.add_claimed(items, time.monotonic())
    return noted, leases, items


async def test_following_rows_of_a_campaign_need_no_statement() -> None:
    noted, leases, items = claimed(4, OF_CAMPAIGN)
    assert await leases.begin(items[:1], items[1:3])
    assert await leases.begin(items[1:2], [])
    assert await leases.begin(items[2:3], [])
    assert noted.statements == [[1, 2, 3]]
    assert await leases.begin(items[3:], [])
    assert noted.statements[1:] == [[4]]


async def test_a_mark_of_long_ago_counts_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    noted, leases, items = claimed(2, OF_CAMPAIGN)
    assert await leases.begin(items[:1], items[1:])
    later = time.monotonic() + 0.3
    monkeypatch.setattr(time, "monotonic", lambda: later)
    noted.stopped = {2}
    assert not await leases.begin(items[1:], [])
    assert noted.statements == [[1, 2], [2]]


async def test_other_mail_is_marked_at_its_turn() -> None:
    noted, leases, items = claimed(2, None)
    assert await leases.begin(items[:1], items[1:])
    assert await leases.begin(items[1:], [])
    assert noted.statements == [[1], [2]]
    noted, leases, items = claimed(1, None, once=False)
    assert await leases.begin(items, [])
    assert noted.statements == []

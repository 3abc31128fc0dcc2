"""Keys that are looked up while requests come."""

from __future__ import annotations

import asyncio
from typing import Any

import psycopg
import pytest

from pgmta.postgres.resources import Resources
from pgmta_features.http_api.caller import Caller
from pgmta_features.http_api.key_ring import KeyRing
from tests.features.http_api.served import make_key


@pytest.mark.timeout(20)  # the loop of the process would turn without end
async def test_a_request_that_comes_as_a_look_ends(
    as_api: str, db: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The task of the look has ended, and nobody who waits for it has had a turn yet."""
    first, second = make_key(db, "first"), make_key(db, "second")
    resources = Resources(as_api, "test")
    ring = KeyRing(resources, lambda note: note.close())
    look = ring._link.look
    asked: list[asyncio.Task[Caller]] = []

    async def watched(*args: Any) -> list[tuple[Any, ...]]:
        rows = await look(*args)
        if not asked:
            asked.append(asyncio.create_task(ring.find(second, "127.0.0.1")))
        return rows

    monkeypatch.setattr(ring._link, "look", watched)
    found = [await ring.find(first, "127.0.0.1"), await asked[0]]
    await resources.close()
    assert [each.name for each in found] == ["first", "second"]

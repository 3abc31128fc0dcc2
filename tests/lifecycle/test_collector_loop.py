"""The loop of a collector, in the process of the test."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from functools import partial
from pathlib import Path

import psycopg

from pgmta.compose.token import KeyRings
from pgmta.config.types import FOLDER
from pgmta.postgres.link import connect
from pgmta.store.lifecycle.collections import SESSION, CollectorStatements, TokenBatch
from queued.config import QueuedConfig
from queued.lifecycle.collector_loop import CollectorLoop
from queued.lifecycle.outputs import QueueOutput
from tests.lifecycle.tokens import add_accounts, settings


def test_a_locked_token_is_not_asked_for_again_and_again(
    accounts: psycopg.Connection, database: str, tmp_path: Path
) -> None:
    """An operator's open transaction has locked the one token that waits."""
    config = QueuedConfig.model_validate(settings(tmp_path), context={FOLDER: tmp_path})
    (collector,) = config.collectors
    sizes: list[int] = []

    class Counted(QueueOutput):
        async def put(self, store: CollectorStatements, reason: str, limit: int) -> TokenBatch:
            batch = await super().put(store, reason, limit)
            sizes.append(batch.taken)
            return batch

    output = Counted(collector, lambda: KeyRings.of(config.tokens))
    loop = CollectorLoop(collector, "test", partial(connect, database, "test", SESSION), output)

    async def run() -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(1.5):
                await loop.run()

    add_accounts(accounts, 1)
    with psycopg.connect(database) as db:
        db.execute("SELECT FROM lifecycle.tokens FOR UPDATE")
        asyncio.run(run())
    assert sizes in ([0], [0, 0])
    asyncio.run(run())
    assert sizes[-1] == 1

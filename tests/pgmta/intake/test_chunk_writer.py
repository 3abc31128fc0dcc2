"""Content on its way ahead of its messages."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from datetime import UTC, datetime

import psycopg
import pytest

from pgmta.errors import AnswerLost
from pgmta.intake.chunk_writer import ChunkWriter, Part
from pgmta.intake.content import Content, State
from pgmta.model import PART_OCTETS
from pgmta.postgres.outage import Outage
from pgmta.postgres.resources import Resources
from pgmta.store.queue.enqueue import Enqueue, chunk_count
from tests.support.waiting import PATIENCE, let_others_run


async def test_a_whole_message_first_then_the_oldest(
    database: str, db: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Enqueue.chunks
    order: list[int] = []

    async def chunks(self: Enqueue, parts: Iterable[tuple[int, int, bytes]]) -> None:
        parts = list(parts)
        order.extend(message_id for message_id, _, _ in parts)
        await real(self, parts)

    monkeypatch.setattr(Enqueue, "chunks", chunks)
    resources = Resources(database, "smtpd")
    writer = ChunkWriter(resources, Outage(0.0, let_others_run, print))

    def content(number: int) -> Content:
        made = Content(writer.drop_chunks)
        made.id, made.state = number, State.WRITING
        return made

    ids = [5, 3, 9, 1, 7]
    writes = [asyncio.create_task(writer.write_part(content(i), bytes(PART_OCTETS))) for i in ids]
    await let_others_run()
    whole = asyncio.Event()
    writer.put_part(Part(content(11), b"x" * 9000, lambda _: whole.set(), whole=True))
    writer.start()
    await asyncio.gather(*writes, whole.wait())
    await writer.stop()
    await resources.close()
    assert order == [11, *sorted(ids)]
    found = db.execute("SELECT DISTINCT message_id FROM message_chunks ORDER BY 1").fetchall()
    assert [row[0] for row in found] == [*sorted(ids), 11]


@pytest.mark.parametrize("stored", [True, False], ids=["stored", "not stored"])
async def test_a_part_whose_answer_was_lost_is_stored_once(
    database: str, db: psycopg.Connection, monkeypatch: pytest.MonkeyPatch, stored: bool
) -> None:
    real = Enqueue.chunks
    writes: list[object] = []

    async def chunks(self: Enqueue, parts: Iterable[tuple[int, int, bytes]]) -> None:
        writes.append(parts)
        first = len(writes) == 2
        if stored or not first:
            await real(self, parts)
        if first:
            raise AnswerLost("the connection broke", (1 << 22, datetime.now(UTC)))

    monkeypatch.setattr(Enqueue, "chunks", chunks)
    resources = Resources(database, "smtpd")
    outage = Outage(PATIENCE, let_others_run, print)
    writer = ChunkWriter(resources, outage)
    writer.start()
    content = Content(writer.drop_chunks)
    content.id = 7
    await writer.write_part(content, b"a" * PART_OCTETS)
    await writer.write_part(content, b"b" * 10_000)
    await writer.stop()
    await outage.stop()
    await resources.close()
    assert len(writes) == (2 if stored else 3)
    rows = db.execute("SELECT data FROM message_chunks WHERE message_id = 7 ORDER BY position")
    assert b"".join(data for (data,) in rows) == b"a" * PART_OCTETS + b"b" * 10_000
    assert content.chunks == chunk_count(PART_OCTETS) + chunk_count(10_000)

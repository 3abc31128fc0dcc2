"""The duty that reports, rows for it, and the DSNs that it has queued."""

from __future__ import annotations

import asyncio
import email
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import psycopg

from queued.config import QueuedConfig
from queued.process.queued_process import QueuedProcess
from queued.upkeep.reports import ReportDuty
from tests.support.rows import column, fetch, message, row
from tests.support.waiting import eventually

REASON = "undeliverable"
WAITING = "SELECT count(*) FROM queue WHERE status = 'REPORT'"


def config(**bounces: Any) -> QueuedConfig:
    return QueuedConfig.model_validate(
        {"environment": {"hostname": "mx.example.net"}, "bounces": {"gather": "0s", **bounces}}
    )


def process_of(uri: str, name: str = "p", **bounces: Any) -> QueuedProcess:
    """Return a process of that name."""
    process = QueuedProcess(config(**bounces), uri)
    process.name, process.due_in = name, lambda every: min(every, 0.1)  # looks all the time
    return process


@asynccontextmanager
async def duty(uri: str, name: str = "p", **bounces: Any) -> AsyncIterator[ReportDuty]:
    """Run a duty of a process of that name."""
    process = process_of(uri, name, **bounces)
    work = ReportDuty(process)
    task = asyncio.create_task(work.run())
    try:
        yield work
        assert not task.done()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await process.close()


async def ends(db: psycopg.Connection, query: str = WAITING, wanted: int = 0) -> None:
    """Wait for a number, by default until no row is in REPORT."""
    await eventually(lambda: fetch(db, query) == (wanted,))


def ended(db: psycopg.Connection, number: int, **columns: Any) -> int:
    """Return the id of a row in REPORT, of a message that may be there already."""
    if not column(db, "SELECT id FROM messages WHERE id = %s", number):
        message(db, number)
    kind = "bounced" if "hold_reason" in columns else "failed"
    values = {"status": "REPORT", "hold_reason": REASON, "held_by": "w@p", "attempts": 1}
    values["report_kind"] = kind
    return row(
        db, number, **{"last_reply": "550 5.1.1 No", "held_at": "2020-01-01", **values, **columns}
    )


def dsns(db: psycopg.Connection) -> list[tuple[str, list[str]]]:
    """Whom the DSNs in the queue go to, and which recipients they name."""
    found = []
    rows = db.execute(
        "SELECT q.recipient, coalesce(m.body, (SELECT string_agg(data, '' ORDER BY position)"
        " FROM message_chunks WHERE message_id = m.id)), m.size"
        " FROM queue AS q JOIN messages AS m ON m.id = q.message_id"
        " WHERE q.metadata ? '_report' AND q.sender = '' AND q.status = 'QUEUED' ORDER BY q.id"
    )
    for sent_to, body, size in rows:
        chunks = bytes(body)
        if not chunks:
            (whole,) = fetch(
                db,
                "SELECT string_agg(data, '' ORDER BY position) FROM message_chunks"
                " WHERE message_id = (SELECT message_id FROM queue WHERE recipient = %s"
                " AND metadata ? '_report' LIMIT 1)",
                sent_to,
            )
            chunks = bytes(whole)
        assert len(chunks) == size
        parts = email.message_from_bytes(chunks).get_payload(1).get_payload()  # type: ignore[union-attr]
        names = [str(part["Final-Recipient"]) for part in parts]  # type: ignore[index]
        found.append((sent_to, [n.partition(";")[2].strip() for n in names if n != "None"]))
    return found

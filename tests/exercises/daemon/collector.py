"""The daemon `collector`: each file in a folder becomes a message."""

from __future__ import annotations

import asyncio
from pathlib import Path

from pgmta.daemon_role import DaemonRole
from pgmta.model import NewMessage
from pgmta.postgres.notify import NOTIFY
from pgmta.postgres.resources import Resources
from pgmta.service import Signals, first, start_part
from pgmta.store.queue.enqueue import Enqueue
from pgmta.store.schema import Schema

ROLE = DaemonRole("collector")
_LOOK = 0.05  # seconds


async def run(uri: str, host: str, folder: Path, signals: Signals) -> None:
    """Collect until SIGTERM or SIGINT."""
    resources, schema, answered = Resources(uri, ROLE.name), Schema(), asyncio.Event()
    heartbeat = ROLE.heartbeat(resources.link("heartbeat"), schema, host)
    beating = start_part("heartbeat", lambda: heartbeat.run(lambda: None, answered), signals.stop)
    link = resources.link("messages")
    store = Enqueue(link, schema)
    await answered.wait()
    while not await first(signals.stop, timeout=_LOOK):
        for file in folder.glob("*.eml"):
            body = file.read_bytes()
            [number] = await store.reserve(1)
            recipients = [("r@b.example", "b.example")]
            message = NewMessage(number, "c@a.example", recipients, len(body), "", body)
            await store.commit([message])
            await link.run(NOTIFY)
            file.unlink()
    beating.cancel()
    await asyncio.wait([beating])
    await heartbeat.leave()
    await resources.close()

"""The functions from a notification to the commit that settles a message: docs/flow.md has them."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import psycopg

from pgmta.postgres.notify import NOTIFY
from pgmta.service import Signals
from queued.config import QueuedConfig
from queued.daemon.daemon import Daemon
from tests.support.nexthop import NextHop
from tests.support.tracer import traced, usual
from tests.support.waiting import eventually, let_others_run

FLOW = Path(__file__).parents[2] / "docs" / "flow.md"
HEADING = "## From NOTIFY to settled: the functions"
MOST_FUNCTIONS, MOST_FILES = 42, 22
BODY = (b"Subject: x\r\n\r\n" + b"4 KB of text, line by line\r\n" * 150)[:4096]
# No periodic work falls into a trace. The loop of urgent rows is no part of the message's way.
CONFIG = {
    "process": {"lease": "1h", "poll": "1h", "watch": None},
    "delivery": {"idle": "1h"},
    "urgent": {"priority": None},
}
BUSY = (
    "SELECT 1 FROM queue UNION ALL SELECT 1 FROM pg_stat_activity"
    " WHERE datname = current_database() AND state = 'active' AND pid <> pg_backend_pid()"
)


def documented() -> list[str]:
    """The list in docs/flow.md, `file.py: function` each."""
    section = FLOW.read_text(encoding="utf-8").partition(HEADING)[2].partition("\n## ")[0]
    return re.findall(r"`(\w+(?:/\w+)+\.py: [\w.]+)`", section)


async def deliver(db: psycopg.AsyncConnection, number: int) -> list[str]:
    """Notify the daemon of a message; return the functions that it calls until it is idle again."""
    async with db.transaction():
        await db.execute(
            "INSERT INTO messages (id, size, trace, body) VALUES (%s, %s, 'T: t\r\n', %s)",
            (number, len(BODY), BODY),
        )
        await db.execute(
            "INSERT INTO queue (message_id, sender, recipient, domain)"
            " VALUES (%s, 's@a.example', 'r@b.example', 'b.example')",
            (number,),
        )
    with traced() as calls:
        await db.execute(NOTIFY)

        async def idle() -> bool:
            return not await (await db.execute(BUSY)).fetchone()

        await eventually(idle)
        for _ in range(3):  # the daemon reads the answer to its commit
            await let_others_run(5)
            await db.execute("SELECT")
    return calls


async def test_a_message_passes_the_functions_of_the_documentation(database: str) -> None:
    """In a daemon that has delivered to this next hop a moment ago."""
    with NextHop() as hop:
        routes = {"*": f"127.0.0.1:{hop.port}"}
        config = QueuedConfig.model_validate({**CONFIG, "routes": routes})
        signals = Signals()
        daemon = asyncio.create_task(Daemon(config, database, lambda: config, signals).run())
        async with await psycopg.AsyncConnection.connect(database, autocommit=True) as db:
            await deliver(db, 1)
            traces = [await deliver(db, number) for number in range(2, 6)]
        signals.stop.set()
        await daemon
    way = usual(traces)
    files = {name.partition(":")[0] for name in way}
    found = "\n".join(f"{place}. `{name}`" for place, name in enumerate(way, 1))
    assert way == documented(), found
    assert len(way) <= MOST_FUNCTIONS
    assert len(files) <= MOST_FILES

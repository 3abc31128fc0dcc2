"""`queuectl top`: rates, queue, hosts and workers, live on a terminal."""

from __future__ import annotations

import sys
from pathlib import Path

from pgmta.errors import PgmtaError
from pgmta.postgres.operator import OF_THE_LOG, connected
from queued.cli.options.queue_command import command, database_of


@command()
async def top(config: Path) -> None:
    """Show rates, the queue by next hop, failing and slow hosts, and workers, until q.

    Rates are means of 10 s, hosts are of the last minute, and the queue is counted once per minute.
    """
    if not all(each.isatty() for each in (sys.stdin, sys.stdout, sys.stderr)):
        raise PgmtaError(
            "top needs a terminal; `queuectl list --count` and `queuectl logs` need none"
        )
    uri = database_of(config)
    # here, because the import of textual takes 0.2 s
    from pgmta_features.top.screen import TopScreen

    await TopScreen(lambda: connected(uri, OF_THE_LOG)).run_async()

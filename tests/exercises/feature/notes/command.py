"""The command `queuectl notes`."""

from __future__ import annotations

from pathlib import Path

from pgmta.command import print_line
from pgmta.postgres.operator import connected
from queued.cli.options.queue_command import command, database_of


@command()
async def notes(config: Path) -> None:
    """List the notes."""
    async with connected(database_of(config)) as db:
        for row in await db.rows("SELECT text FROM notes ORDER BY text"):
            print_line(row["text"])

"""The command `queuectl notes`."""

from __future__ import annotations

from pathlib import Path

from pgmta.command import print_line
from pgmta.postgres.operator import connect_operator
from queued.cli.options.queue_command import command, database_of


@command()
def notes(config: Path) -> None:
    """List the notes."""
    with connect_operator(database_of(config)) as db:
        for row in db.execute("SELECT text FROM notes ORDER BY text").fetchall():
            print_line(row["text"])

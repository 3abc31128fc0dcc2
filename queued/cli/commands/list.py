"""The command `queuectl list`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from pgmta.command import print_line
from pgmta.postgres.operator import connected
from pgmta.states import WAITING
from pgmta.store.changes.listing import Listing
from queued.cli.commands.show import why
from queued.cli.options.filter_options import condition, queue_options
from queued.cli.options.queue_command import (
    Column,
    Cut,
    Form,
    age_of,
    command,
    database_of,
    print_rows,
    time_to,
)


@command(name="list", rows=True)
@queue_options
@click.option(
    "--limit",
    type=click.IntRange(1),
    default=100,
    show_default=True,
    help="Print at most this number of rows.",
)
@click.option(
    "--after",
    type=click.IntRange(0),
    default=0,
    metavar="ROW",
    help="Go on after the row with this id: `id` with --json. The last line names it.",
)
async def list_rows(config: Path, limit: int, after: int, form: Form, **filters: Any) -> None:
    """List rows of the queue, oldest first."""
    uri = database_of(config)
    where = await condition(uri, filters) or "true"
    async with connected(uri) as db:
        listing = Listing(db)
        rows = await listing.rows(where, limit + 1, after)
    for fault in listing.faults:
        print_line(f"warning: {fault}; left out", err=True)
    more, rows = len(rows) > limit, rows[:limit]
    print_rows(rows, _COLUMNS, form)
    if more and not form.for_machines:
        print_line(f"{limit} rows; --after {rows[-1]['id']} shows the next", err=True)


_COLUMNS: dict[str, Column] = {
    "ID": "message_id",
    "STATUS": "status",
    "AGE": lambda row: age_of(row["ts"]),
    "NEXT": lambda row: time_to(row["next_attempt"]) if row["status"] in WAITING else "-",
    "TRIES": "attempts",
    "SIZE": "size",
    "SENDER": lambda row: f"<{row['sender']}>",
    "RECIPIENT": "recipient",
    "REPLY OR REASON": Cut(why),
}

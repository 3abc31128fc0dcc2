"""The command `queuectl`: what operators see and do."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from queued.cli.show import print_message
from queued.cli.up import up
from queued.command import EXIT_FAILURE, config_option, print_json, print_table, reporting
from queued.config.loader import load
from queued.config.queued import QueuedConfig
from queued.database import resolve
from queued.states import Status
from queued.store.listing import COLUMNS, Listing
from queued.store.migrate import migrate as apply_migrations

_DEFAULT = "etc/queued.yaml"


@click.group()
def main() -> None:
    """See and steer the queue."""


main.add_command(up)


def _uri(config: Path) -> str:
    return resolve(load(config, QueuedConfig).environment)


@contextmanager
def _listing(config: Path) -> Iterator[Listing]:
    listing = Listing(_uri(config))
    try:
        yield listing
    finally:
        listing.close()


json_option = click.option("--json", "as_json", is_flag=True, help="Output for machines.")


@main.command()
@config_option(_DEFAULT)
@json_option
@reporting
def migrate(config: Path, as_json: bool) -> None:
    """Bring the database's schema up to date."""
    applied = apply_migrations(_uri(config))
    if as_json:
        print_json({"applied": applied})
    elif applied:
        for name in applied:
            click.echo(f"applied {name}")
    else:
        click.echo("nothing to do")


@main.command("list")
@config_option(_DEFAULT)
@click.option("--id", type=int, help="Queue id of a message.")
@click.option(
    "--status",
    type=click.Choice([s.value for s in Status], case_sensitive=False),
    help="Status of the row.",
)
@click.option("--domain", help="Domain of the recipient.")
@click.option("--sender", help="Reverse-path; '' for the null one.")
@click.option("--recipient", help="Address of the recipient.")
@click.option("--limit", type=click.IntRange(1), default=100, show_default=True, help="Rows.")
@json_option
@reporting
def list_rows(config: Path, limit: int, as_json: bool, **filters: Any) -> None:
    """List rows of the queue, oldest first."""
    if filters["domain"]:
        filters["domain"] = filters["domain"].lower()
    with _listing(config) as listing:
        rows = listing.rows(limit + 1, **filters)
    more, rows = len(rows) > limit, rows[:limit]
    if as_json:
        print_json(rows)
        return
    now = datetime.now(UTC)
    print_table(
        ["ID", "STATUS", "AGE", "NEXT", "TRIES", "SIZE", "SENDER", "RECIPIENT", "LAST REPLY"],
        [
            [
                row["message_id"],
                row["status"],
                age((now - row["ts"]).total_seconds()),
                age((row["next_attempt"] - now).total_seconds())
                if row["status"] in (Status.QUEUED, Status.DEFERRED)
                else "-",
                row["attempts"],
                row["size"],
                f"<{row['sender']}>",
                row["recipient"],
                shorten(row["last_reply"] or ""),
            ]
            for row in rows
        ],
    )
    if more:
        click.echo(f"the first {limit}; --limit shows more", err=True)


@main.command()
@config_option(_DEFAULT)
@click.option(
    "--by", type=click.Choice(COLUMNS), default="status", show_default=True, help="The column."
)
@json_option
@reporting
def count(config: Path, by: str, as_json: bool) -> None:
    """Count rows by the values of a column."""
    with _listing(config) as listing:
        rows = listing.count(by)
    if as_json:
        print_json([{by: row[by], "count": row["count"], "oldest": row["min"]} for row in rows])
        return
    now = datetime.now(UTC)
    print_table(
        [by.upper(), "COUNT", "OLDEST"],
        [
            [
                "-" if row[by] is None else row[by],
                row["count"],
                age((now - row["min"]).total_seconds()),
            ]
            for row in rows
        ],
    )


@main.command()
@config_option(_DEFAULT)
@click.argument("message_id", metavar="ID", type=int)
@json_option
@reporting
def show(config: Path, message_id: int, as_json: bool) -> None:
    """Show a message: headers, recipients, next attempt, and every attempt so far.

    ID is what the client got with its 250. The history outlives the message.
    """
    with _listing(config) as listing:
        message = listing.message(message_id)
        rows = listing.rows(100_000, id=message_id)
        history = listing.history(message_id)
    if not message and not history:
        click.echo(f"error: no message {message_id}, neither in the queue nor in the log", err=True)
        sys.exit(EXIT_FAILURE)
    print_message(message_id, message, rows, history, as_json=as_json)


def age(seconds: float) -> str:
    """A span for reading: 45s, 12m, 3h, 2d; what has passed is `now`."""
    if seconds < 1:
        return "now"
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f}{unit}"
    return f"{seconds:.0f}s"


def shorten(text: str, width: int = 60) -> str:
    """The text in at most `width` characters."""
    return text if len(text) <= width else text[: width - 1] + "…"

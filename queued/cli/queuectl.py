"""The command `queuectl` of operators: reads, changes, migrations."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from pgmta.command import (
    EXIT_FAILURE,
    age,
    config_option,
    json_option,
    print_json,
    print_line,
    print_table,
    reporting,
    shorten,
    version_option,
)
from pgmta.logs import keep_off_stdout
from pgmta.states import Status
from pgmta.store.admin.migrate import migrate as apply_migrations
from pgmta.store.changes.listing import HEAD, Listing
from queued.cli.commands.change import COMMANDS
from queued.cli.commands.classify import classify
from queued.cli.commands.count import count
from queued.cli.commands.dkim import dkim
from queued.cli.commands.explain import explain
from queued.cli.commands.find import find
from queued.cli.commands.partition import partition
from queued.cli.commands.route import route
from queued.cli.commands.rules import rule
from queued.cli.commands.show import arrival, print_message, why
from queued.cli.commands.submission import cancel, status, submit
from queued.cli.commands.trace import trace
from queued.cli.commands.up import up
from queued.cli.commands.user import user
from queued.cli.commands.workers import workers
from queued.cli.options.filters import condition, filter_options
from queued.cli.options.target import CONFIG, database_of, database_to_migrate
from queued.rewriting.composed import COMPOSED, COMPOSERS


@click.group()
@version_option("queuectl")
def main() -> None:
    """Show and change the queue."""
    keep_off_stdout()


main.add_command(up)
main.add_command(count)
main.add_command(explain)
main.add_command(find)
main.add_command(submit)
main.add_command(cancel)
main.add_command(status)
main.add_command(partition)
main.add_command(workers)
main.add_command(rule)
main.add_command(route)
main.add_command(classify)
main.add_command(trace)
main.add_command(dkim)
main.add_command(user)
for command in COMMANDS:
    main.add_command(command)


@contextmanager
def _listing(uri: str) -> Iterator[Listing]:
    listing = Listing(uri)
    try:
        yield listing
    finally:
        listing.close()


def _warn(listing: Listing) -> None:
    for fault in listing.faults:
        print_line(f"warning: {fault}; left out", err=True)


@main.command()
@config_option(CONFIG, needed=False)
@click.option(
    "--while-daemons-run",
    is_flag=True,
    help="Also migrate while daemons of another version run. They take no mail until replaced.",
)
@json_option
@reporting
def migrate(config: Path, while_daemons_run: bool, as_json: bool) -> None:
    """Bring the schema up to date. Refused while daemons of another version run."""
    applied = apply_migrations(
        database_to_migrate(config),
        lambda text: print_line(f"warning: {text}", err=True),
        while_daemons_run=while_daemons_run,
    )
    if as_json:
        print_json({"applied": applied})
    elif applied:
        for name in applied:
            print_line(f"applied {name}")
    else:
        print_line("nothing to do")


@main.command("list")
@config_option(CONFIG)
@filter_options
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
@json_option
@reporting
def list_rows(config: Path, limit: int, after: int, as_json: bool, **filters: Any) -> None:
    """List rows of the queue, oldest first."""
    uri = database_of(config)
    where = condition(uri, filters) or "true"
    with _listing(uri) as listing:
        rows = listing.rows(where, limit + 1, after)
    _warn(listing)
    more, rows = len(rows) > limit, rows[:limit]
    if as_json:
        print_json(rows)
        return
    now = datetime.now(UTC)
    print_table(
        ["ID", "STATUS", "AGE", "NEXT", "TRIES", "SIZE", "SENDER", "RECIPIENT", "REPLY OR REASON"],
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
                shorten(why(row)),
            ]
            for row in rows
        ],
    )
    if more:
        print_line(f"{limit} rows; --after {rows[-1]['id']} shows the next", err=True)


@main.command()
@config_option(CONFIG)
@click.argument("message_id", metavar="ID", type=int)
@click.option("--transcript", is_flag=True, help="Also print the dialogues that were kept.")
@json_option
@reporting
def show(config: Path, message_id: int, transcript: bool, as_json: bool) -> None:
    """Show a message: headers, recipients, next attempt, every attempt so far, and DSNs.

    ID is what the client got with its 250. The history outlives the message. Attempts that failed
    have a transcript, and those that a trace asked for.
    """
    with _listing(database_of(config)) as listing:
        message = listing.message(message_id, COMPOSED if COMPOSERS else HEAD)
        rows = listing.rows(f"message_id = {message_id}", 100_000)
        history = listing.history(message_id)
        came = arrival(listing.arrival(message_id), history)
        reports = listing.reports(message_id)
        said = listing.transcripts(message_id) if transcript else None
    if not message and not history and not any(reports):
        print_line(f"error: no message {message_id}, neither in the queue nor in the log", err=True)
        sys.exit(EXIT_FAILURE)
    print_message(message_id, message, rows, history, reports, said, came, as_json=as_json)

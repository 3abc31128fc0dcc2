"""`queuectl logs`: the end of the log, and each entry that comes."""

from __future__ import annotations

import asyncio
import io
import select
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import click
import psycopg

from pgmta.command import instant, print_csv, print_json, print_line, shorten
from pgmta.errors import ConfigError, StoreUnavailable
from pgmta.states import LOGGED_EVENTS
from pgmta.store.changes.attempt_log import AttemptLog, of_attempts
from pgmta.store.changes.search import Wanted
from queued.cli.options.filter_options import search_options
from queued.cli.options.queue_command import (
    Form,
    command,
    database_of,
    read_since_s,
)

_LOOK_INTERVAL_S = 1.0
# a pause lasts so many times as long as a look, which long transactions slow down
_PAUSE_FACTOR = 10
_DEFAULT_LINES = 10
_DEFAULT_SINCE_S = 3600.0


@command(rows=True)
@search_options
@click.option(
    "--event",
    multiple=True,
    type=click.Choice(LOGGED_EVENTS, case_sensitive=False),
    help="What happened.",
)
@click.option("--class", multiple=True, help="Class of the answer, * for any text.")
@click.option(
    "--next-hop",
    "host",
    multiple=True,
    metavar="HOST",
    help="Host that was tried, with or without its port, * for any text.",
)
@click.option(
    "--since", metavar="TIME", help="Begin with all entries since then, at most -n of them."
)
@click.option(
    "-n",
    "--lines",
    type=click.IntRange(0),
    help="Begin with the last N entries, of an hour without --since.  "
    "[default: 10; with --since all]",
)
@click.option("--follow/--no-follow", default=True, help="Go on with new entries, or end.")
async def logs(
    config: Path, since: str | None, lines: int | None, follow: bool, form: Form, **texts: Any
) -> None:
    """Follow the log: each attempt as it ends, until Ctrl-C.

    Values of one option are alternatives; different options must all match. --json prints a line
    per entry.
    """
    seconds = read_since_s(since) if since else _DEFAULT_SINCE_S
    try:
        names = ("recipient", "domain", "sender", "tenant", "metadata", "submitted_by")
        of_mail = {name: texts[name] for name in names}
        wanted = Wanted(
            **of_mail,
            message_id_header=texts["message_id_header"],
            clients=texts["client"],
            more=of_attempts({name: texts[name] for name in ("event", "class", "host")}),
        )
        wanted.in_log()
    except ValueError as error:
        raise ConfigError([str(error)]) from None
    most = lines if lines is not None or since else _DEFAULT_LINES
    async with AttemptLog(database_of(config), wanted) as log:
        printer = _Printer(form)
        printer.print_rows(await log.last(seconds, most))
        if follow:
            # by Ctrl-C the user ends the command
            with suppress(KeyboardInterrupt, asyncio.CancelledError):
                await _follow(log, printer)


class _Printer:
    """Prints entries as they come."""

    def __init__(self, form: Form) -> None:
        self._form = form
        self._head = True

    def print_rows(self, rows: list[dict[str, Any]]) -> None:
        """Print entries, and let them go at once."""
        if self._form == Form.CSV:
            print_csv(rows, head=self._head)
            self._head = self._head and not rows
        else:
            for row in rows:
                if self._form == Form.JSON:
                    print_json(row, line=True)
                else:
                    print_line(_line(row, whole=self._form == Form.WIDE))
        sys.stdout.flush()


def _line(row: dict[str, Any], *, whole: bool) -> str:
    """Return an entry for people: time, event, class, message, addresses, host, reply."""
    late = f" ({row['late']})" if row["late"] else ""
    reply = f"{row['code'] or ''} {row['reply']}".strip()
    return (
        f"{instant(row['ended_at'])} {row['event']:<9}{late} {row['class'] or '-':<16} "
        f"{row['message_id']} <{row['sender']}> {row['recipient']} {row['host'] or '-'} "
        f"{reply if whole else shorten(reply)}".rstrip()
    )


async def _follow(log: AttemptLog, printer: _Printer) -> None:
    """Print new entries until stdout is closed; a database that goes away is waited for."""
    away, took = False, 0.0
    while not _closed(max(_LOOK_INTERVAL_S, took * _PAUSE_FACTOR)):
        began = time.monotonic()
        try:
            if away:
                await log.connect()
            rows = await log.fresh()
        except (StoreUnavailable, psycopg.OperationalError, psycopg.InterfaceError) as error:
            if not away:
                print_line(f"warning: the database is away: {error}", err=True)
            away, took = True, 0.0
            continue
        if away:
            print_line("the database is back", err=True)
        away, took = False, time.monotonic() - began
        printer.print_rows(rows)


def _closed(seconds: float) -> bool:
    """Wait, and return whether the reader of stdout has gone meanwhile."""
    poll = select.poll()
    try:
        poll.register(sys.stdout.fileno(), 0)
    except io.UnsupportedOperation:
        time.sleep(seconds)
        return False
    return bool(poll.poll(seconds * 1000))

"""`queuectl list --count`: rows of the queue, or attempts in the log, by the values of a column."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from pgmta.command import print_line
from pgmta.config.types import hint
from pgmta.errors import ConfigError
from pgmta.model import NamedHop
from pgmta.postgres.operator import connected
from pgmta.store.changes.listing import (
    COLUMN_FIELDS,
    DERIVED_FIELDS,
    LOGGED_FIELDS,
    NEXT_HOP,
    Listing,
)
from queued.cli.options.filter_options import condition, filter_options
from queued.cli.options.queue_command import (
    Column,
    Form,
    age_of,
    command,
    database_of,
    print_rows,
    read_since_s,
)

_ROW_FILTERS = ("status", "age", "priority", "hold_reason")
"""Filters for values that the log has not."""


@command(name="list --count", rows=True)
@click.option(
    "--by",
    metavar="COLUMN",
    help=f"{', '.join(COLUMN_FIELDS)}, {', '.join(DERIVED_FIELDS)} "
    "(of the last attempt) or metadata.KEY; "
    f"with --since {', '.join(LOGGED_FIELDS)} or metadata.KEY.  "
    "[default: status; with --since event]",
)
@click.option(
    "--since",
    metavar="TIME",
    help="Count attempts in the log that ended since then, in place of rows.",
)
@filter_options
async def count(
    config: Path, by: str | None, since: str | None, form: Form, **filters: Any
) -> None:
    """Count rows by a column; with --since attempts, also those of mail that left."""
    by = by or ("event" if since else "status")
    columns = LOGGED_FIELDS if since else (*COLUMN_FIELDS, *DERIVED_FIELDS)
    if by not in columns and not by.startswith("metadata."):
        raise ConfigError([f"--by {by!r}: {hint(by, [*columns, 'metadata.KEY'])}"])
    seconds = _seconds(since, filters) if since else 0.0
    uri = database_of(config)
    where = await condition(uri, filters) or "true"
    hops = _next_hops(config) if by == NEXT_HOP else ()
    async with connected(uri) as db:
        listing = Listing(db)
        found = (
            await listing.count_attempts(where, by, seconds)
            if since
            else await listing.count_rows(where, by, hops)
        )
    for fault in listing.faults:
        print_line(f"warning: {fault}; left out", err=True)
    names = {"value": by, "min": "oldest", "max": "latest"}
    table: dict[str, Column] = {
        by.upper(): lambda row: "-" if row["value"] in (None, "") else row["value"],
        "COUNT": "count",
        "OLDEST": lambda row: age_of(row["min"]),
    }
    if since:
        table["LATEST"] = lambda row: age_of(row["max"])
    values = [{names.get(name, name): row[name] for name in row} for row in found]
    print_rows(found, table, form, values=values)


def _next_hops(config: Path) -> Sequence[NamedHop]:
    """Return the next hops of the present routes. Raises ConfigError."""
    # here, because other counts need no routes, whose import takes long
    from queued.config import read_config
    from queued.routing.routes import Routes

    settings = read_config(config, passwords=False)
    return Routes(settings.routes, settings.routing).next_hops


def _seconds(since: str, filters: dict[str, Any]) -> float:
    """Return the seconds of --since. Raises ConfigError, also for a filter that needs rows."""
    problems = [
        f"--{name.replace('_', '-')} is about rows of the queue: --since counts attempts in the log"
        for name in _ROW_FILTERS
        if filters[name]
    ]
    if problems:
        raise ConfigError(problems)
    return read_since_s(since)

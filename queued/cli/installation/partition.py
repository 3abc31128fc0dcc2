"""`queuectl database partition`: show, check and change partitions while mail flows."""

from __future__ import annotations

import csv
import sys
from collections.abc import Callable
from dataclasses import asdict
from datetime import UTC
from pathlib import Path
from typing import Any

import click

from pgmta.command import EXIT_FAILURE, print_json, print_line
from pgmta.store.queue.partitions import Values, check, opened, tree
from pgmta.store.queue.repartition import Moved, Repartition
from queued.cli.options.queue_command import Column, Form, command, database_of, print_rows

_MIN_ROWS = 1000  # of one _partid in the default leaf, to suggest a leaf of its own

_wait = click.option(
    "--wait",
    type=click.FloatRange(0),
    default=60.0,
    show_default=True,
    metavar="SECONDS",
    help="How long to try for the lock. Each try stops mail for at most 0.3 s.",
)


@click.group()
def partition() -> None:
    """Show, check and change the partitions of the queue."""


def _split_list(_: click.Context, __: click.Parameter, given: tuple[str, ...]) -> Values:
    """Return the values of --partid: lists with commas; a value with a comma has "quotes"."""
    values: Values = []
    try:
        for text in given:
            values += next(csv.reader([text], skipinitialspace=True, strict=True), []) or [""]
    except csv.Error as error:
        raise click.BadParameter(f"{text!r}: {error}") from error
    return values


def _partid_options[F: Callable[..., Any]](command: F) -> F:
    command = click.option("--null", is_flag=True, help="Also rows without _partid, or with null.")(
        command
    )
    return click.option(
        "--partid",
        "values",
        multiple=True,
        callback=_split_list,
        metavar="VALUE[,VALUE…]",
        help='Value of _partid. Commas or repetition give several; write "a,b" for a comma.',
    )(command)


@command(partition, "list", rows=True)
@click.option("--exact", is_flag=True, help="Count the rows; reads the whole queue.")
async def list_partitions(config: Path, exact: bool, form: Form) -> None:
    """Show the tree: values, rows, size, oldest row and state of each partition.

    Without --exact, rows are estimates, and the oldest is the row with the lowest id.
    """
    async with opened(database_of(config)) as db:
        partitions = await tree(db, exact=exact)
        problems: dict[str, list[str]] = {}
        for finding in await check(db, None):
            if finding.severity == "problem":
                problems.setdefault(finding.object, []).append(finding.finding)
    depth = {"queue": 0}
    for part in partitions:
        depth[part.name] = depth[part.parent] + 1
    columns: dict[str, Column] = {
        "PARTITION": lambda part: "  " * (depth[part.name] - 1) + part.name,
        "TAKES": lambda part: part.takes,
        "ROWS": lambda part: part.rows,
        "KB": lambda part: None if part.size is None else part.size // 1024,
        "OLDEST": lambda part: (
            f"{part.oldest.astimezone(UTC):%Y-%m-%d %H:%M:%SZ}" if part.oldest else "-"
        ),
        "STATE": lambda part: "; ".join(problems.get(part.name, ["ok"])),
    }
    values = [asdict(p) | {"problems": problems.get(p.name, [])} for p in partitions]
    print_rows(partitions, columns, form, values=values)


@command(partition, json=True)
@click.argument("name")
@_partid_options
@_wait
async def add(
    config: Path, name: str, values: Values, null: bool, wait: float, as_json: bool
) -> None:
    """Give values of _partid a separate partition NAME; their rows move there.

    NAME begins with queue_; the command puts it before another beginning. Mail flows meanwhile,
    except for the time that `stopped` shows.
    """
    async with opened(database_of(config)) as db:
        _print_moved(
            await Repartition(db, wait).add_partition(name, values + [None] * null), as_json
        )


@command(partition, json=True)
@click.argument("name")
@_partid_options
@click.option("--into", required=True, metavar="NEW", help="Name of the new partition.")
@_wait
async def split(
    config: Path, name: str, values: Values, null: bool, into: str, wait: float, as_json: bool
) -> None:
    """Move values of _partid, with their rows, from NAME into a new partition."""
    async with opened(database_of(config)) as db:
        _print_moved(await Repartition(db, wait).split(name, values + [None] * null, into), as_json)


@command(partition, json=True)
@click.argument("name")
@_wait
async def drop(config: Path, name: str, wait: float, as_json: bool) -> None:
    """Move the rows of NAME into the default partition, and drop NAME.

    Mail stops while they move: one or two seconds for 100,000 rows.
    """
    async with opened(database_of(config)) as db:
        _print_moved(await Repartition(db, wait).drop(name), as_json)


@command(partition, "check", json=True)
@click.option(
    "--worth",
    type=click.IntRange(1),
    default=_MIN_ROWS,
    show_default=True,
    metavar="ROWS",
    help="Hint at values of _partid with at least this number of rows in the default partition.",
)
async def check_partitions(config: Path, worth: int, as_json: bool) -> None:
    """Report problems of the partitions; exit 1 if there is one, 0 if there are only hints.

    Reads the default partition.
    """
    async with opened(database_of(config)) as db:
        findings = await check(db, worth)
    if as_json:
        print_json([asdict(finding) for finding in findings])
    for finding in [] if as_json else findings:
        print_line(f"{finding.severity}: {finding.object}: {finding.finding}")
        print_line(f"    {finding.remedy}")
    if not findings and not as_json:
        print_line("all is well")
    if any(finding.severity == "problem" for finding in findings):
        sys.exit(EXIT_FAILURE)


def _print_moved(moved: Moved, as_json: bool) -> None:
    if as_json:
        print_json(asdict(moved))
    else:
        tries = f" at try {moved.tries}" if moved.tries > 1 else ""
        print_line(
            f"{moved.name}: {moved.rows} rows moved, "
            f"mail stopped for {moved.stopped * 1000:.0f} ms{tries}"
        )

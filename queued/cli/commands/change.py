"""Commands that change many rows: hold, release, retry, bounce, delete, set."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import click

from pgmta.action import IS_MALFORMED, ROW_ACTIONS, Action
from pgmta.command import (
    EXIT_USAGE,
    config_option,
    json_option,
    print_json,
    print_line,
    progress,
    reporting,
)
from pgmta.errors import ConfigError
from pgmta.postgres.operator import connected
from pgmta.store.changes.change import DEFAULT_BATCH_ROWS, OperatorChanges
from pgmta.store.changes.listing import Listing
from pgmta.store.changes.overview import Overview
from pgmta.store.changes.row_change import RowChange
from queued.cli.options.filter_options import condition, queue_options
from queued.cli.options.queue_command import (
    CONFIG_NAME,
    database_of,
    parse_pairs,
    read_duration,
    who,
)

EXIT_INTERRUPTED = 130

_COMMON_OPTIONS = (
    click.option("--all", "everything", is_flag=True, help="Every row, without a condition."),
    click.option("--dry-run", is_flag=True, help="Only print how many rows would change."),
    click.option("--yes", is_flag=True, help="Do not ask."),
    json_option,
)
_REASON_FOR_ROW = click.option("--reason", required=True, help="Why. The row keeps it.")
_REASON_FOR_AUDIT = click.option("--reason", required=True, help="Why. The table audit keeps it.")
_STAY_ON_HOLD = (
    "more rows stay on hold: an address holds control characters, they can only be deleted"
)


RELEASE_AFTER = click.option(
    "--release-after", metavar="DURATION", help="Release each held row this time after its hold."
)
"""How long a hold lasts."""


def _command(
    name: str, *own: Callable[..., Any], filters: Callable[..., Any] = queue_options
) -> Callable[..., click.Command]:
    def decorate(function: Callable[..., Any]) -> click.Command:
        wrapped: Callable[..., Any] = reporting(function)
        for option in reversed((*own, config_option(CONFIG_NAME), filters, *_COMMON_OPTIONS)):
            wrapped = option(wrapped)
        return click.command(name)(wrapped)

    return decorate


@_command("hold", _REASON_FOR_ROW, RELEASE_AFTER,
          click.option("--quarantine", metavar="ID",
                       help="Hold them in this quarantine, held rows too: metadata._quarantineid."),
          )  # fmt: skip
async def hold(
    reason: str, release_after: str | None, quarantine: str | None, **options: Any
) -> None:
    """Put rows on hold. An attempt in flight ends and is recorded."""
    length = seconds(release_after)
    action = Action.HOLD if quarantine is None else Action.QUARANTINE
    await _run(action, options, quarantine=quarantine, reason=reason, release_after=length)


@_command("release")
async def release(**options: Any) -> None:
    """Give held rows back to the queue, due now, or at the time of scheduled mail.

    The standing rule that held a row does not hold it again. The command names other rules that do.
    """
    await _run(Action.RELEASE, options)


@_command("retry")
async def retry(**options: Any) -> None:
    """Make waiting rows due now. Held rows stay held, and scheduled mail keeps its time."""
    await _run(Action.RETRY, options)


@_command("bounce", click.option("--reason", required=True, help="Why. The DSN says it."))
async def bounce(reason: str, **options: Any) -> None:
    """Give rows up: queued sends each sender a DSN. An attempt in flight ends first."""
    await _run(Action.BOUNCE, options, reason=reason)


@_command("delete", _REASON_FOR_AUDIT)
async def delete(reason: str, **options: Any) -> None:
    """Ask queued to delete rows. The attempts log keeps an entry for each."""
    await _run(Action.DELETE, options, reason=reason)


@_command("set",
          click.option("--priority", type=click.IntRange(0, 9), help="New priority, 0 is first."),
          click.option("--set", "pairs", multiple=True, metavar="K=V", help="Metadata to set."),
          click.option("--unset", multiple=True, metavar="K",
                       help="Metadata to remove."),
          filters=partial(queue_options, priority=False))  # fmt: skip
async def set_values(priority: int | None, pairs: tuple[str, ...], unset: tuple[str, ...],
               **options: Any) -> None:  # fmt: skip
    """Set priority or metadata of rows. A changed _partid moves rows to another worker."""
    values = parse_pairs(pairs, "--set")
    if priority is None and not values and not unset:
        raise ConfigError(["nothing to set: give --priority, --set or --unset"])
    await _run(Action.SET, options, priority=priority, metadata=values, unset=list(unset))


def seconds(text: str | None, flag: str = "--release-after") -> float | None:
    """Return the seconds of a duration that was given to a flag. Raises ConfigError."""
    return None if text is None else read_duration(text, flag) or 1.0


async def _run(action: Action, options: dict[str, Any], **values: Any) -> None:
    config: Path = options.pop("config")
    everything, dry_run, yes, as_json = (
        options.pop(name) for name in ("everything", "dry_run", "yes", "as_json")
    )
    uri = database_of(config)
    chosen = await condition(uri, options)
    if chosen is None and not everything:
        raise ConfigError([f"{action} needs a condition, or --all for every row"])
    change = RowChange(action, chosen or "true", who(), **values)
    total, stay = await _count(uri, change)
    release = action is Action.RELEASE
    again = await held_again(uri, change.where) if total and release else {}
    done, stopped = 0, False
    if total and not dry_run:
        if not yes:
            _ask(action, total)
        done, stopped = await apply_change(uri, change, total)
    if as_json:
        print_json({"action": action, "matched": total + stay, "changed": done, "stay": stay,
                    "dry_run": dry_run, "stopped": stopped,
                    **({"held_again": again} if release else {})})  # fmt: skip
    else:
        _report(action, total, done, stay, dry_run=dry_run, stopped=stopped)
    if stopped:
        sys.exit(EXIT_INTERRUPTED)


async def _count(uri: str, change: RowChange) -> tuple[int, int]:
    """Return how many rows the change would change, and how many a release leaves on hold."""
    # The part that can't fail comes first, because guards evaluate the parts in their order.
    where = f"{change.rows.takes} AND {change.where}"
    async with connected(uri) as db:
        listing = Listing(db)
        total = await listing.matching(where, failing=change.rows.standing)
        for fault in listing.faults:
            then = "these are held as well" if change.rows.standing else "these are left"
            print_line(f"warning: {fault}; {then}", err=True)
        stay = 0
        if total and change.action in (Action.RELEASE, Action.BOUNCE):
            stay = await listing.matching(f"{IS_MALFORMED} AND {where}")
    return total - stay, stay


async def held_again(uri: str, where: str) -> dict[str, int | None]:
    """Warn of the standing rules that hold rows again after a release, and return them.

    The value is the number of rows, or None if a condition fails on one of them.
    """
    held = ROW_ACTIONS[Action.RELEASE].takes
    async with connected(uri) as db:
        overview = Overview(db)
        again = await overview.holding(f"{held} AND NOT {IS_MALFORMED} AND (\n{where}\n)")
    for name, rows in again.items():
        some = "some" if rows is None else rows
        print_line(
            f"warning: rule {name} holds {some} of these rows again: `queuectl rule remove {name}`,"
            " or release them once more when it has held them",
            err=True,
        )
    return again


def _ask(action: str, total: int) -> None:
    if not sys.stdin.isatty():
        print_line(f"error: {action} would change {total} rows; say --yes", err=True)
        sys.exit(EXIT_USAGE)
    click.confirm(f"{action} {total} rows?", abort=True, err=True)


async def apply_change(
    uri: str, change: RowChange, total: int, size: int = DEFAULT_BATCH_ROWS
) -> tuple[int, bool]:
    """Run the change and show its progress; return rows done and whether Ctrl-C ended it.

    Ctrl-C lets the batch that runs commit, and no other batch begins.
    """
    done, stop = 0, False

    def interrupt(*_: Any) -> None:
        nonlocal stop
        stop = True

    async def work(advance: Callable[[int], None]) -> None:
        nonlocal done
        changes = OperatorChanges(uri)
        try:
            async for rows in changes.batches(change, size, total):
                done += rows
                advance(rows)
                if stop:
                    return
        finally:
            await changes.close()

    before = signal.signal(signal.SIGINT, interrupt)
    try:
        with progress(change.action, total) as advance:
            await work(advance)
    finally:
        signal.signal(signal.SIGINT, before)
    return done, stop


def _report(action: str, total: int, done: int, stay: int, *, dry_run: bool, stopped: bool) -> None:
    if dry_run:
        print_line(f"{action}: would change {total} rows")
    elif stopped:
        print_line(f"{action}: stopped after {done} of {total} rows; the rest is as it was")
    else:
        print_line(f"{action}: {done} rows")
    if stay:
        print_line(f"{action}: {stay} {_STAY_ON_HOLD}", err=True)


COMMANDS = (hold, release, retry, bounce, delete, set_values)
"""The commands of this module, for the group `queuectl`."""

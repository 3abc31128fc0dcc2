"""Commands that change many rows: hold, release, quarantine, retry, delete, set."""

from __future__ import annotations

import getpass
import signal
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from pgmta.command import (
    EXIT_USAGE,
    config_option,
    json_option,
    print_json,
    print_line,
    progress,
    reporting,
)
from pgmta.config.types import parse_duration
from pgmta.errors import ConfigError
from pgmta.store.bulk import BATCH, Bulk, Change
from pgmta.store.filters import MALFORMED
from queued.cli.filters import condition, filter_options
from queued.cli.target import database_of

EXIT_INTERRUPTED = 130

_COMMON = (
    config_option("etc/queued.yaml"),
    filter_options,
    click.option("--all", "everything", is_flag=True, help="Without any condition: every row."),
    click.option("--dry-run", is_flag=True, help="Only say how many rows it would be."),
    click.option("--yes", is_flag=True, help="Do not ask."),
    json_option,
)
_REASON = click.option("--reason", required=True, help="Why; stays with the row.")
_EXPIRE = click.option("--expire", metavar="DURATION", help="Release after this time.")
_WHY = click.option("--reason", required=True, help="Why; the table audit keeps it.")
_STAY = "more rows stay on hold: an address holds control characters, they can only be deleted"


def _command(name: str, *own: Callable[..., Any]) -> Callable[..., click.Command]:
    def decorate(function: Callable[..., Any]) -> click.Command:
        wrapped: Callable[..., Any] = reporting(function)
        for option in reversed((*own, *_COMMON)):
            wrapped = option(wrapped)
        return click.command(name)(wrapped)

    return decorate


def who() -> str:
    """The operator, as the audit table and held rows name him."""
    return f"{getpass.getuser()}@{socket.gethostname()}"


@_command("hold", _REASON, _EXPIRE)
def hold(reason: str, expire: str | None, **options: Any) -> None:
    """Put rows on hold; an attempt that is under way ends by itself."""
    _run("hold", "status <> 'HOLD'", options, reason=reason, hold=seconds(expire))


@_command("quarantine", click.option("--quarantine", required=True, help="Id of the quarantine."),
          _REASON, _EXPIRE)  # fmt: skip
def quarantine(quarantine: str, reason: str, expire: str | None, **options: Any) -> None:
    """Put rows on hold in a quarantine (metadata._quarantineid)."""
    _run("quarantine", None, options,
         quarantine=quarantine, reason=reason, hold=seconds(expire))  # fmt: skip


@_command("release")
def release(**options: Any) -> None:
    """Give held rows back to the queue; they are tried at once."""
    _run("release", "status = 'HOLD'", options)


@_command("retry")
def retry(**options: Any) -> None:
    """Try waiting rows at once; held ones stay held."""
    _run("retry", "status IN ('QUEUED', 'DEFERRED')", options)


@_command("delete", _WHY)
def delete(reason: str, **options: Any) -> None:
    """Ask queued to delete rows; the attempts log keeps that they were."""
    _run("delete", "status <> 'DELETE'", options, reason=reason)


@_command("set",
          click.option("--priority", type=click.IntRange(0, 9), help="New priority, 0 is first."),
          click.option("--set", "pairs", multiple=True, metavar="K=V", help="Metadata to set."),
          click.option("--unset", multiple=True, metavar="K", help="Drop metadata."))  # fmt: skip
def set_values(priority: int | None, pairs: tuple[str, ...], unset: tuple[str, ...],
               **options: Any) -> None:  # fmt: skip
    """Set priority or metadata of rows; a changed _partid moves them to another worker."""
    values = {}
    for pair in pairs:
        key, sign, value = pair.partition("=")
        if not sign or not key:
            raise ConfigError([f"--set {pair!r}: expected key=value"])
        values[key] = value
    if priority is None and not values and not unset:
        raise ConfigError(["nothing to set: give --priority, --set or --unset"])
    _run("set", None, options, priority=priority, metadata=values, unset=list(unset))


def seconds(text: str | None, flag: str = "--expire") -> float | None:
    """A duration as it was given to a flag. Raises ConfigError."""
    if text is None:
        return None
    try:
        return parse_duration(text) or 1.0
    except ValueError as error:
        raise ConfigError([f"{flag}: {error}"]) from None


def _run(action: str, eligible: str | None, options: dict[str, Any], **change: Any) -> None:
    config: Path = options.pop("config")
    everything, dry_run, yes, as_json = (
        options.pop(name) for name in ("everything", "dry_run", "yes", "as_json")
    )
    uri = database_of(config)
    chosen = condition(uri, options)
    if chosen is None and not everything:
        raise ConfigError([f"{action} needs a condition, or --all for every row"])
    # what can't fail first: the parts of a condition are evaluated in their order
    where = " AND ".join(part for part in (eligible, chosen) if part) or "true"
    wanted = Change(action, where, who(), **change)
    bulk = Bulk(uri)
    try:
        total = bulk.count(where, wanted.failing)
        for fault in bulk.faults:
            what = "these are held as well" if wanted.failing else "these are left"
            print_line(f"warning: {fault}; {what}", err=True)
        stay = bulk.count(f"{MALFORMED} AND {where}") if total and action == "release" else 0
        total -= stay
        done, stopped = 0, False
        if total and not dry_run:
            if not yes:
                _ask(action, total)
            done, stopped = apply_change(bulk, wanted, total)
    finally:
        bulk.close()
    _report(action, total, done, stay, dry_run=dry_run, as_json=as_json, stopped=stopped)
    if stopped:
        sys.exit(EXIT_INTERRUPTED)


def _ask(action: str, total: int) -> None:
    if not sys.stdin.isatty():
        print_line(f"error: {action} would change {total} rows; say --yes", err=True)
        sys.exit(EXIT_USAGE)
    click.confirm(f"{action} {total} rows?", abort=True, err=True)


def apply_change(bulk: Bulk, change: Change, total: int, batch: int = BATCH) -> tuple[int, bool]:
    """Run the change and show its progress; return rows done and whether Ctrl-C ended it.

    Ctrl-C lets the batch under way commit and begins no other.
    """
    done, stop = 0, False

    def interrupt(*_: Any) -> None:
        nonlocal stop
        stop = True

    before = signal.signal(signal.SIGINT, interrupt)
    try:
        with progress(change.action, total) as advance:

            def tell(rows: int) -> bool:
                nonlocal done
                done += rows
                advance(rows)
                return not stop

            bulk.apply(change, tell, batch, total)
    finally:
        signal.signal(signal.SIGINT, before)
    return done, stop


def _report(action: str, total: int, done: int, stay: int, *, dry_run: bool, as_json: bool,
            stopped: bool) -> None:  # fmt: skip
    if as_json:
        print_json({"action": action, "matched": total + stay, "changed": done, "stay": stay,
                    "dry_run": dry_run, "stopped": stopped})  # fmt: skip
        return
    if dry_run:
        print_line(f"{action}: would change {total} rows")
    elif stopped:
        print_line(f"{action}: stopped after {done} of {total} rows; the rest is as it was")
    else:
        print_line(f"{action}: {done} rows")
    if stay:
        print_line(f"{action}: {stay} {_STAY}", err=True)


COMMANDS = (hold, quarantine, release, retry, delete, set_values)

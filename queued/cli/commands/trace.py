"""`queuectl trace`: keep and follow the transcripts of all attempts that match."""

from __future__ import annotations

import asyncio
import sys
import time
from datetime import datetime
from pathlib import Path
from typing import Any

import click

from pgmta.command import age, print_json, print_line, print_text
from pgmta.errors import ConfigError, PgmtaError
from pgmta.postgres.operator import connected
from pgmta.selection import domain_as_stored
from pgmta.store.records.traces import FIELDS, Trace, TraceOrders
from queued.cli.options.filter_options import mail_options
from queued.cli.options.queue_command import (
    Column,
    Cut,
    Form,
    age_of,
    command,
    database_of,
    print_rows,
    read_duration,
    time_to,
    who,
)

_LOOK_INTERVAL_S = 1.0  # for new transcripts
_AWARE_S = 15.0  # by then a heartbeat, one every 10 s, has told every worker of a new trace
_MAX_TRACE_S = 86400.0
_LATE_OUTCOMES_S = 2.0  # so long after its end outcomes of a trace may still come


@command(rows=True)
@mail_options
@click.option(
    "--for", "length", default="10m", show_default=True, help="End after this time, at most 1d."
)
@click.option("--background", is_flag=True, help="Begin the trace, and do not follow it.")
@click.option("--list", "listed", is_flag=True, help="List the traces of the last day.")
@click.option("--stop", type=int, metavar="ID", help="End the trace ID.")
async def trace(
    config: Path,
    length: str,
    background: bool,
    listed: bool,
    stop: int | None,
    form: Form,
    **patterns: tuple[str, ...],
) -> None:
    """Keep the transcript of every attempt that matches, and print it as it comes.

    Values of one option are alternatives; different options must all match. Interrupt the command
    to end the trace. `queuectl show ID --transcript` shows a transcript later.
    """
    wanted = {name: list(patterns[name]) for name in FIELDS if patterns[name]}
    if (listed + (stop is not None) + bool(wanted)) != 1:
        options = ", ".join(f"--{name}" for name in FIELDS)
        raise ConfigError([f"trace needs one of: --list, --stop, or {options}"])
    if "domain" in wanted:
        wanted["domain"] = [domain_as_stored(text) for text in wanted["domain"]]
    seconds = read_duration(length, "--for")
    try:
        Trace.of(0, wanted)
    except ValueError as error:
        raise ConfigError([str(error)]) from None
    if not 0 < seconds <= _MAX_TRACE_S:
        raise ConfigError([f"--for {length}: at most 1d"])
    if form == Form.CSV and not listed:
        raise ConfigError(["--csv is for --list"])
    async with connected(database_of(config)) as db:
        orders = TraceOrders(db)
        if listed:
            await _list(orders, form)
        elif stop is not None:
            await _stop(orders, stop)
        else:
            await _start(orders, wanted, seconds, background, form == Form.JSON)


async def _start(
    orders: TraceOrders,
    wanted: dict[str, list[str]],
    seconds: float,
    background: bool,
    as_json: bool,
) -> None:
    row = await orders.start(wanted, seconds, who())
    number, began = row["id"], row["created_at"]
    print_line(f"trace {number} lasts {age(seconds)}; `queuectl trace --stop {number}` ends it",
               err=True)  # fmt: skip
    try:
        await _wait_for_workers(orders, began)
        if not background:
            await _follow(orders, number, began, as_json)
    except (KeyboardInterrupt, asyncio.CancelledError):
        await orders.stop(number, who())
        print_line(f"trace {number} has ended", err=True)


async def _wait_for_workers(orders: TraceOrders, began: datetime) -> None:
    """Return when every worker knows the trace. Each reads the traces with its heartbeat."""
    until = time.monotonic() + _AWARE_S
    workers, unaware = await orders.unaware(began)
    while unaware and time.monotonic() < until:
        await asyncio.sleep(_LOOK_INTERVAL_S / 4)
        workers, unaware = await orders.unaware(began)
    if not workers:
        print_line("warning: no delivering worker runs", err=True)
    elif unaware:
        print_line(f"warning: {unaware} of {workers} workers do not know it yet", err=True)
    else:
        print_line(f"{workers} worker{'s know' if workers != 1 else ' knows'} it", err=True)


async def _follow(orders: TraceOrders, number: int, began: datetime, as_json: bool) -> None:
    """Print the transcripts of a trace until it ends."""
    over = 0.0
    while not over or time.monotonic() < over:
        if not over and not await orders.lasts(number):
            over = time.monotonic() + _LATE_OUTCOMES_S
        for row in await orders.fresh(number, began):
            print_json(row) if as_json else _print(row)
        sys.stdout.flush()
        await asyncio.sleep(_LOOK_INTERVAL_S)


def _print(row: dict[str, Any]) -> None:
    others = len(row["row_ids"]) - 1
    more = f" and {others} more" if others else ""
    reply = f"{row['code'] or ''} {row['reply'] or ''}".strip()
    print_line(
        f"== message {row['message_id']} <{row['sender']}> to {row['recipient']}{more}: "
        f"{row['event']}, {row['host'] or 'no host'} {row['address'] or ''}, {reply}"
    )
    print_text(row["dialogue"])


async def _stop(orders: TraceOrders, number: int) -> None:
    if not await orders.stop(number, who()):
        raise PgmtaError(f"no trace {number} lasts")
    print_line(f"trace {number} has ended; workers know it within 10 s")


async def _list(orders: TraceOrders, form: Form) -> None:
    columns: dict[str, Column] = {
        "TRACE": "id",
        "BY": "created_by",
        "AGE": lambda each: age_of(each["created_at"]),
        "ENDS IN": lambda each: time_to(each["expires_at"]) if each["active"] else "ended",
        "TRANSCRIPTS": "transcripts",
        "WANTED": Cut(lambda each: _words(each["wanted"])),
    }
    print_rows(await orders.last_day(), columns, form)


def _words(wanted: dict[str, Any]) -> str:
    return " ".join(
        f"{name}={','.join(map(str, values)) if isinstance(values, list) else values}"
        for name, values in wanted.items()
    )

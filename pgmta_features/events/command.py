"""`queuectl events`: what became of mail, in the order of the commits, and who subscribes."""

from __future__ import annotations

import asyncio
import sys
from contextlib import aclosing, suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import click
import psycopg

from pgmta.command import (
    config_option,
    json_option,
    print_json,
    print_line,
    reporting,
    shorten,
)
from pgmta.errors import ConfigError, PgmtaError, StoreUnavailable
from pgmta.postgres.operator import OperatorConnection, connected
from pgmta_features.events.application_commands import function, table
from pgmta_features.events.event_table import EventTable
from pgmta_features.events.kinds import KINDS, check_kinds
from pgmta_features.events.subscribing import repeat_subscribing
from queued.cli.options.queue_command import (
    CONFIG_NAME,
    Form,
    age_of,
    ago_of,
    command,
    database_of,
    print_rows,
    read_since,
    who,
)

_DEFAULT_SINCE = timedelta(hours=1)
_LOOK_INTERVAL_S = 1.0
_LISTEN = "LISTEN pgmta_events"
_LOST = "PG409"  # SQLSTATE of a cursor whose events are not there


@click.group(invoke_without_command=True)
@config_option(CONFIG_NAME)
@click.option("--after", metavar="CURSOR", help="Begin behind this cursor.")
@click.option(
    "--since", metavar="TIME", help="Begin then: '2026-12-24 18:00', or 3h ago.  [default: 1h]"
)
@click.option("--follow", is_flag=True, help="Go on with new events until Ctrl-C.")
@click.option("--kind", multiple=True, metavar="KIND", help=f"Only this: {', '.join(KINDS)}.")
@click.option("--message", metavar="ID", type=int, help="Only the events of this message.")
@json_option
@click.pass_context
@reporting
async def events(context: click.Context, /, **options: Any) -> None:
    """Show what became of mail, in the order in which it was committed.

    --json prints a line per event, with its cursor. With --follow alone it begins with what comes.
    Events are written while somebody subscribes: see `queuectl events subscribe`.
    """
    if context.invoked_subcommand is None:
        await _show(**options)


async def _show(
    config: Path,
    after: str | None,
    since: str | None,
    follow: bool,
    kind: tuple[str, ...],
    message: int | None,
    as_json: bool,
) -> None:
    if after and since:
        raise ConfigError(["--after and --since exclude each other"])
    if message is not None and (after or since or follow or kind):
        raise ConfigError(["--message stands alone"])
    try:
        check_kinds(kind)
    except ValueError as error:
        raise ConfigError([f"--kind {error}"]) from None
    begin = read_since(since)
    uri = database_of(config)
    async with connected(uri) as db:
        table = EventTable(db)
        if message is not None:
            _print(await table.of_message(message), as_json)
        else:
            if begin or not (after or follow):
                after = await table.since(begin or datetime.now(UTC) - _DEFAULT_SINCE)
            after = await _read(table, after or await table.end(), kind, as_json)
        await _hint(table)
    if follow and after:
        # by Ctrl-C the user ends the command
        with suppress(KeyboardInterrupt, asyncio.CancelledError):
            await _follow(uri, after, kind, as_json)


async def _hint(table: EventTable) -> None:
    if not await table.subscriptions():
        hint = "nobody subscribes, so no event is written: see `queuectl events subscribe`"
        print_line(hint, err=True)


async def _read(table: EventTable, after: str, kinds: tuple[str, ...], as_json: bool) -> str:
    """Print all events behind a cursor, and return the place that was reached."""
    try:
        while page := await table.page(after, kinds):
            _print(page, as_json)
            after = page[-1]["cursor"]
    except psycopg.Error as error:
        if error.sqlstate != _LOST:
            raise
        raise PgmtaError(f"{error.diag.message_primary}: --since reads by time") from None
    return after


async def _follow(uri: str, after: str, kinds: tuple[str, ...], as_json: bool) -> None:
    """Print new events until the reader of stdout has gone; a lost database is waited for."""
    away = False
    while True:
        try:
            async with connected(uri) as db:
                await db.execute(_LISTEN)
                if away:
                    print_line("the database is back", err=True)
                away = False
                while True:
                    after = await _read(EventTable(db), after, kinds, as_json)
                    await _news(db)
        except (StoreUnavailable, psycopg.OperationalError, psycopg.InterfaceError) as error:
            if not away:
                print_line(f"warning: the database is away: {error}", err=True)
            away = True
        await asyncio.sleep(_LOOK_INTERVAL_S)


async def _news(db: OperatorConnection) -> None:
    """Wait for a notification, which may be lost."""
    notes = db.notifies(timeout=_LOOK_INTERVAL_S, stop_after=1)
    async with aclosing(notes):
        async for _ in notes:
            pass


def _print(rows: list[dict[str, Any]], as_json: bool) -> None:
    for row in rows:
        if row["id"] is None:
            continue
        if as_json:
            print_json({**row["document"], "cursor": row["cursor"]}, line=True)
        else:
            print_line(_line(row))
    sys.stdout.flush()


def _line(row: dict[str, Any]) -> str:
    """Return an event for people: time, kind, message, addresses, why."""
    found = row["document"]
    to = found.get("recipient") or ", ".join(found.get("recipients", ())) or "-"
    sender = f"<{found['sender']}>" if "sender" in found else "-"
    why = f"{found.get('code', '')} {found.get('reply', found.get('reason', ''))}"
    return (
        f"{row['at']:%Y-%m-%d %H:%M:%S%z} {row['kind']:<12} {row['message_id'] or '-'} "
        f"{sender} {shorten(to)} {shorten(why.strip())}".rstrip()
    )


@command(events, json=True)
@click.argument("name")
async def subscribe(config: Path, name: str, as_json: bool) -> None:
    """Have events written for a reader: `queuectl events`, or a program by SQL.

    Webhooks, tables, functions and keys of the HTTP API subscribe themselves. Any mail that is
    committed after this command has its events.
    """
    async with connected(database_of(config)) as db:
        new = await repeat_subscribing(db, partial(EventTable(db, who()).subscribe, name, "reader"))
    if as_json:
        print_json({"name": name, "new": new})
    else:
        print_line(f"{name} {'subscribes' if new else 'subscribes already'}")


@command(events, json=True)
@click.argument("name")
async def unsubscribe(config: Path, name: str, as_json: bool) -> None:
    """End a subscription. Exit 1 if there is none of this name.

    After the last one no events are written. Those that were written stay for their time.
    """
    async with connected(database_of(config)) as db:
        ended = await repeat_subscribing(db, partial(EventTable(db).unsubscribe, name))
    if not ended:
        raise PgmtaError(f"there is no subscription {name}: see `queuectl events list`")
    if as_json:
        print_json({"name": name, "ended": True})
    else:
        print_line(f"{name} subscribes no more")


@command(events, name="list", rows=True)
async def list_subscriptions(config: Path, form: Form) -> None:
    """List who subscribes to events."""
    async with connected(database_of(config)) as db:
        rows = await EventTable(db).subscriptions()
    print_rows(
        rows,
        {
            "NAME": "name",
            "KIND": "kind",
            "SINCE": lambda row: age_of(row["created_at"]),
            "BY": "created_by",
            "READ": lambda row: age_of(row["read_at"]) if row["read_at"] else "",
            "STATE": _state,
        },
        form,
    )


def _state(row: dict[str, Any]) -> str:
    """Return what a table or a function of an application failed with."""
    numbers = (
        (row["waiting"], "wait"), (row["later"], "inserted later"), (row["failures"], "failures"),
    )  # fmt: skip
    found = [f"{number:,} {word}" for number, word in numbers if number]
    if row["first"]:
        found.append(f"the first is {row['first']}")
    if row["error"]:
        at = row["failed_at"]
        found.append(f"{f'for {age_of(at)}' if row['failures'] else ago_of(at)}: {row['error']}")
    return "; ".join(found)


for _each in (table, function):
    events.add_command(_each)

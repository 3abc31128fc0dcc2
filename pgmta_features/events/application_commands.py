"""`queuectl events table` and `function`: events for applications."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

import click
import psycopg

from pgmta.command import EXIT_FAILURE, print_json, print_line, print_text
from pgmta.postgres.operator import connected
from pgmta_features.events.event_table import EventTable
from pgmta_features.events.subscribing import repeat_subscribing
from queued.cli.options.queue_command import command, database_of, who

_sent_by = click.option(
    "--sent-by", metavar="LOGIN", help="Only events of mail that this login submitted."
)
_tenant = click.option("--tenant", metavar="NAME", help="Only events of mail of this tenant.")


@command(None, "table", json=True)
@click.argument("name", metavar="SCHEMA.TABLE")
@click.option("--create", is_flag=True, help="Make it before, as the owner of its schema.")
@_sent_by
@_tenant
async def table(
    name: str, create: bool, sent_by: str | None, tenant: str | None, config: Path, as_json: bool
) -> None:
    """Insert events into a table of an application, in the transaction of their outcome.

    If that fails, because the table is locked or was changed, queued inserts them later, or at once
    if you repeat the command. The table may have further columns and indexes, but nothing that runs
    code: docs/programs/events.md.
    """
    async with connected(database_of(config)) as db:
        events = EventTable(db, who())
        if create:
            role, statements = await events.table_statements(name)
            try:
                await events.make_table(role, statements)
            except psycopg.errors.InsufficientPrivilege as error:
                print_line(f"{error}; {role} runs:", err=True)
                print_text(statements)
                sys.exit(EXIT_FAILURE)
        subscription = await repeat_subscribing(db, partial(events.into, name, sent_by, tenant))
    _print(subscription, f"events go into {subscription}", as_json)


@command(None, "function", json=True)
@click.argument("name", metavar="SCHEMA.FUNCTION")
@click.option("--login", metavar="ROLE", help="Who calls it.  [default: its owner]")
@_sent_by
@_tenant
async def function(
    name: str, login: str | None, sent_by: str | None, tenant: str | None, config: Path,
    as_json: bool,
) -> None:  # fmt: skip
    """Call a function of an application with events, each exactly once.

    SCHEMA.FUNCTION(jsonb) gets an array of events. queued calls it in a session of that login, and
    notes in the same transaction which events it had. If it fails, it gets them again. Repeat the
    command after you mended the function: it is tried at once.
    """
    name = name.removesuffix("(jsonb)")
    async with connected(database_of(config)) as db:
        call = partial(EventTable(db, who()).call, name, login, sent_by, tenant)
        subscription = await repeat_subscribing(db, call)
    _print(subscription, f"{subscription} is called with events", as_json)


def _print(subscription: str, said: str, as_json: bool) -> None:
    if as_json:
        print_json({"name": subscription})
    else:
        print_line(f"{said}; `queuectl events list` shows it")

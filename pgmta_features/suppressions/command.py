"""`queuectl suppression`: addresses that get no mail."""

from __future__ import annotations

import csv
import io
import os
import stat
import sys
from collections import Counter
from collections.abc import AsyncIterable, AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from pgmta.command import EXIT_FAILURE, instant, print_json, print_line
from pgmta.errors import ConfigError, PgmtaError, SubmissionError
from pgmta.mail.names import check_tenant
from pgmta.mail.text import printable
from pgmta.postgres.operator import connected
from queued.cli.options.progress_bar import progress_bar
from queued.cli.options.queue_command import (
    Column,
    Form,
    command,
    database_of,
    print_rows,
    read_address,
    read_time,
    who,
)

from .suppression_file import BadLine, read_suppressions, source_of
from .suppression_table import (
    ALL_TENANTS,
    REASONS,
    TRANSACTIONAL,
    Scopes,
    Suppression,
    SuppressionTable,
    WantedSuppressions,
)

_ADDRESSES_PER_COMMIT = 2000
_MAX_SHOWN_LINES = 20  # of bad lines

_TENANT_OPTION = click.option(
    "--tenant", default="", help="Tenant of the mail; default: mail of none."
)
_ALL_TENANTS_OPTION = click.option(
    "--all-tenants", is_flag=True, help="For the mail of all tenants."
)
_SCOPE_OPTION = click.option("--scope", default="", help="Kind of mail; default: all kinds.")


@click.group()
def suppression() -> None:
    """Add, release and list addresses that get no mail.

    All mail is looked up when it is submitted and before each attempt.
    """


@suppression.group()
def scope() -> None:
    """Declare and list scopes: the kinds of mail that recipients unsubscribe from."""


@asynccontextmanager
async def _table(config: Path) -> AsyncIterator[SuppressionTable]:
    async with connected(database_of(config)) as db:
        yield SuppressionTable(db, who())


def _tenant(tenant: str, all_tenants: bool) -> str:
    if all_tenants and tenant:
        raise ConfigError(["--tenant and --all-tenants exclude each other"])
    try:
        return ALL_TENANTS if all_tenants else check_tenant(tenant)
    except ValueError as error:
        raise ConfigError([f"--tenant: {error}"]) from None


def _check(scopes: Scopes, tenant: str, name: str) -> None:
    """Raise ConfigError if there is no such scope."""
    try:
        scopes.check(tenant, name)
    except ValueError as error:
        raise ConfigError([f"--scope: {error}"]) from None


@command(suppression)
@click.argument("address")
@_TENANT_OPTION
@_ALL_TENANTS_OPTION
@_SCOPE_OPTION
@click.option("--reason", type=click.Choice(REASONS), default="operator", show_default=True,
              help="Why.")  # fmt: skip
@click.option("--source", default="", help="Where you know it from; default: your name.")
@click.option("--until", metavar="TIME", help="When it ends by itself; default: never.")
async def add(
    config: Path,
    address: str,
    tenant: str,
    all_tenants: bool,
    scope: str,
    reason: str,
    source: str,
    until: str | None,
) -> None:
    """Suppress ADDRESS. Mail that waits for it ends with its next attempt, of campaigns at once."""
    end = read_time(until, "--until", whole_days=True)
    if end and end <= datetime.now(UTC):
        raise ConfigError([f"--until: {until} is over; `suppression remove` ends a suppression"])
    given = Suppression(
        address=read_address(address), tenant=_tenant(tenant, all_tenants), scope=scope,
        reason=reason, source=source_of(source), until=end,
    )  # fmt: skip
    async with _table(config) as table:
        _check(await table.scopes(), given.tenant, given.scope)
        outcome = await table.add(given)
    said = {"new": "suppressed", "newer": "suppressed", "older": "suppressed already, for as long"}
    print_line(f"{address} is {said.get(outcome, 'suppressed already, and was forgotten')}")


@command(suppression)
@click.argument("address")
@_TENANT_OPTION
@_ALL_TENANTS_OPTION
@click.option("--scope", help="Kind of mail; default: all suppressions of ADDRESS end.")
async def remove(
    config: Path, address: str, tenant: str, all_tenants: bool, scope: str | None
) -> None:
    """Release ADDRESS, because its owner wants mail again. Exit 1 if it was not suppressed."""
    mailbox, of_tenant = read_address(address), _tenant(tenant, all_tenants)
    async with _table(config) as table:
        released = await table.release(mailbox, of_tenant, scope)
        places = await table.places(mailbox)
    if not released:
        raise PgmtaError(
            f"{address} is not suppressed there" + (f", but: {places}" if places else "")
        )
    if places:
        print_line(f"{address}: {released} released; suppressed as before: {places}")
    else:
        print_line(f"{address} gets mail again: {released} released")


@command(suppression, "list", rows=True)
@click.argument("address", required=False)
@click.option("--tenant", help="Of this tenant; '' for mail of none, * for those of all tenants.")
@click.option("--scope", help="Of this kind of mail; '' for those of all kinds.")
@click.option("--reason", type=click.Choice(REASONS), help="With this reason.")
@click.option("--limit", type=click.IntRange(1), default=100, show_default=True,
              help="Lines at most.")  # fmt: skip
async def list_suppressions(
    config: Path,
    address: str | None,
    tenant: str | None,
    scope: str | None,
    reason: str | None,
    limit: int,
    form: Form,
) -> None:
    """List suppressions, the latest first, or those of ADDRESS; exit 1 if there are none.

    A person who was forgotten is found by ADDRESS alone: the list shows a keyed hash.
    """
    wanted = WantedSuppressions(read_address(address) if address else None, tenant, scope, reason)
    async with _table(config) as table:
        rows = await table.rows(wanted, limit)
        if not rows and scope:
            _check(await table.scopes(), ALL_TENANTS if tenant is None else tenant, scope)
    columns: dict[str, Column] = {
        "ADDRESS": "address",
        "TENANT": lambda row: row["tenant"] or "-",
        "SCOPE": lambda row: row["scope"] or "-",
        "REASON": "reason",
        "SOURCE": lambda row: row["source"] or "-",
        "SINCE": lambda row: instant(row["at"]),
        "UNTIL": lambda row: instant(row["until"]) if row["until"] else "-",
    }
    print_rows(rows, columns, form)
    if not rows:
        sys.exit(EXIT_FAILURE)


@command(suppression, "import", json=True)
@click.argument("file", type=click.File("r", encoding="utf-8-sig", errors="surrogateescape"))
@_TENANT_OPTION
@_ALL_TENANTS_OPTION
@_SCOPE_OPTION
@click.option("--reason", type=click.Choice(REASONS), default="operator", show_default=True,
              help="Reason of lines that have none.")  # fmt: skip
async def import_suppressions(
    config: Path,
    file: Any,
    tenant: str,
    all_tenants: bool,
    scope: str,
    reason: str,
    as_json: bool,
) -> None:
    """Suppress the addresses in FILE; - is standard input. Exit 1 if a line is bad.

    FILE has an address a line. Or it is CSV, whose first line names the columns: address, and of
    tenant, scope, reason, source, at, until what it likes. Of two facts the newer one wins.
    """
    name = printable(Path(getattr(file, "name", "-")).name)
    default = Suppression(
        address="", tenant=_tenant(tenant, all_tenants), scope=scope, reason=reason,
        source=source_of(f"import {name}"),
    )  # fmt: skip
    outcomes: Counter[str] = Counter(new=0, newer=0, older=0, forgotten=0, bad=0)
    size = _size(file)
    async with _table(config) as table:
        batch: list[Suppression] = []
        scopes = await table.scopes()
        _check(scopes, default.tenant, default.scope)
        with progress_bar("importing", size, "addresses") as bar:
            for each in read_suppressions(name, file, default, scopes.check):
                if isinstance(each, BadLine):
                    outcomes["bad"] += 1
                    if outcomes["bad"] <= _MAX_SHOWN_LINES:
                        print_line(f"{name}:{each.line}: {each.reason}", err=True)
                    continue
                batch.append(each)
                if len(batch) == _ADDRESSES_PER_COMMIT:
                    outcomes.update(await table.put(batch))
                    batch.clear()
                    bar.show(file.buffer.tell() if size else 0, outcomes.total())
            if batch:
                outcomes.update(await table.put(batch))
        await table.note_import(name, outcomes)
    if outcomes["bad"] > _MAX_SHOWN_LINES:
        print_line(f"{name}: {outcomes['bad'] - _MAX_SHOWN_LINES} more bad lines", err=True)
    if as_json:
        print_json(dict(outcomes))
    else:
        print_line(", ".join(f"{number} {name}" for name, number in outcomes.items()))
    if outcomes["bad"]:
        sys.exit(EXIT_FAILURE)


def _size(file: Any) -> int | None:
    """Return the octets of a file; None for a pipe."""
    try:
        found = os.fstat(file.fileno())
    except (OSError, io.UnsupportedOperation):
        return None
    return found.st_size if stat.S_ISREG(found.st_mode) else None


@command(suppression)
@click.option("--tenant", help="Of this tenant; '' for mail of none, * for those of all tenants.")
@click.option("--scope", help="Of this kind of mail; '' for those of all kinds.")
@click.option("--reason", type=click.Choice(REASONS), help="With this reason.")
async def export(config: Path, tenant: str | None, scope: str | None, reason: str | None) -> None:
    """Print all suppressions as CSV, which `import` reads. Those of forgotten persons stay here."""
    async with _table(config) as table:
        await _write(table.every_row(WantedSuppressions(None, tenant, scope, reason)))


async def _write(rows: AsyncIterable[dict[str, Any]]) -> None:
    names = ("address", "tenant", "scope", "reason", "source", "at", "until")
    line = io.StringIO()
    writer = csv.writer(line, lineterminator="")
    writer.writerow(names)
    print_line(line.getvalue())
    async for row in rows:
        times = {name: row[name].isoformat() if row[name] else "" for name in ("at", "until")}
        line.seek(0)
        line.truncate()
        writer.writerow([{**row, **times}[name] for name in names])
        print_line(line.getvalue())


@command(scope, "add")
@click.argument("name")
@_TENANT_OPTION
@_ALL_TENANTS_OPTION
async def add_scope(config: Path, name: str, tenant: str, all_tenants: bool) -> None:
    """Declare scope NAME, such as news. A campaign declares its own."""
    async with _table(config) as table:
        try:
            is_new = await table.declare(name, _tenant(tenant, all_tenants))
        except SubmissionError as error:
            raise ConfigError([str(error)]) from None
    print_line(f"{name} is declared" if is_new else f"{name} was declared already")


@command(scope, "list", rows=True)
@click.option("--tenant", help="Of this tenant and of all tenants; '' for mail of none.")
async def list_scopes(config: Path, tenant: str | None, form: Form) -> None:
    """List scopes. All tenants have transactional, the scope of mail without another."""
    async with _table(config) as table:
        rows = await table.scope_rows(tenant)
    rows = [{"tenant": ALL_TENANTS, "name": TRANSACTIONAL}, *rows]
    print_rows(rows, {"TENANT": lambda row: row["tenant"] or "-", "SCOPE": "name"}, form)

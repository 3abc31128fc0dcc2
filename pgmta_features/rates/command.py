"""`queuectl budget`: what may be sent per second and month."""

from __future__ import annotations

import re
from difflib import get_close_matches
from pathlib import Path

import click

from pgmta.command import instant, print_line
from pgmta.errors import ConfigError, PgmtaError
from pgmta.postgres.operator import connected
from queued.cli.options.queue_command import (
    Column,
    Form,
    command,
    database_of,
    print_rows,
    who,
)

from .budget_table import BudgetTable
from .rate import rate_text, read_rate

_KEY = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:@-]{0,99}")
_COLUMNS: dict[str, Column] = {
    "BUDGET": "key",
    "RATE": lambda row: rate_text(row["rate"]),
    "BURST": lambda row: f"{row['burst']:g}",
    "NEXT": lambda row: "now" if row["free"] else instant(row["next_at"]),
    "MONTH": lambda row: row["month_used"],
    "AT MOST": lambda row: "-" if row["month_most"] is None else row["month_most"],
    "LOST": lambda row: f"{row['lost_share']:.0%}, {row['lost_why']}" if row["lost_share"] else "-",
    "NOTE": lambda row: row["note"] or "",
}


@click.group()
def budget() -> None:
    """List and set budgets: what may be sent per second and month, over all processes.

    Keys are credential:NAME of campaigns, collector:NAME, and route:NAME:VALUE of shaping.yaml.
    """


@command(budget, "list", rows=True)
@click.argument("keys", nargs=-1, metavar="[KEY]...")
async def list_budgets(config: Path, keys: tuple[str, ...], form: Form) -> None:
    """List budgets: all, or those whose keys begin with KEY; exit 1 if there is none.

    NEXT is the first time that is free. LOST is the share of the last times that no mail could use,
    and what was late: the database, the host of a worker, or the next hop.
    """
    async with connected(database_of(config)) as db:
        table = BudgetTable(db)
        rows = await table.rows(keys)
    if keys and not rows:
        raise PgmtaError(f"no budget begins with {' or '.join(keys)}")
    print_rows(rows, _COLUMNS, form)


@command(budget, "set")
@click.argument("key")
@click.argument("rate")
@click.option("--month-most", metavar="NUMBER", help="Sum of a calendar month in UTC, at most; "
              "none: any number; default: as before.")  # fmt: skip
@click.option("--note", help="Words for operators; default: as before.")
async def set_budget(
    config: Path, key: str, rate: str, month_most: str | None, note: str | None
) -> None:
    """Set the RATE of budget KEY, as 50/s or 600/min; it counts at once, everywhere."""
    speed = read_rate(rate, "RATE")
    if not _KEY.fullmatch(key):
        raise ConfigError([f"KEY {key!r}: expected 1 to 100 letters, digits and . _ : @ -"])
    if key.startswith("route:"):
        raise ConfigError([f"{key} is of a route: set its rate in shaping.yaml"])
    if month_most not in (None, "none") and not (month_most.isascii() and month_most.isdigit()):
        raise ConfigError([f"--month-most {month_most!r}: expected a whole number or none"])
    if note is not None and len(note) > 500:
        raise ConfigError([f"--note has {len(note)} characters, at most 500 are kept"])
    most = None if month_most in (None, "none") else int(month_most)
    async with connected(database_of(config)) as db:
        table = BudgetTable(db)
        keys = [row["key"] for row in await table.rows()]
        changed = await table.set(key, speed, most, note, who(), keep=month_most is None)
    new = "" if key in keys else ", a new budget"
    print_line(f"{key} is {'now' if changed else 'already'} {rate_text(speed)}{new}")
    if new and (near := get_close_matches(key, keys, 1, 0.8)):
        print_line(f"did you mean {near[0]}? It has the rate that it had", err=True)

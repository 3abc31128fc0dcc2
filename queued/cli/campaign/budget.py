"""`queuectl budget`: how much may be sent per second and month."""

from __future__ import annotations

from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from pgmta.command import age, print_json, print_line
from pgmta.store.campaigns.budgets import BudgetTable
from queued.cli.campaign.campaign_argument import short_errors
from queued.cli.campaign.job_commands import parse_rate
from queued.cli.options.queue_command import (
    Column,
    command,
    database_of,
    instant,
    print_rows,
    who,
)


@click.group()
def budget() -> None:
    """List and set how much may be sent per second and month."""


@command(budget, "list", json=True)
def list_budgets(config: Path, *, as_json: bool) -> None:
    """List all budgets: those of credentials, and of collectors."""
    with closing(BudgetTable(database_of(config), who())) as table:
        rows = table.rows()
    if as_json:
        print_json(rows)
        return
    columns: dict[str, Column] = {
        "BUDGET": "key", "RATE/S": "rate", "NEXT": _next,
        "MONTH": lambda row: "any number" if row["month_most"] is None
        else f"{row['month_used']} of {row['month_most']}",
        "CHANGED": lambda row: instant(row["changed_at"]), "BY": "changed_by",
        "NOTE": lambda row: row["note"] or "",
    }  # fmt: skip
    print_rows(rows, columns)


@command(budget, "set")
@click.argument("key")
@click.argument("rate")
@click.option("--month-most", type=click.IntRange(0), help="Mails in a calendar month in UTC.")
@click.option("--note", help="Words for other operators.")
def set_budget(config: Path, key: str, rate: str, month_most: int | None, note: str | None) -> None:
    """Make or change the budget KEY, such as credential:ses-1, to a RATE such as 50/s."""
    speed = parse_rate(rate)
    with closing(BudgetTable(database_of(config), who())) as table, short_errors():
        changed = table.set(key, speed, month_most, note)
    print_line(f"{key}: {speed:g}/s" if changed else f"{key}: {speed:g}/s already")


def _next(row: dict[str, Any]) -> str:
    wait = (row["next_at"] - datetime.now(UTC)).total_seconds()
    return "now" if wait <= 0 else f"in {age(wait)}"

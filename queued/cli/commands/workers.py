"""`queuectl workers`: the running workers, their rows, and the rows that no worker matches."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from pgmta.action import Action
from pgmta.command import EXIT_FAILURE, age, print_json, print_line
from pgmta.postgres.operator import connected
from pgmta.store.changes.overview import Overview
from queued.cli.options.queue_command import (
    Column,
    Cut,
    Form,
    age_of,
    command,
    database_of,
    print_rows,
)


@command(rows=True)
@click.option("--check", is_flag=True, help="Exit with 1 if rows wait that no worker takes.")
async def workers(config: Path, check: bool, form: Form) -> None:
    """Show workers, what each matches and its lag, and rows that no worker matches."""
    async with connected(database_of(config)) as db:
        overview = Overview(db)
        entries, rules, counts, warnings = await look_at_workers(overview)
    if form == Form.JSON:
        print_json({
            "workers": entries, "rules": rules, "unmatched": counts["unmatched"],
            "overlap": counts["overlap"], "faults": [asdict(fault) for fault in overview.faults],
            "warnings": warnings,
        })  # fmt: skip
    else:
        print_rows(entries, _COLUMNS, form)
        for warning in warnings:
            print_line(f"warning: {warning}", err=True)
    if check and counts["unmatched"]:
        sys.exit(EXIT_FAILURE)


NO_WORKER = "no delivering worker runs"
"""The warning that all mail waits."""

type Looked = tuple[list[dict[str, Any]], list[dict[str, Any]], dict[str, Any], list[str]]
"""Workers, rules, the counts of their rows, and warnings."""


async def look_at_workers(overview: Overview) -> Looked:
    """Count the rows of each worker and rule, in one scan of the queue.

    Raises psycopg.Error.
    """
    entries = await overview.workers()
    rules = await overview.rules()
    counts = await overview.matches(
        [entry["takes"] for entry in entries],
        _distinct(entries),
        [rule["takes"] for rule in rules],
        [*(f"worker {e['name']}" for e in entries), *(f"rule {r['name']}" for r in rules)],
    )
    for number, entry in enumerate(entries):
        entry["matches"] = counts[f"n{number}"]
        entry["due"] = counts[f"due{number}"]
        entry["lag"] = counts[f"lag{number}"]
    return entries, rules, counts, [*_warnings(entries, rules, counts), *map(str, overview.faults)]


_COLUMNS: dict[str, Column] = {
    "WORKER": "name",
    "ACTION": "action",
    "PROCESS": "owner",
    "SEEN": lambda entry: age_of(entry["seen_at"]) if entry["alive"] else "dead",
    "DONE": "handled",
    "MATCHES": "matches",
    "DUE": "due",
    "LAG": lambda entry: "-" if entry["lag"] is None else age(entry["lag"]),
    # cut late, because many conditions begin alike
    "WHERE": Cut(lambda entry: " ".join((entry["takes"] or "every row").split()), 120),
}


def _distinct(entries: list[dict[str, Any]]) -> list[int]:
    """Return the indexes of live delivering workers, one per name and condition.

    A worker that several processes run counts once: they share its rows by claims.
    """
    seen: dict[tuple[str, str | None], int] = {}
    for number, entry in enumerate(entries):
        if entry["alive"] and entry["action"] == Action.DELIVER:
            seen.setdefault((entry["name"], entry["takes"]), number)
    return list(seen.values())


def _rows(number: int) -> str:
    return "1 row is" if number == 1 else f"{number:,} rows are"


def _warnings(
    entries: list[dict[str, Any]], rules: list[dict[str, Any]], counts: dict[str, Any]
) -> list[str]:
    found = []
    if not any(e["alive"] and e["action"] == Action.DELIVER for e in entries):
        found.append(NO_WORKER)
    elif counts["unmatched"]:
        found.append(f"{_rows(counts['unmatched'])} matched by no worker; they wait for one")
    if counts["overlap"]:
        found.append(f"{_rows(counts['overlap'])} matched by more than one delivering worker")
    running = {e["name"] for e in entries if e["alive"]}
    found += [
        f"standing rule {rule['name']} holds mail back, but its worker does not run"
        for rule in rules
        if rule["origin"] == "worker" and rule["name"] not in running
    ]
    return found

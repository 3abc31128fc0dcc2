"""`scripts/quarantine-retention`: end what has been in a quarantine for long enough."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from pgmta.command import config_option, json_option, print_json, print_line, reporting
from pgmta.store.bulk import BATCH, Bulk, Change
from pgmta.store.filters import Filter
from queued.cli.steer import EXIT_INTERRUPTED, apply_change, seconds, who
from queued.cli.target import database_of


@click.command()
@config_option("etc/queued.yaml")
@click.argument("quarantine")
@click.option("--older", required=True, metavar="DURATION", help="Accepted longer ago than this.")
@click.option(
    "--action",
    type=click.Choice(["delete", "release"]),
    default="delete",
    show_default=True,
    help="What to do with it.",
)
@click.option("--batch", type=click.IntRange(1), default=BATCH, show_default=True, help="Rows.")
@click.option("--dry-run", is_flag=True, help="Only say how many rows it would be.")
@json_option
@reporting
def main(
    config: Path,
    quarantine: str,
    older: str,
    action: str,
    batch: int,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Delete or release what is older than an age in QUARANTINE, in batches.

    Safe to run twice, at the same time too, and from cron. Deletion is done by queued.
    """
    age = seconds(older, "--older")
    where = Filter(
        where=f"ts < now() - interval '{age:f} seconds'",
        status=["HOLD"],
        metadata=[f"_quarantineid={quarantine}"],
    ).condition()
    bulk = Bulk(database_of(config))
    stopped, done = False, 0
    try:
        total = bulk.count(where or "false")
        if total and not dry_run:
            change = Change(
                action, where or "false", who(), reason=f"quarantine {quarantine} ended"
            )
            done, stopped = apply_change(bulk, change, total, batch)
    finally:
        bulk.close()
    if as_json:
        print_json({"quarantine": quarantine, "action": action, "matched": total,
                    "changed": done, "dry_run": dry_run, "stopped": stopped})  # fmt: skip
    else:
        verb = {"delete": "deleted", "release": "released"}[action]
        count = f"would have {verb} {total}" if dry_run else f"{verb} {done}"
        end = f", stopped before the other {total - done}" if stopped else ""
        print_line(f"{count} rows of quarantine {quarantine}{end}")
    if stopped:
        sys.exit(EXIT_INTERRUPTED)


if __name__ == "__main__":
    main(prog_name="quarantine-retention")

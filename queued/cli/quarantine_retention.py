"""The command behind `scripts/quarantine-retention`: end old holds of a quarantine."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from pgmta.action import Action
from pgmta.command import (
    config_option,
    json_option,
    print_json,
    print_line,
    reporting,
    version_option,
)
from pgmta.console.error_lines import ErrorLines
from pgmta.postgres.operator import connected
from pgmta.store.changes.change import DEFAULT_BATCH_ROWS, OperatorChanges
from pgmta.store.changes.listing import Listing
from pgmta.store.changes.row_change import RowChange
from pgmta.store.queue.filters import filter_condition
from queued.cli.commands.change import EXIT_INTERRUPTED, apply_change, seconds
from queued.cli.options.queue_command import CONFIG_NAME, database_of, who

_PAST_PARTICIPLES = {Action.DELETE.value: "deleted", Action.RELEASE.value: "released"}


@click.command(cls=ErrorLines)
@config_option(CONFIG_NAME)
@click.argument("quarantine")
@click.option(
    "--older", required=True, metavar="DURATION", help="Take rows accepted longer ago than this."
)
@click.option(
    "--action",
    type=click.Choice(list(_PAST_PARTICIPLES)),
    default="delete",
    show_default=True,
    help="The change of these rows.",
)
@click.option(
    "--batch",
    type=click.IntRange(1),
    default=DEFAULT_BATCH_ROWS,
    show_default=True,
    help="Rows per commit.",
)
@click.option("--dry-run", is_flag=True, help="Only print how many rows would change.")
@json_option
@version_option("quarantine-retention")
@reporting
async def main(
    config: Path,
    quarantine: str,
    older: str,
    action: str,
    batch: int,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Delete or release rows of QUARANTINE that are older than an age, in batches.

    It may run twice, also at the same time, and from cron. queued does the deletion.
    """
    age = seconds(older, "--older")
    where = filter_condition(
        where=f"ts < now() - interval '{age:f} seconds'",
        status=["HOLD"],
        metadata=[f"_quarantineid={quarantine}"],
    )
    reason = f"quarantine {quarantine} ended"
    change = RowChange(action, where or "false", who(), reason=reason)
    uri = database_of(config)
    await _require_rights(uri)
    async with connected(uri) as db:
        listing = Listing(db)
        total = await listing.matching(change.where)
    done, stopped = (
        await apply_change(uri, change, total, batch) if total and not dry_run else (0, False)
    )
    if as_json:
        print_json({"quarantine": quarantine, "action": action, "matched": total,
                    "changed": done, "dry_run": dry_run, "stopped": stopped})  # fmt: skip
    else:
        verb = _PAST_PARTICIPLES[change.action]
        count = f"would have {verb} {total}" if dry_run else f"{verb} {done}"
        end = f", stopped before the other {total - done}" if stopped else ""
        print_line(f"{count} rows of quarantine {quarantine}{end}")
    if stopped:
        sys.exit(EXIT_INTERRUPTED)


async def _require_rights(uri: str) -> None:
    """Fail on the first day, and not on the day on which the first row is old enough."""
    changes = OperatorChanges(uri)
    try:
        await changes.require_rights()
    finally:
        await changes.close()


if __name__ == "__main__":
    main(prog_name="quarantine-retention")

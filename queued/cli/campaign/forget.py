"""`queuectl forget`: takes one person out of the database."""

from __future__ import annotations

import sys
from collections import Counter
from contextlib import closing
from pathlib import Path

import click

from pgmta.command import EXIT_FAILURE, print_json, print_line
from pgmta.store.changes.suppressions import SuppressionTable
from queued.cli.campaign.suppression import address_of
from queued.cli.options.queue_command import command, database_of, who

_UNDER_WAY = "rows under way"


@command(json=True)
@click.argument("address")
@click.option("--dry-run", is_flag=True, help="Say what there is, and remove nothing.")
def forget(config: Path, address: str, dry_run: bool, as_json: bool) -> None:
    """Remove all about the person with ADDRESS: mail that waits, log, transcripts, campaigns.

    A keyed hash stays in the suppressions, so that no campaign writes to ADDRESS again. Each part
    is a separate commit. Exit 1 if mail is under way: run it again a minute later.
    """
    address = address_of(address)
    removed: Counter[str] = Counter()
    with closing(SuppressionTable(database_of(config), who())) as table:
        for part in table.forget_parts():
            removed.update(table.forget(address, part, dry_run=dry_run))
        if not dry_run:
            table.note_forgotten(address, removed)
    if as_json:
        print_json({"dry_run": dry_run, **removed})
    else:
        for noun, number in removed.items():
            if noun != _UNDER_WAY:
                print_line(f"{noun:24}{number:>8}{' would go' if dry_run else ' removed'}")
    if removed[_UNDER_WAY]:
        print_line(f"{removed[_UNDER_WAY]} rows are under way: run it again in a minute", err=True)
        sys.exit(EXIT_FAILURE)

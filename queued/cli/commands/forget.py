"""`queuectl forget`: takes one person out of the database."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import click
import idna

from pgmta.command import EXIT_FAILURE, print_json, print_line
from pgmta.postgres.operator import connected
from pgmta.store.changes.forgetting import Forgetting
from queued.cli.options.queue_command import command, database_of, read_address, who

_UNDER_WAY = "rows under way"
_STAYS, _WAITS = "stays", "waits"


@command(json=True)
@click.argument("address")
@click.option("--dry-run", is_flag=True, help="Say what there is, and remove nothing.")
async def forget(config: Path, address: str, dry_run: bool, as_json: bool) -> None:
    """Remove all about the person with ADDRESS: mail that waits, log, transcripts, lists.

    In words about others the address is replaced. A keyed hash stays, so that no campaign writes to
    ADDRESS again. Each part is a separate commit. Orders and texts of
    operators that have the address stay, and are named, as is mail of others that waits with the
    address within theirs, as VERP writes it. Exit 1 if there are such ones, or if mail is under
    way: run it again when they are gone.
    """
    address = read_address(address)
    removed: Counter[str] = Counter()
    stays: list[str] = []
    waits: list[str] = []
    async with connected(database_of(config)) as db:
        forgetting = Forgetting(db)
        for part in await forgetting.parts():
            for spelling in _spellings(address):
                found = await forgetting.forget(spelling, part, dry_run=dry_run)
                stays += found.pop(_STAYS, [])
                waits += found.pop(_WAITS, [])
                removed.update(found)
        if not dry_run:
            await forgetting.note(who(), address, removed)
    if as_json:
        print_json({"dry_run": dry_run, **removed, _STAYS: stays, _WAITS: waits})
    else:
        for noun, number in removed.items():
            if noun != _UNDER_WAY:
                print_line(f"{noun:24}{number:>8}{' would go' if dry_run else ' removed'}")
    for names, why in ((stays, "an operator wrote it"), (waits, "mail of others that waits")):
        for name in names:
            print_line(f"the address stays in {name}: {why}", err=True)
    if removed[_UNDER_WAY]:
        print_line(f"{removed[_UNDER_WAY]} rows are under way: run it again in a minute", err=True)
    if stays or waits or removed[_UNDER_WAY]:
        sys.exit(EXIT_FAILURE)


def _spellings(address: str) -> Iterator[str]:
    """Yield the address with its domain in A-labels and in letters: smtpd takes both."""
    yield address
    local, at, domain = address.rpartition("@")
    try:
        letters = idna.decode(domain) if at else domain
    except (idna.IDNAError, UnicodeError):  # a literal, or A-labels of IDNA 2003
        return
    if letters != domain:
        yield f"{local}@{letters}"

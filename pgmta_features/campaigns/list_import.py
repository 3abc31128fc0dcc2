"""The rows of a list become recipients of a campaign: all of them, or none."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Protocol

from pgmta.errors import PgmtaError
from pgmta_features.campaigns.list_table import CampaignTemplate, ListImport, ListTable
from pgmta_features.campaigns.lists.row_check import RowCheck
from pgmta_features.campaigns.lists.sources import RecipientList

_PROGRESS_ROWS_MASK = 1023  # the clock is read once in 1,024 rows

type Counts = Counter[str]


class Progress(Protocol):
    """Shows how far a part of the work is."""

    def show(self, position: int, number: int) -> None:
        """Show the position, of the length of the work, and the number of things so far."""


class Problems(Protocol):
    """Takes the lines that are left out."""

    def add(self, line: int, reason: str) -> None:
        """Note a line."""


type Watch = Callable[[str, int | None, str], AbstractContextManager[Progress]]
"""Begins a part of the work: its name, its length if that is known, and the things in it."""


async def import_rows(
    table: ListTable,
    campaign: CampaignTemplate,
    given: RecipientList,
    check: RowCheck,
    problems: Problems,
    watch: Watch,
) -> Counts:
    """Add the recipients of a list in one transaction, which begins when all rows were read.

    Returns the numbers of rows: imported, suppressed of these, bad and duplicates. Rows are read in
    a thread. Raises PgmtaError if no recipient is left, psycopg.Error.
    """
    counts: Counts = Counter(rows=0, imported=0, suppressed=0, bad=0, duplicates=0)
    work = await table.importing(campaign)
    await _read(given, check, work, problems, counts, watch)
    async with work.transaction():
        for other in await work.of_other_kind():
            counts["bad"] += 1
            problems.add(other.place, f"{other.recipient!r}: {other.problem}")
        async for row in work.duplicates():
            counts["duplicates"] += 1
            where = (
                f"it is already in line {row.first}" if row.first > 0
                else "the campaign has it already"
            )  # fmt: skip
            problems.add(row.place, f"{row.recipient!r}: {where}")
        left = counts["rows"] - counts["bad"] - counts["duplicates"]
        if not left:
            raise PgmtaError(f"no recipient is left of {counts['rows']:,}: nothing was imported")
        with watch("storing", left, "recipients") as bar:
            async for counts["imported"], counts["suppressed"] in work.store():
                bar.show(counts["imported"], counts["imported"])
        await work.note(given.name)
        details = {"from": given.name, **counts}
        await table.note_import(campaign.row["id"], details, counts["imported"])
    return counts


async def _read(
    given: RecipientList, check: RowCheck, work: ListImport, problems: Problems, counts: Counts,
    watch: Watch,
) -> None:  # fmt: skip
    """Check the rows, and send what fits to the database."""
    with watch("reading", given.length, "recipients") as bar:
        while await asyncio.to_thread(_fill, given, check, work, problems, counts, bar):
            await work.send_rows()
    await work.send_rows()


def _fill(
    given: RecipientList, check: RowCheck, work: ListImport, problems: Problems, counts: Counts,
    bar: Progress,
) -> bool:  # fmt: skip
    """Check rows until some have to be sent; return whether there may be more."""
    read, number, bad = check.read, counts["rows"], counts["bad"]
    full = False
    for line, cells, problem, last in given.rows:
        number += 1
        try:
            row = None if problem else read(cells)
        except ValueError as error:
            problem = str(error)
        if problem:
            bad += 1
            more = f"; the row goes on to line {last}" if last > line else ""
            problems.add(line, problem + more)
        elif row:
            full = work.add(line, row)
        if not number & _PROGRESS_ROWS_MASK:
            bar.show(given.position(number), number)
        if full:
            break
    counts["rows"], counts["bad"] = number, bad
    return full

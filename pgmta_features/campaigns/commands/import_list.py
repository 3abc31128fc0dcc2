"""`queuectl campaign import`: a list of recipients, all of it or nothing."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager
from pathlib import Path

import click

from pgmta.command import EXIT_FAILURE, print_json, print_line
from pgmta.errors import ConfigError
from pgmta_features.campaigns.commands.argument import about_campaign
from pgmta_features.campaigns.commands.recipients import CampaignRecipients, open_recipients
from pgmta_features.campaigns.list_import import import_rows
from pgmta_features.campaigns.lists.column_finder import shown_names
from pgmta_features.campaigns.lists.problem_list import problem_list
from pgmta_features.campaigns.lists.row_check import RowCheck, read_mapping
from pgmta_features.campaigns.lists.sources import (
    SEPARATORS,
    RecipientList,
    csv_list,
    query_list,
)
from pgmta_features.campaigns.lists.time_zones import TimeZones
from queued.cli.options.progress_bar import progress_bar
from queued.cli.options.queue_command import command, database_of


@command(name="import", json=True)
@about_campaign
@click.argument("file", required=False, type=click.Path(path_type=Path, dir_okay=False))
@click.option("--sql", "query", metavar="SELECT", help="Take the rows of this query.")
@click.option("--source", metavar="URI", help="Database of the query.  [default: the queue's]")
@click.option("--column", multiple=True, metavar="WORD=COLUMN", help="The column of a word, if it "
              "has another name; a COLUMN alone has the mailbox.")  # fmt: skip
@click.option("--separator", type=click.Choice(list(SEPARATORS)), help="Separates the cells of a "
              "line.  [default: recognised by the first line]")  # fmt: skip
@click.option("--encoding", metavar="NAME", help="Such as windows-1250.  [default: recognised as "
              "UTF-8, windows-1252, or UTF-16 with a BOM]")  # fmt: skip
@click.option("--errors", type=click.Path(path_type=Path, dir_okay=False), metavar="CSV",
              help="List all lines left out here; stderr has the first 20.")  # fmt: skip
async def import_list(
    config: Path,
    name: str,
    tenant: str,
    file: Path | None,
    query: str | None,
    source: str | None,
    column: tuple[str, ...],
    separator: str | None,
    encoding: str | None,
    errors: Path | None,
    as_json: bool,
) -> None:
    """Add the recipients in FILE to campaign NAME; - is standard input.

    FILE is CSV, whose first line names the columns: recipient, and each word of the template. Or
    --sql has a query with such columns. It runs on your own connection, which may only
    read. Bad lines, and mailboxes that the list or campaign has already, are left out and listed.
    Exit 1 if a line is bad. All is one transaction: an error leaves nothing behind.
    """
    if (file is None) == (query is None):
        raise ConfigError(["give either FILE or --sql"])
    if source is not None and query is None:
        raise ConfigError(["--source: it counts only with --sql"])
    if (separator or encoding) and file is None:
        raise ConfigError(["--separator and --encoding count only with FILE"])
    if file and errors and errors.exists() and file.exists() and errors.samefile(file):
        raise ConfigError(["--errors: it is FILE itself"])
    async with open_recipients(config, tenant, name) as campaign:
        opened: AbstractContextManager[RecipientList]
        if query is not None:
            opened = query_list(source or database_of(config), query)
        else:
            opened = csv_list(file if str(file) != "-" else None, separator, encoding)
        mapping = read_mapping(column, campaign.template, campaign.campaign.row["zone_column"])
        zones = await campaign.table.zones(campaign.campaign)
        with opened as given:
            check = _check(campaign, given, mapping, zones)
            with problem_list(given.name, errors) as problems:
                counts = await import_rows(
                    campaign.table, campaign.campaign, given, check, problems, progress_bar
                )
    if as_json:
        form = given.form
        print_json({**counts, "encoding": form and form.encoding.name,
                    "mixed": form and form.encoding.mixed,
                    "separator": form and form.separator, "columns": check.columns,
                    "left_out": check.left_out})  # fmt: skip
    else:
        print_line(
            f"imported {counts['imported']:,} recipients into {name}, {counts['suppressed']:,} of "
            f"them suppressed; left out: {counts['bad']:,} bad, {counts['duplicates']:,} duplicates"
        )
        _say_form(given, check)
    if counts["bad"]:
        sys.exit(EXIT_FAILURE)


def _say_form(given: RecipientList, check: RowCheck) -> None:
    """Print how the list was read, so that a wrong guess is seen."""
    form = given.form
    rows = []
    if form:
        mixed = " (mixed)" if form.encoding.mixed else ""
        rows = [["encoding", f"{form.encoding.name}{mixed}"], ["separator", form.separator]]
    columns = [word if word == column else f"{word} = {column!r}"
               for word, column in check.columns.items()]  # fmt: skip
    rows.append(["columns", ", ".join(columns)])
    if check.left_out:
        rows.append(["left out", shown_names(check.left_out)])
    for word, value in rows:
        print_line(f"  {word:<9}  {value}")


def _check(
    campaign: CampaignRecipients,
    given: RecipientList,
    mapping: dict[str, str],
    zones: TimeZones | None,
) -> RowCheck:
    try:
        return RowCheck(campaign.template, given.columns, mapping, given.encoding, zones)
    except ConfigError as error:
        raise ConfigError([f"{given.name}: {each}" for each in error.problems]) from None

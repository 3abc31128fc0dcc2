"""`queuectl campaign export`: the recipients and their outcomes, for other programs."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import BinaryIO

import click

from pgmta.command import print_text
from pgmta.mail.text import json_escaped
from pgmta_features.campaigns.commands.argument import about_campaign
from pgmta_features.campaigns.commands.recipients import open_recipients
from pgmta_features.campaigns.list_table import OUTCOMES
from pgmta_features.campaigns.lists.row_check import words_of
from queued.cli.options.progress_bar import progress_bar
from queued.cli.options.queue_command import command


@command(json=True)
@about_campaign
@click.option("--state", "states", multiple=True, type=click.Choice(OUTCOMES),
              help="Only these recipients.")  # fmt: skip
@click.option("--words", is_flag=True, help="With the words of each recipient.")
@click.option("--spreadsheet", is_flag=True, help="No cell begins a formula: ' is before it.")
@click.option("-o", "--output", type=click.Path(path_type=Path, dir_okay=False),
              help="Write this file.  [default: standard output]")  # fmt: skip
async def export(
    config: Path,
    name: str,
    tenant: str,
    states: tuple[str, ...],
    words: bool,
    spreadsheet: bool,
    output: Path | None,
    as_json: bool,
) -> None:
    """Write the recipients of a campaign as CSV, or with --json as a line of JSON each.

    Times are those of ISO 8601 in UTC. An empty cell is a value that there is none of.
    """
    async with (
        open_recipients(config, tenant, name) as campaign,
        # the COPY ends before its connection, also if the reader of the output has seen enough
        aclosing(campaign.table.export(
            campaign.id, states, words_of(campaign.template) if words else (),
            as_json=as_json, spreadsheet=spreadsheet,
        )) as lines,
    ):  # fmt: skip
        if output is not None:
            with output.open("wb") as file:
                await _write(file, lines)
        elif sys.stdout.isatty():  # a terminal would obey control characters
            async for line in lines:
                text = line.decode()
                print_text((json_escaped(text) if as_json else text).rstrip("\n"))
        else:
            await _write(sys.stdout.buffer, lines)


async def _write(file: BinaryIO, lines: AsyncIterator[bytes]) -> None:
    number = 0
    with progress_bar("exported", None, "recipients") as bar:
        async for line in lines:
            file.write(line)
            if not number & 1023:
                bar.show(number, number)
            number += 1
    file.flush()

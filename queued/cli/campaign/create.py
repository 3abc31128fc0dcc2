"""`queuectl campaign create`."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import click

from pgmta.command import print_json, print_line
from pgmta.store.campaigns.campaign_lists import ListTable
from queued.cli.campaign.campaign_argument import about_campaign, short_errors
from queued.cli.campaign.campaign_recipients import compiled
from queued.cli.options.mail_options import time_option
from queued.cli.options.queue_command import command, database_of, who
from queued.cli.recipients.row_check import RECIPIENT, words_of


@command(json=True)
@about_campaign
@click.option("--template", required=True, metavar="NAME", help="Template of its mail.")
@click.option("--version", type=int, help="Version of the template.  [default: the last one]")
@click.option("--credential", required=True, metavar="NAME", help="Name of a login or key: routes "
              "find it in metadata.credential, and all its campaigns share its rate.")  # fmt: skip
@click.option("--sender", help="Reverse-path, '' for none.  [default: that of the template]")
@click.option("--scope", default="", help="Kind of mail that recipients unsubscribe from, as news.")
@click.option("--priority", default=7, show_default=True, help="0 is first, 9 is last.")
@click.option("--at", metavar="TIME", help="Begin then, such as 2026-01-31T09:30:00+01:00.")
@click.option("--deadline", metavar="TIME", help="Send nothing after this time.")
def create(config: Path, name: str, tenant: str, at: str | None, deadline: str | None,
           as_json: bool, **options: Any) -> None:  # fmt: skip
    """Make a campaign without recipients, and say which words its list has to have."""
    given = {
        **options, "name": name, "tenant": tenant, "visible_at": time_option("--at", at),
        "deadline": time_option("--deadline", deadline),
    }  # fmt: skip
    with (
        closing(ListTable(database_of(config), who())) as table,
        short_errors(),
        table.creating(given) as campaign,
    ):
        words = words_of(compiled(campaign))
    row = campaign.row
    columns = [RECIPIENT, *words]
    if as_json:
        print_json({"id": row["id"], "template": row["template"], "version": row["version"],
                    "columns": columns})  # fmt: skip
        return
    print_line(f"created {name}, campaign {row['id']}, with template {row['template']} version "
               f"{row['version']}; a list has the columns {', '.join(columns)}")  # fmt: skip

"""`queuectl campaign create`."""

from __future__ import annotations

from collections.abc import Iterator
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from pydantic import BaseModel

from pgmta.command import print_json, print_line
from pgmta.errors import ConfigError
from pgmta.postgres.operator import connected
from pgmta_features.campaigns.commands.argument import about_campaign, short_errors
from pgmta_features.campaigns.commands.hours import hours_text, read_days, read_hours
from pgmta_features.campaigns.commands.recipients import compiled
from pgmta_features.campaigns.list_table import ListTable
from pgmta_features.campaigns.lists.row_check import RECIPIENT, words_of
from queued.cli.options.queue_command import command, database_of, read_begin, read_time, who

if TYPE_CHECKING:
    from queued.config import QueuedConfig


@command(json=True)
@about_campaign
@click.option("--template", required=True, metavar="NAME", help="Template of its mail.")
@click.option("--version", type=int, help="Version of the template.  [default: the last one]")
@click.option("--credential", required=True, metavar="NAME", help="Name of a login or key: routes "
              "find it in metadata.credential, and all its campaigns share its rate.")  # fmt: skip
@click.option("--sender", help="Reverse-path, '' for none.  [default: that of the template]")
@click.option("--scope", default="", help="Kind of mail that recipients unsubscribe from, as news.")
@click.option("--priority", default=7, show_default=True, help="0 is first, 9 is last.")
@click.option("--at", metavar="TIME", help="Begin then: '2026-12-24 18:00', 'in 2h'.")
@click.option("--deadline", metavar="TIME", help="Send nothing after this time.")
@click.option("--hours", metavar="FROM-TO", help="Begin its mail between these times alone, as "
              "09:00-17:30; 22:00-06:00 is over midnight.")  # fmt: skip
@click.option("--days", metavar="DAYS", help="And on these days, as Mon-Fri.  [default: all]")
@click.option("--zone", help="Time zone of hours and days, as Europe/Berlin, and of "
              "--at and --deadline.  [default: UTC, and that of this host]")  # fmt: skip
@click.option("--zone-column", metavar="NAME",
              help="Column of the list with the time zone of each recipient.")  # fmt: skip
async def create(config: Path, name: str, tenant: str, at: str | None, deadline: str | None,
                 hours: str | None, days: str | None, zone: str | None, zone_column: str | None,
                 as_json: bool, **options: Any) -> None:  # fmt: skip
    """Make a campaign without recipients, and say which words its list has to have.

    A credential that no route, budget or option names is named on stderr: it may be misspelt. So
    is a missing tokens.unsubscribe_url, without which mail with a scope waits.
    """
    given = {
        **options, "name": name, "tenant": tenant, "visible_at": read_begin(at, zone),
        "deadline": read_time(deadline, "--deadline", zone=zone),
        "opens": None, "closes": None, "days": None, "zone": zone, "zone_column": zone_column,
    }  # fmt: skip
    if hours is not None:
        given["opens"], given["closes"] = read_hours(hours)
    elif days is not None or zone is not None or zone_column is not None:
        raise ConfigError(["--days, --zone and --zone-column: they count only with --hours"])
    if zone_column is not None and zone_column.strip().lower() == RECIPIENT:
        raise ConfigError([f"--zone-column {zone_column}: this column has the mailbox"])
    if days is not None:
        given["days"] = read_days(days)
    async with connected(database_of(config)) as db:
        table = ListTable(db, who())
        with short_errors():
            async with table.creating(given) as campaign:
                words = words_of(compiled(campaign))
                notes = _notes(config, options, await table.rated_credentials())
    for note in notes:
        print_line(note, err=True)
    row = campaign.row
    columns = list(dict.fromkeys([RECIPIENT, *words, *([zone_column] if zone_column else [])]))
    sends = ""
    if hours is not None:
        shown = hours_text(row["opens"], row["closes"], row["days"], row["zone"])
        sends = f"; it sends {shown}" + (f", or as {zone_column} says" if zone_column else "")
    if as_json:
        print_json({"id": row["id"], "template": row["template"], "version": row["version"],
                    "columns": columns})  # fmt: skip
        return
    print_line(f"created {name}, campaign {row['id']}, with template {row['template']} version "
               f"{row['version']}; a list has the columns {', '.join(columns)}{sends}")  # fmt: skip


def _notes(config: Path, options: dict[str, Any], rated: list[str]) -> list[str]:
    """Return what the configuration lacks for such a campaign."""
    from queued.config import read_config

    try:
        read = read_config(config, passwords=False)
    except ConfigError:  # this user may not be able to read all files
        return []
    notes = [_unnamed(read, options["credential"], rated)]
    if options["scope"] and not read.tokens.unsubscribe_url:
        notes.append("tokens.unsubscribe_url is missing in queued.yaml: mail with a scope has a "
                     "link to unsubscribe, and waits until there is one")  # fmt: skip
    return [note for note in notes if note]


def _unnamed(read: QueuedConfig, credential: str, rated: list[str]) -> str:
    """Return that nothing names a credential, with names that are near; '' if something does."""
    texts = [read.environment.database.where, *(worker.where for worker in read.workers)]
    known = {*rated, *_credentials_in(read), *_credentials_in(read.routing)}
    if credential in known or any(f"'{credential}'" in text for text in texts if text):
        return ""
    near = get_close_matches(credential, known)
    said = f"near: {', '.join(near)}" if near else "its mail goes by the usual route"
    return f"--credential {credential}: no route, budget or option names it; {said}"


def _credentials_in(value: object) -> Iterator[str]:
    """Yield the values of metadata.credential that conditions in a configuration name."""
    from queued.config.mail_conditions import MailConditions

    if isinstance(value, MailConditions):
        yield from value.metadata.get("credential", ())
    elif isinstance(value, BaseModel):
        yield from _credentials_in(list(value.__dict__.values()))
    elif isinstance(value, dict):
        yield from _credentials_in(list(value.values()))
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _credentials_in(each)

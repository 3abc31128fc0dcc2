"""`queuectl campaign template | remove | copy`: a campaign is changed, or made as another one."""

from __future__ import annotations

from pathlib import Path

import click

from pgmta.command import print_json, print_line
from pgmta.errors import ConfigError
from pgmta.postgres.operator import connected
from pgmta_features.campaigns.campaign_table import CampaignTable
from pgmta_features.campaigns.commands.argument import (
    about_campaign,
    campaign_table,
    short_errors,
    tenant_option,
)
from pgmta_features.campaigns.commands.recipients import compiled
from pgmta_features.campaigns.list_table import OUTCOMES, ListTable
from queued.cli.options.queue_command import command, database_of, read_begin, read_time, who


@command(json=True)
@about_campaign
@click.argument("template")
@click.option("--version", type=int, help="Version of the template.  [default: the last one]")
@click.option("--reason", metavar="TEXT", help="Why; needed after the start.")
async def template(
    config: Path,
    name: str,
    tenant: str,
    template: str,
    version: int | None,
    reason: str | None,
    *,
    as_json: bool,
) -> None:
    """Give campaign NAME another TEMPLATE, or another version of it.

    After the start the rest gets it: mail that is not in the queue yet. It is refused if a
    recipient lacks one of its words. A sender that `create` was not given is that of the template.
    """
    async with connected(database_of(config)) as db:
        with short_errors():
            campaign = await CampaignTable(db, who()).find(tenant, name)
            given = {"template": template, "version": version, "reason": reason}
            async with ListTable(db, who()).exchanging(campaign, given) as (found, unsent):
                compiled(found)
    row = found.row
    if as_json:
        print_json({"template": row["template"], "version": row["version"], "unsent": unsent,
                    "sender": row["reverse_path"]})  # fmt: skip
    else:
        print_line(f"{name} has template {row['template']} version {row['version']} now, for "
                   f"{unsent:,} unsent recipients and what is tried again; "
                   f"sender: {row['reverse_path'] or 'none'}")  # fmt: skip


@command(json=True)
@about_campaign
@click.option("--recipient", "recipients", multiple=True, metavar="ADDRESS", help="Whom to take "
              "out; may be given again.")  # fmt: skip
@click.option("--list", "number", type=int, help="All recipients of this list; `show` has them.")
async def remove(
    config: Path,
    name: str,
    tenant: str,
    recipients: tuple[str, ...],
    number: int | None,
    *,
    as_json: bool,
) -> None:
    """Take recipients who had no mail out of campaign NAME.

    Mail that waits is withdrawn first. Recipients who had mail, or whose mail is in flight, stay.
    """
    if bool(recipients) == (number is not None):
        raise ConfigError(["give either --recipient or --list"])
    async with campaign_table(config) as table:
        campaign = await table.find(tenant, name)
        removed, kept = await table.remove(campaign, list(recipients) or None, number)
    if as_json:
        print_json({"removed": removed, "kept": kept})
    else:
        stay = f"; {kept:,} had their mail, or it is in flight, and stay" if kept else ""
        print_line(f"took {removed:,} recipients out of {name}{stay}")


@command(json=True)
@click.argument("name")
@click.argument("new")
@tenant_option
@click.option("--state", "states", multiple=True, type=click.Choice(OUTCOMES),
              help="Only recipients in this state; may be given again.")  # fmt: skip
@click.option("--without-recipients", is_flag=True, help="Copy none.")
@click.option("--at", metavar="TIME", help="Begin then.")
@click.option("--deadline", metavar="TIME", help="Send nothing after this time.")
async def copy(
    config: Path,
    name: str,
    new: str,
    tenant: str,
    states: tuple[str, ...],
    without_recipients: bool,
    at: str | None,
    deadline: str | None,
    *,
    as_json: bool,
) -> None:
    """Make campaign NEW as NAME is, with its recipients; its times are given anew.

    Who is suppressed by now gets nothing.
    """
    if states and without_recipients:
        raise ConfigError(["--state: it does not count with --without-recipients"])
    given = {
        "name": new, "states": list(states) or None, "recipients": not without_recipients,
        "visible_at": read_begin(at), "deadline": read_time(deadline, "--deadline"),
    }  # fmt: skip
    async with campaign_table(config) as table:
        await table.copy(await table.find(tenant, name), given)
        state = await table.state(tenant, new)
    if as_json:
        print_json({"id": state.id, "recipients": state.recipients, "suppressed": state.invalid})
    else:
        print_line(f"copied {name} to {new}, campaign {state.id}: {state.recipients:,} recipients, "
                   f"{state.invalid:,} of them suppressed")  # fmt: skip

"""The group `queuectl campaign`. A new command is a file, and its name here."""

from __future__ import annotations

import click

from queued.cli.campaign.create import create
from queued.cli.campaign.export import export
from queued.cli.campaign.import_list import import_list
from queued.cli.campaign.job_commands import delete, job, resume, retry, start, stop
from queued.cli.campaign.look import list_campaigns, show_campaign, watch
from queued.cli.campaign.preview import preview
from queued.cli.campaign.trial import test

COMMANDS: list[click.Command] = [
    create, delete, export, import_list, job, list_campaigns, preview, resume, retry, show_campaign,
    start, stop, test, watch,
]  # fmt: skip


@click.group(commands=COMMANDS)
def campaign() -> None:
    """Send one message to many recipients, at the rate of a credential."""

"""The group `queuectl campaign`. A new command is a file, and its name here."""

from __future__ import annotations

import click

from queued.cli.campaign.look import list_campaigns, show_campaign, watch
from queued.cli.campaign.steer import delete, resume, retry, start, stop

COMMANDS: list[click.Command] = [
    delete, list_campaigns, resume, retry, show_campaign, start, stop, watch,
]  # fmt: skip


@click.group(commands=COMMANDS)
def campaign() -> None:
    """Send one message to many recipients, at the rate of a credential."""

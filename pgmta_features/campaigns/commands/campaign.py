"""The group `queuectl campaign`. A new command is a file, and its name here."""

from __future__ import annotations

import click

from pgmta_features.campaigns.commands.changes import copy, remove, template
from pgmta_features.campaigns.commands.create import create
from pgmta_features.campaigns.commands.export import export
from pgmta_features.campaigns.commands.import_list import import_list
from pgmta_features.campaigns.commands.job_commands import delete, job, resume, retry, start, stop
from pgmta_features.campaigns.commands.look import list_campaigns, show_campaign, watch
from pgmta_features.campaigns.commands.preview import preview
from pgmta_features.campaigns.commands.trial import test

COMMANDS: list[click.Command] = [
    copy, create, delete, export, import_list, job, list_campaigns, preview, remove, resume, retry,
    show_campaign, start, stop, template, test, watch,
]  # fmt: skip


@click.group(commands=COMMANDS)
def campaign() -> None:
    """Send one message to many recipients, at the rate of a credential."""

"""The command `queuectl` of operators. A new command is a file, and its name here."""

from __future__ import annotations

import click

from pgmta.command import version_option
from pgmta.logs import keep_off_stdout
from queued.cli.campaign.budget import budget
from queued.cli.campaign.campaign import campaign
from queued.cli.campaign.forget import forget
from queued.cli.campaign.job_commands import job
from queued.cli.campaign.suppression import suppression
from queued.cli.commands.change import COMMANDS as CHANGES
from queued.cli.commands.classify import classify
from queued.cli.commands.count import count
from queued.cli.commands.dkim import dkim
from queued.cli.commands.explain import explain
from queued.cli.commands.find import find
from queued.cli.commands.list import list_rows
from queued.cli.commands.migration import migrate
from queued.cli.commands.partition import partition
from queued.cli.commands.route import route
from queued.cli.commands.rules import rule
from queued.cli.commands.send import send
from queued.cli.commands.show import show
from queued.cli.commands.submission import cancel, status, submit
from queued.cli.commands.template import template
from queued.cli.commands.trace import trace
from queued.cli.commands.up import up
from queued.cli.commands.user import user
from queued.cli.commands.workers import workers
from queued.cli.lifecycle.collect import collect
from queued.cli.lifecycle.lifecycle import lifecycle
from queued.cli.lifecycle.token_commands import token

COMMANDS: list[click.Command] = [
    *CHANGES, budget, campaign, cancel, classify, collect, count, dkim, explain, find, forget, job,
    lifecycle,
    list_rows, migrate, partition, route,
    rule, send, show, status, submit, suppression, template, token, trace, up, user, workers,
]  # fmt: skip


@click.group(commands=COMMANDS)
@version_option("queuectl")
def main() -> None:
    """Show and change the queue."""
    keep_off_stdout()

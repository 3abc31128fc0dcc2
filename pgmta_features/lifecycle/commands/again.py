"""`queuectl lifecycle again`: mail for tokens that expired before theirs left."""

from __future__ import annotations

from pathlib import Path

import click

from pgmta.command import print_json, print_line
from pgmta.postgres.operator import connected
from pgmta_features.lifecycle.accounts import mail_again
from queued.cli.options.queue_command import command, database_of, read_since_s


@command(json=True)
@click.option("--action", metavar="NAME", help="Tokens of this action only.")
@click.option(
    "--since", default="1d", show_default=True, metavar="TIME",
    help="Tokens that expired within this time.",
)  # fmt: skip
async def again(config: Path, action: str | None, since: str, as_json: bool) -> None:
    """Mail new tokens in place of those that expired before their mail left.

    After an outage of collectors or of the way of mail. Accounts that no longer fit, or that have a
    newer token, get none. A second call finds nothing more.
    """
    seconds = read_since_s(since)
    async with connected(database_of(config)) as db:
        number = await mail_again(db, action, seconds)
    if as_json:
        print_json({"tokens": number})
    else:
        print_line(f"{number} new tokens wait for their mail")

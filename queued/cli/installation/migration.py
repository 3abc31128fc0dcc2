"""The command `queuectl database migrate`."""

from __future__ import annotations

from pathlib import Path

import click

from pgmta.command import config_option, json_option, print_json, print_line, reporting
from pgmta.postgres.locate import existing
from pgmta.store.admin.migrate import migrate as apply_migrations
from pgmta.store.admin.migrate import search_path
from queued.cli.options.queue_command import CONFIG_NAME, place_to_make


@click.command()
@config_option(CONFIG_NAME, needed=False)
@click.option(
    "--while-daemons-run",
    is_flag=True,
    help="Also migrate while daemons of another version run. They take no mail until replaced.",
)
@json_option
@reporting
def migrate(config: Path, while_daemons_run: bool, as_json: bool) -> None:
    """Bring the schema up to date. Refused while daemons of another version run."""
    uri = existing(place_to_make(config))
    applied = apply_migrations(
        uri,
        lambda text: print_line(f"warning: {text}", err=True),
        while_daemons_run=while_daemons_run,
    )
    if as_json:
        print_json({"applied": applied})
    elif applied:
        for name in applied:
            print_line(f"applied {name}")
        if path := search_path(uri):
            print_line(f"the database has the search_path {path} now: tables that are made without "
                       "a schema come into pgmta")  # fmt: skip
    else:
        print_line("nothing to do")

"""`queuectl lifecycle`: the schema of accounts and tokens."""

from __future__ import annotations

from pathlib import Path

import click

from pgmta.command import print_json, print_line, print_text
from pgmta.store.lifecycle.installation import install, remove, schema_text
from queued.cli.lifecycle.demo import demo
from queued.cli.options.queue_command import command, database_of


@click.group()
def lifecycle() -> None:
    """Install or remove the schema `lifecycle`: accounts, tokens and the mail about them."""


lifecycle.add_command(demo)


@command(lifecycle, "install", json=True)
def install_schema(config: Path, as_json: bool) -> None:
    """Install the schema, as the owner of the queue. Nothing changes if it is there."""
    done = install(database_of(config))
    if as_json:
        print_json({"installed": done})
    else:
        print_line(
            "installed schema lifecycle" if done else "schema lifecycle is installed already"
        )


@lifecycle.command()
def sql() -> None:
    """Print the statements of `install`, which are to run in one transaction."""
    print_text(schema_text())


@command(lifecycle, "remove", json=True)
def remove_schema(config: Path, as_json: bool) -> None:
    """Remove the schema. Refused while there are accounts or tokens: delete them first."""
    done = remove(database_of(config))
    if as_json:
        print_json({"removed": done})
    else:
        print_line("removed schema lifecycle" if done else "there is no schema lifecycle")

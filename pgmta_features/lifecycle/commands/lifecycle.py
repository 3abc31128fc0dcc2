"""`queuectl lifecycle`: the schema of accounts and tokens."""

from __future__ import annotations

from pathlib import Path

import click

from pgmta.command import print_json, print_line, print_text
from pgmta_features.lifecycle.commands.demo import demo
from pgmta_features.lifecycle.installation import install, remove, schema_text
from queued.cli.options.lazy_group import LazyCommand, LazyGroup
from queued.cli.options.queue_command import command, database_of

_LAZY = {
    "bind": LazyCommand(
        "pgmta_features.lifecycle.commands.bind:bind_table",
        "Take the accounts from a table of the application; print what `--create` runs.",
    ),
    "unbind": LazyCommand(
        "pgmta_features.lifecycle.commands.bind:unbind_table",
        "Take the binding away with all that it made, and end the tokens of its accounts.",
    ),
    "check": LazyCommand(
        "pgmta_features.lifecycle.commands.bind:check_table",
        "Prove a bound table by the life of an account, which is rolled back.",
    ),
    "again": LazyCommand(
        "pgmta_features.lifecycle.commands.again:again",
        "Mail new tokens in place of those that expired before their mail left.",
    ),
    "collect": LazyCommand(
        "pgmta_features.lifecycle.commands.collect:collect",
        "Print the tokens that wait, a line per batch, until SIGTERM, SIGINT or a closed pipe.",
    ),
}


@click.group(cls=LazyGroup, lazy=lambda: _LAZY)
def lifecycle() -> None:
    """Manage the schema `lifecycle`: accounts, tokens and the mail about them."""


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

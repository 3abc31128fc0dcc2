"""The commands `queuectl database`: the embedded PostgreSQL."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click

from pgmta.command import attached_option, config_option, reporting
from pgmta.errors import ConfigError
from pgmta.postgres.locate import configured
from queued.cli.options.queue_command import CONFIG_NAME, place_to_make


@click.group()
def database() -> None:
    """Run the embedded PostgreSQL, for one host without a PostgreSQL of its own."""


@database.command()
@config_option(CONFIG_NAME, needed=False)
@click.option(
    "--directory",
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder of the data.  [default: environment.directory]",
)
@attached_option
@reporting
def run(config: Path, directory: Path | None, attached: bool) -> None:
    """Run the embedded PostgreSQL until SIGTERM or SIGINT, and start it again if it dies.

    The first start makes it. One line says where it listens; daemons and commands find it by their
    files.
    """
    if directory is None:
        place = place_to_make(config)
        if configured(place):
            raise ConfigError([f"{config}: environment.database.uri names another PostgreSQL"])
        directory = place.directory
    arguments = [str(directory.resolve()), *(["--attached"] if attached else [])]
    # A new program, because the modules that read the file would stay in memory for nothing.
    os.execv(sys.executable, [sys.executable, "-P", "-m", "pgmta.postgres.embedded", *arguments])  # noqa: S606

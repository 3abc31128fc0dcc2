"""The commands `queuectl database`: schema, partitions and the embedded PostgreSQL."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click

from pgmta.command import attached_option, config_option, reporting
from pgmta.errors import ConfigError
from pgmta.postgres.locate import configured
from queued.cli.options.lazy_group import LazyCommand, LazyGroup
from queued.cli.options.queue_command import CONFIG_NAME, place_to_make

_LAZY = {
    "migrate": LazyCommand(
        "queued.cli.installation.migration:migrate",
        "Bring the schema up to date.",
    ),
    "partition": LazyCommand(
        "queued.cli.installation.partition:partition",
        "Show, check and change the partitions of the queue.",
    ),
}


@click.group(cls=LazyGroup, lazy=lambda: _LAZY)
def database() -> None:
    """Bring the schema up to date, change partitions, and run the embedded PostgreSQL."""


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

    It is for one host without a PostgreSQL of its own. The first start makes it. One line says
    where it listens; daemons and commands find it by their files.
    """
    if directory is None:
        place = place_to_make(config)
        if configured(place):
            raise ConfigError([f"{config}: environment.database.uri names another PostgreSQL"])
        directory = place.directory
    arguments = [str(directory.resolve()), *(["--attached"] if attached else [])]
    # A new program, because the modules that read the file would stay in memory for nothing.
    os.execv(sys.executable, [sys.executable, "-P", "-m", "pgmta.postgres.embedded", *arguments])  # noqa: S606

"""The configuration that a command reads, and the database that it works on."""

from __future__ import annotations

from pathlib import Path

import click
from click.core import ParameterSource

from pgmta.command import print_line
from pgmta.config.loader import load
from pgmta.postgres.locate import existing, resolve
from queued.config import QueuedConfig


def database_of(config: Path) -> str:
    """Return the URI of the database of a queued.yaml. Raises ConfigError, StoreUnavailable."""
    return existing(load(config, QueuedConfig).environment)


def database_to_migrate(config: Path) -> str:
    """Return the same; without `--config` and without the default file, that of the defaults.

    So `queuectl migrate` works in an empty folder: it makes the embedded PostgreSQL there. All
    other commands need the file, because in a wrong folder they would make an empty queue.
    """
    source = click.get_current_context().get_parameter_source("config")
    if config.exists() or source is not ParameterSource.DEFAULT:
        return resolve(load(config, QueuedConfig).environment)
    environment = QueuedConfig().environment
    directory = environment.directory.resolve()
    print_line(
        f"{config} does not exist: the defaults hold, with an embedded PostgreSQL in {directory}",
        err=True,
    )
    return resolve(environment)

"""The database that a configuration means."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

from pgmta.config.environment import DatabasePlace, check_uri
from pgmta.errors import ConfigError, StoreUnavailable
from pgmta.postgres.embedded.embedded_server import COMMAND, DATABASE, OWNER, EmbeddedServer

URI_VARIABLE = "PGMTA_DATABASE_URI"
"""Environment variable that names the database if the file does not."""

DIRECTORY_VARIABLE = "PGMTA_DATABASE_DIRECTORY"
"""Environment variable for the folder of the embedded PostgreSQL, before that of the file."""


def resolve(environment: DatabasePlace, role: str = OWNER) -> str:
    """Return the URI of the database; of the embedded PostgreSQL, if none is configured.

    On that one a daemon logs in by its `role`, and commands as the owner. It may not run yet.
    Raises ConfigError if the URI of the environment variable is wrong.
    """
    return configured(environment) or _embedded(environment).uri(DATABASE, role)


def absence(environment: DatabasePlace) -> str:
    """Return that the embedded PostgreSQL does not run, and how to start it; '' if it runs.

    Returns '' also if another database is configured. Raises ConfigError; ServerRefused if the
    server is another user's.
    """
    if configured(environment):
        return ""
    server = _embedded(environment)
    if server.answers():
        return ""
    start = shlex.join([*COMMAND.split(), "--directory", str(server.directory)])
    if server.exists():
        return f"the embedded PostgreSQL in {server.directory} does not run: `{start}` starts it"
    return (
        f"environment.directory: no embedded PostgreSQL in {server.directory}; give the file of an "
        f"installation by -c, or `{start}` makes one"
    )


def existing(environment: DatabasePlace) -> str:
    """Return the URI. Raises StoreUnavailable if the embedded PostgreSQL does not run."""
    if reason := absence(environment):
        raise StoreUnavailable(reason)
    return resolve(environment)


def _embedded(environment: DatabasePlace) -> EmbeddedServer:
    directory = os.environ.get(DIRECTORY_VARIABLE) or environment.directory
    return EmbeddedServer(Path(directory).resolve())


def configured(environment: DatabasePlace) -> str | None:
    """Return the URI of the file, or of the environment variable, if any. Raises ConfigError."""
    if environment.database.uri:
        return environment.database.uri
    try:
        return check_uri(os.environ[URI_VARIABLE]) if os.environ.get(URI_VARIABLE) else None
    except ValueError as error:
        raise ConfigError([f"{URI_VARIABLE}: {error}"]) from None

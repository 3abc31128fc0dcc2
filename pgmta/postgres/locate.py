"""The database that a configuration means."""

from __future__ import annotations

import os
from pathlib import Path

from pgmta.config.environment import DatabasePlace, check_uri
from pgmta.errors import ConfigError, StoreUnavailable
from pgmta.postgres.embedded.database import directory_of, join, start
from pgmta.postgres.embedded.embedded_server import DATABASE, EmbeddedServer

INHERITED = "PGMTA_DATABASE_URI"
"""Environment variable in which a parent gives its children the URI that it has resolved."""

DIRECTORY = "PGMTA_DATABASE_DIRECTORY"
"""Environment variable for the folder of the embedded PostgreSQL."""


def resolve(environment: DatabasePlace, role: str | None = None) -> str:
    """Return the URI of the database; start the embedded PostgreSQL if none is configured.

    A daemon gives its `role`: on the embedded server it logs in by that name, and keeps the server
    alive. Commands have no role and are the owner there. Raises StoreUnavailable if the embedded
    server does not start; ConfigError if the URI of the environment variable is wrong.
    """
    if environment.database.uri:
        return environment.database.uri
    directory = Path(os.environ.get(DIRECTORY) or environment.directory)
    if uri := _inherited():
        if DIRECTORY in os.environ:
            join(directory)
        return uri
    return start(directory, role, supervise=True) if role else start(directory)


def existing(environment: DatabasePlace) -> str:
    """Return the same for a command that makes no database.

    Raises StoreUnavailable also if the folder of the embedded server has none.
    """
    folder = environment.directory.resolve()
    named = environment.database.uri or INHERITED in os.environ or DIRECTORY in os.environ
    if not named and not EmbeddedServer(folder).exists():
        raise StoreUnavailable(
            f"environment.directory: no embedded PostgreSQL in {folder}; give the file of an "
            "installation by -c, or `queuectl migrate` makes one"
        )
    return resolve(environment)


def handed_down(uri: str) -> dict[str, str]:
    """Return environment variables by which `resolve` in a child returns the same URI."""
    directory = directory_of(uri)
    return {INHERITED: uri, **({DIRECTORY: str(directory)} if directory else {})}


def running(environment: DatabasePlace, role: str) -> str | None:
    """Return the URI of a database that runs already, None if the embedded one does not."""
    uri = environment.database.uri or _inherited()
    server = EmbeddedServer(environment.directory.resolve())
    return uri or (server.uri(DATABASE, role) if server.running() else None)


def _inherited() -> str | None:
    """Return the URI of the environment variable, if any. Raises ConfigError."""
    try:
        return check_uri(os.environ[INHERITED]) if os.environ.get(INHERITED) else None
    except ValueError as error:
        raise ConfigError([f"{INHERITED}: {error}"]) from None

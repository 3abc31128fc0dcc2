"""Which database a configuration means."""

from __future__ import annotations

import os

from queued.config.environment import Environment
from queued.embedded import DATABASE, Server, start

INHERITED = "POSTERN_DATABASE_URI"
"""Environment variable by which a parent tells its children what it has resolved."""


def resolve(environment: Environment) -> str:
    """Return the URI of the database, starting the embedded PostgreSQL where none is configured.

    Raises StoreUnavailable where the embedded one does not start.
    """
    if environment.database.uri:
        return environment.database.uri
    return os.environ.get(INHERITED) or start(environment.directory)


def running(environment: Environment) -> str | None:
    """URI of the database that is there already, None where the embedded one would be started."""
    uri = environment.database.uri or os.environ.get(INHERITED)
    if uri or not (environment.directory / "postgres" / "postmaster.pid").exists():
        return uri
    return Server(environment.directory.resolve()).uri(DATABASE)

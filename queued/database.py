"""Which database a configuration means."""

from __future__ import annotations

import os

from queued.config.environment import Environment
from queued.embedded import start

INHERITED = "POSTERN_DATABASE_URI"
"""Environment variable by which a parent tells its children what it has resolved."""


def resolve(environment: Environment) -> str:
    """Return the URI of the database, starting the embedded PostgreSQL where none is configured.

    Raises StoreUnavailable where the embedded one does not start.
    """
    if environment.database.uri:
        return environment.database.uri
    return os.environ.get(INHERITED) or start(environment.directory)

"""The configuration that a command reads, and the database that it works on."""

from __future__ import annotations

from pathlib import Path

from pgmta.config.loader import load
from pgmta.postgres.locate import resolve
from queued.config import QueuedConfig

CONFIG = "etc/queued.yaml"
"""The configuration of a command that is given none."""


def database_of(config: Path) -> str:
    """Return the URI of the database of a queued.yaml. Raises ConfigError, StoreUnavailable."""
    return resolve(load(config, QueuedConfig).environment)

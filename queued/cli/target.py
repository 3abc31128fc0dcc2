"""Which database a command works on."""

from __future__ import annotations

from pathlib import Path

from pgmta.config.loader import load
from pgmta.postgres.locate import resolve
from queued.config import QueuedConfig


def database_of(config: Path) -> str:
    """URI of the database that a queued.yaml means. Raises ConfigError, StoreUnavailable."""
    return resolve(load(config, QueuedConfig).environment)

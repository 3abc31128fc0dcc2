"""Which database a command works on."""

from __future__ import annotations

from pathlib import Path

from queued.config.loader import load
from queued.config.queued import QueuedConfig
from queued.database import resolve


def database_of(config: Path) -> str:
    """URI of the database that a queued.yaml means. Raises ConfigError, StoreUnavailable."""
    return resolve(load(config, QueuedConfig).environment)

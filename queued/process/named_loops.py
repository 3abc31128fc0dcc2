"""Loops of a feature that have names in queued.yaml."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass
from pathlib import Path

from pgmta.config.loader import Problem
from pgmta.service import Part
from queued.config import QueuedConfig
from queued.process.queued_process import QueuedProcess


@dataclass(frozen=True, slots=True)
class NamedLoops:
    """Loops that `queued run --worker NAME` chooses by their names, as workers.

    `kind` is the word for one of them. `begin` gets the names that were chosen, none for all.
    `check` gets the path of queued.yaml, the URI of the database, and the configuration; it returns
    what a part of the work waits for, with which the loops run. It raises ConfigError,
    StoreUnavailable or psycopg.Error if the database does not fit the loops.
    """

    kind: str
    names: Callable[[QueuedConfig], list[str]]
    begin: Callable[[QueuedProcess, Collection[str]], list[Part]]
    check: Callable[[Path, str, QueuedConfig], Awaitable[list[Problem]]]

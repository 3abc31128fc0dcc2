"""Loops of a feature that have names in queued.yaml."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from pgmta.service import Part
from queued.config import QueuedConfig
from queued.process.queued_process import QueuedProcess


@dataclass(frozen=True, slots=True)
class NamedLoops:
    """Loops that `queued run --worker NAME` chooses by their names, as workers.

    `kind` is the word for one of them. `begin` gets the names that were chosen, none for all.
    """

    kind: str
    names: Callable[[QueuedConfig], list[str]]
    begin: Callable[[QueuedProcess, Collection[str]], list[Part]]

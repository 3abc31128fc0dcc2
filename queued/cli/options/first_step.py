"""What a feature prepares for `queuectl up`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class FirstStep:
    """A step with the default configurations, once the database is there.

    `prepare`, a coroutine, gets the URI of the database. `web` says what `queued web` does for the
    feature.
    """

    prepare: Callable[[str], Awaitable[None]]
    web: str

"""What a feature prepares for `queuectl up`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class FirstStep:
    """A step with the default configurations, once the database is there.

    `prepare`, a coroutine, gets the URI of the database and the folder of its data. `served` says
    what `queued web` with etc/dev/PROCESS.yaml, which has the port, does for the feature. `hint`
    returns a command for a first mail by it, from the same folder; '' if there is none.
    """

    prepare: Callable[[str, Path], Awaitable[None]]
    served: str
    process: str
    port: int
    hint: Callable[[Path], str] = lambda _: ""

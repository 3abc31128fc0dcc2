"""What a feature prepares for `queuectl up`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path


async def _nothing(_: str, __: Path) -> None:
    """Prepare nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstStep:
    """A step with the default configurations.

    `keys` are made first, because files of etc/dev name them: KEY.key in the folder `keys`. Once
    the database is there, the coroutine `prepare` gets its URI and the folder of its data. With a
    `process` there is a `queued web` with etc/dev/PROCESS.yaml, which has the `port`; `served` says
    what it does for the feature. `hint` returns a command for a first mail by it, from the same
    folder, and what is said about it.
    """

    keys: tuple[str, ...] = ()
    prepare: Callable[[str, Path], Awaitable[None]] = _nothing
    process: str = ""
    port: int = 0
    served: str = ""
    hint: Callable[[Path], tuple[str, str] | None] = lambda _: None

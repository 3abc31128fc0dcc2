"""Waiting for conditions, and ports that no other process takes meanwhile.

No other module of the tests may sleep (ruff's TID251). A wait for a fixed time is too short on a
loaded machine, and too long on any other.
"""

from __future__ import annotations

import asyncio
import atexit
import itertools
import os
import socket
import time
from collections.abc import Awaitable, Callable
from typing import overload

PATIENCE = 60.0
"""Seconds after which what should have happened counts as not happening."""

SLACK = 10.0
"""Seconds that a loaded machine may add where a test bounds a time."""

# Below the kernel's range for outgoing connections.
_FIRST, _COUNT = 20_000, 10_000
_counter = itertools.count(os.getpid() * 97)
_claims: list[socket.socket] = []


@atexit.register
def _give_back() -> None:
    for claim in _claims:
        claim.close()


def until[T](what: Callable[[], T], timeout: float = PATIENCE, describe: str = "") -> T:
    """Return the first true value of `what()`; AssertionError when none comes in time."""
    end = time.monotonic() + timeout
    while not (value := what()):
        assert time.monotonic() < end, f"not within {timeout} s: {describe or what}"
        time.sleep(0.02)
    return value


@overload
async def eventually[T](
    what: Callable[[], Awaitable[T]], timeout: float = PATIENCE, describe: str = ""
) -> T: ...
@overload
async def eventually[T](
    what: Callable[[], T], timeout: float = PATIENCE, describe: str = ""
) -> T: ...
async def eventually(
    what: Callable[[], object], timeout: float = PATIENCE, describe: str = ""
) -> object:
    """Do the same as `until` while the event loop goes on; `what` may be a coroutine function."""
    end = time.monotonic() + timeout
    while True:
        found = what()
        if value := await found if isinstance(found, Awaitable) else found:
            return value
        assert time.monotonic() < end, f"not within {timeout} s: {describe or what}"
        await asyncio.sleep(0.01)


async def let_others_run(times: int = 1) -> None:
    """Give each task that is ready `times` turns."""
    for _ in range(times):
        await asyncio.sleep(0)


def take_time(seconds: float) -> None:
    """Be slow, as a peer, a hook or a fault is. No test waits for anything by this."""
    time.sleep(seconds)


async def take_time_async(seconds: float) -> None:
    """Do the same while the event loop goes on. The clock may be a virtual one."""
    await asyncio.sleep(seconds)


def free_port() -> int:
    """Return a port on 127.0.0.1 that nothing listens on, and that no other test process gets.

    The process that holds the UDP port of the same number, until its end, has the TCP port:
    between this probe and a server's start no other process takes it.
    """
    for _ in range(_COUNT):
        at = ("127.0.0.1", _FIRST + next(_counter) % _COUNT)
        claim = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        try:
            claim.bind(at)
            with socket.socket() as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(at)
        except OSError:
            claim.close()
            continue
        _claims.append(claim)
        return at[1]
    raise AssertionError("no free port")

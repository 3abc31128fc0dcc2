"""Waiting for conditions, and ports that nobody else takes meanwhile."""

from __future__ import annotations

import itertools
import os
import socket
import time
from collections.abc import Callable

PATIENCE = 20.0
"""Seconds after which what should have happened counts as not happening."""

# Below the kernel's range for outgoing connections, a part for each pytest-xdist worker.
_FIRST, _SHARE = 20_000, 1_000
_worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw") or 0) % 10
_counter = itertools.count(os.getpid() % _SHARE)


def until[T](what: Callable[[], T], timeout: float = PATIENCE, describe: str = "") -> T:
    """Return the first true value of `what()`; AssertionError when none comes in time."""
    end = time.monotonic() + timeout
    while not (value := what()):
        assert time.monotonic() < end, f"not within {timeout} s: {describe or what}"
        time.sleep(0.02)
    return value


def free_port() -> int:
    """Return a port on 127.0.0.1 that nothing listens on."""
    for _ in range(_SHARE):
        port = _FIRST + _worker * _SHARE + next(_counter) % _SHARE
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise AssertionError("no free port")

"""Signals of a daemon, from its first line on.

The module imports almost nothing. A daemon calls `catch` before its slow imports, so that no
signal ends it half started.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)

_early: set[int] = set()
_receivers: list[Callable[[int], None]] = []


def catch() -> None:
    """Keep the signals that come before `receive`; none of them ends the process."""
    for number in (*STOP_SIGNALS, signal.SIGHUP):
        signal.signal(number, _caught)


@contextmanager
def kept() -> Iterator[None]:
    """Keep the signals of a daemon as long as the context lasts, and ignore them then.

    The end of Python would give each its default, so that one would decide the exit code.
    """
    catch()
    try:
        yield
    finally:
        for number in (*STOP_SIGNALS, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)


@contextmanager
def defaults() -> Iterator[None]:
    """Have a signal to stop end the process at once, as while it reads files that may block."""
    before = {number: signal.signal(number, signal.SIG_DFL) for number in STOP_SIGNALS}
    try:
        if stop_came():
            sys.exit(0)
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def receive(receiver: Callable[[int], None]) -> set[int]:
    """Return the signals that came before; `receiver` gets every later one."""
    catch()
    _receivers[:] = [receiver]
    early = set(_early)
    _early.clear()
    return early


def stop_came() -> bool:
    """Return whether a signal to end waits for `receive`."""
    return not _early.isdisjoint(STOP_SIGNALS)


def _caught(number: int, _: object) -> None:
    if _receivers:
        _receivers[0](number)
    else:
        _early.add(number)

"""Parts of every daemon: signals as events, waits for events and tasks, memory settings."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import os
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from pgmta import signals
from pgmta.errors import FormerDatabase
from pgmta.logs import get

_STDIN = 0
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # malloc.h
_KEPT = 32 << 20  # octets free at the top of the heap that stay with a process

log = get("service")


class Signals:
    """`stop` is set by SIGTERM or SIGINT, `reload` by SIGHUP (the daemon clears it).

    Signals that came since `signals.catch` count too. The handlers stay for the rest of the
    process. So no signal ends a daemon that is about to return.
    """

    def __init__(self) -> None:
        self.stop = asyncio.Event()
        self.reload = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        for number in signals.receive(self._received):
            self._event(number).set()

    def attach(self, asked: Callable[[], None] | None = None) -> None:
        """Take the end of standard input for SIGTERM: a pipe that the parent holds open.

        So the process ends with its parent, after any end of the parent. `asked` is called when
        the parent writes something.
        """
        self._loop.add_reader(_STDIN, self._watch, asked)

    def _watch(self, asked: Callable[[], None] | None) -> None:
        if not os.read(_STDIN, 512):
            self._loop.remove_reader(_STDIN)
            self.stop.set()
        elif asked:
            asked()

    def _event(self, number: int) -> asyncio.Event:
        return self.stop if number in signals.STOP else self.reload

    def _received(self, number: int) -> None:
        with suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self._event(number).set)


async def first(*events: asyncio.Event, timeout: float | None = None) -> bool:
    """Wait until one of the events is set; return False if `timeout` seconds pass before."""
    if any(event.is_set() for event in events):
        return True
    tasks = [asyncio.create_task(event.wait()) for event in events]
    try:
        done, _ = await asyncio.wait(tasks, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        return bool(done)
    finally:
        for task in tasks:
            task.cancel()


def report_error(part: str, task: asyncio.Task[Any], stop: asyncio.Event | None = None) -> None:
    """Log the error by which a task ends, and set `stop`: that is a defect.

    `part` is the name of the task in the log.
    """

    def ended(task: asyncio.Task[Any]) -> None:
        if task.cancelled() or not (error := task.exception()):
            return
        if not isinstance(error, FormerDatabase):  # the command says it, and ends
            log.critical("a part of the process failed", part=part, exc_info=error)
        if stop:
            stop.set()

    task.add_done_callback(ended)


def trim_memory() -> None:
    """Collect garbage, and give memory that malloc keeps back to the system.

    It takes some milliseconds.
    """
    gc.collect()
    with suppress(AttributeError, OSError):  # another C library than glibc
        ctypes.CDLL(None).malloc_trim(0)


def tune_memory() -> None:
    """Set the garbage collector and malloc up for a daemon that runs for long.

    The collector skips the objects that exist now, because a daemon makes few cycles: with the
    usual thresholds collections took a fiftieth of its time. malloc keeps memory of content for
    the next message and does not give it back to the system. To get it anew took a sixth of the
    time of smtpd with messages of 10 MB.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)
    with suppress(AttributeError, OSError):  # another C library than glibc
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_M_TRIM_THRESHOLD, _KEPT)
        mallopt(_M_MMAP_THRESHOLD, _KEPT)

"""Parts of every daemon: signals, waits, memory settings, notes to systemd."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import math
import mmap
import os
import socket
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

from pgmta import signals
from pgmta.errors import FormerDatabase
from pgmta.logs import get

_STDIN = 0
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # malloc.h
# sd_notify(3)
_SOCKET_VARIABLE, _PERIOD_VARIABLE, _OWNER_VARIABLE = (
    "NOTIFY_SOCKET",
    "WATCHDOG_USEC",
    "WATCHDOG_PID",
)
_BEAT_S = 0.5  # parts of a process wake together at multiples of this time
_TIMER_SLACK_S = 0.001  # timers have whole milliseconds and may be early
# before a part begins again that an error has ended: first, and longest
_RESTART_PAUSES_S = (1.0, 60.0)
_KEPT_HEAP_OCTETS = 32 << 20  # free memory at the top of the heap that glibc does not return

log = get("service")

type Part = Callable[[], Coroutine[Any, Any, None]]
"""Work that lasts as long as its daemon."""


class Signals:
    """`stop` is set by SIGTERM or SIGINT, `reload` by SIGHUP (the daemon clears it).

    Signals that came since `signals.catch` count too. The handlers stay for the rest of the
    process. So no signal ends a daemon that is about to return. `orphaned` says that the end of an
    attached parent has set `stop`.
    """

    def __init__(self) -> None:
        self.orphaned = False
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
            self.orphaned = True
            self.stop.set()
        elif asked:
            asked()

    def _event(self, number: int) -> asyncio.Event:
        return self.stop if number in signals.STOP_SIGNALS else self.reload

    def _received(self, number: int) -> None:
        with suppress(RuntimeError):  # raised if the loop has ended
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


def together(seconds: float) -> float:
    """Return a pause that ends with those of others of the process, at most half a second earlier.

    A process that wakes once for many parts takes less than one that wakes for each.
    """
    if seconds < _BEAT_S:
        return seconds
    now = time.monotonic()
    return math.floor((now + seconds) / _BEAT_S) * _BEAT_S - now + _TIMER_SLACK_S


def rest_after(took: float, longest: float = math.inf) -> float:
    """Return the pause after work that may be dear, as over dead rows: 20 times what it took."""
    return min(20 * took, longest)


def start_part(part: str, work: Part, stop: asyncio.Event | None = None) -> asyncio.Task[None]:
    """Start work that shall last as long as its daemon, under the name `part`; return its task.

    An error that ends the work is a defect. The log has it, and the work begins again: after a
    second, and after a minute at most while it goes on to fail. So no part of a daemon is missing
    without an end of the daemon. FormerDatabase ends the task, and sets `stop`.
    """
    task = asyncio.create_task(_keep_working(part, work))
    report_error(part, task, stop)
    return task


async def _keep_working(part: str, work: Part) -> None:
    pause, longest = _RESTART_PAUSES_S
    while True:
        began = time.monotonic()
        try:
            await work()
            return
        except FormerDatabase:
            raise
        except Exception as error:
            if time.monotonic() - began > longest:
                pause = _RESTART_PAUSES_S[0]
            log.critical("a part of the process failed, and begins again", part=part,
                         after=pause, exc_info=error)  # fmt: skip
        await asyncio.sleep(pause)
        pause = min(2 * pause, longest)


def report_error(part: str, task: asyncio.Task[Any], stop: asyncio.Event | None = None) -> None:
    """Log the error by which a task ends, and set `stop`: it is a part that can't begin again.

    `part` is the name of the task in the log.
    """

    def ended(task: asyncio.Task[Any]) -> None:
        if task.cancelled() or not (error := task.exception()):
            return
        if not isinstance(error, FormerDatabase):  # the command itself prints the reason, and ends
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
    trim_memory()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)
    with suppress(AttributeError, OSError):  # another C library than glibc
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_M_TRIM_THRESHOLD, _KEPT_HEAP_OCTETS)
        mallopt(_M_MMAP_THRESHOLD, _KEPT_HEAP_OCTETS)


def release_memory(buffer: memoryview) -> None:
    """Give the whole pages of a buffer back to the system: they are real again once used.

    The content is lost.
    """
    # fails with another C library than glibc, or for an empty buffer
    with suppress(AttributeError, OSError, ValueError):
        start = ctypes.addressof(ctypes.c_char.from_buffer(buffer))
        first = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE
        octets = (start + len(buffer) - first) // mmap.PAGESIZE * mmap.PAGESIZE
        if octets > 0:
            ctypes.CDLL(None).madvise(
                ctypes.c_void_p(first), ctypes.c_size_t(octets), mmap.MADV_DONTNEED
            )


class ServiceManager:
    """The systemd that has started this process; without NOTIFY_SOCKET notes go nowhere.

    The variables leave the environment, so that no child sends notes for its parent.
    """

    def __init__(self) -> None:
        address = os.environ.pop(_SOCKET_VARIABLE, "")
        period, owner = os.environ.pop(_PERIOD_VARIABLE, ""), os.environ.pop(_OWNER_VARIABLE, "")
        self._address = "\0" + address[1:] if address.startswith("@") else address
        ours = owner in ("", str(os.getpid())) and period.isdecimal()
        self._period = int(period) / 1e6 if ours and self._address else 0.0

    def ready(self, status: str) -> None:
        """Say that the daemon serves, also at the end of a reload."""
        self._send("READY=1", f"STATUS={status}")

    def status(self, text: str) -> None:
        """Say what the daemon does, for `systemctl status`."""
        self._send(f"STATUS={text}")

    def reloading(self) -> None:
        """Say that the configuration is read again; `ready` ends it."""
        self._send("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}")

    def stopping(self) -> None:
        """Say that the daemon ends."""
        self._send("STOPPING=1", "STATUS=ends its connections")

    async def keep_watch(self) -> None:
        """Say that the event loop turns, twice per period of the watchdog, until cancelled."""
        while self._period:
            self._send("WATCHDOG=1")
            await asyncio.sleep(self._period / 2)

    def _send(self, *lines: str) -> None:
        if not self._address:
            return
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
            sock.setblocking(False)  # so that a full queue of systemd never blocks the daemon
            sock.connect(self._address)
            sock.send("\n".join(lines).encode())

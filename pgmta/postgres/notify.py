"""LISTEN that survives a lost connection, and NOTIFY at a limited rate."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

import psycopg
from psycopg.pq import ConnStatus

from pgmta.errors import StoreUnavailable
from pgmta.postgres.link_connection import LinkConnection
from pgmta.postgres.resources import Resources
from pgmta.service import start_part

CHANNEL: Final = "pgmta_queue"
NOTIFY: Final = f"SELECT pgmta.notify_channel('{CHANNEL}')"
"""Wakes the workers; functions of the database execute the same."""
ORDERS: Final = "pgmta_orders"
"""Tells every process that an operator has given an order; functions of features execute it."""
_LAST_NOTIFY_TIMEOUT_S = 1.0  # for a notification that is due when its process stops
_RECONNECT_PAUSE_S = 0.5
QUIET_S = 0.05  # so long after the last NOTIFY a transaction has its own again
_NOTIFY_INTERVAL_S = 0.02  # of one process, at least


class News:
    """Changes that NOTIFY reports: the reader looks at the tables then, and seldom else."""

    def __init__(self) -> None:
        self.came = asyncio.Event()
        """Set by a notification, and when `heard` changes: one may have been missed."""
        self.heard = False
        """Whether notifications arrive now."""

    def set_heard(self, heard: bool) -> None:
        """Note that a connection listens, or that none does."""
        self.heard = heard
        self.came.set()


async def listen(
    resources: Resources, wakes: Sequence[Callable[[], float]], orders: News | None = None
) -> None:
    """Call `wakes` at every notification and after every (re)connect; runs until cancelled.

    Each wakes a worker, and returns the seconds in which it needs no further notifications, because
    others have the turn. Listening stops while that holds for all of them, and they are called once
    more afterwards. PostgreSQL then wakes one worker per message and not all. Notifications are
    hints and may be lost, so workers also poll. `orders` hear all the time.
    """
    news = orders or News()

    def told(channels: set[str]) -> float:
        if ORDERS in channels:
            news.came.set()
        if CHANNEL in channels:
            return min([wake() for wake in wakes], default=0.0)
        return 0.0

    while True:
        try:
            connection = await resources.connect("listen")
            # psycopg itself reads those that come during LISTEN; a needless look costs little
            connection.add_notify_handler(lambda note: news.came.set())
            try:
                await connection.execute(f"LISTEN {ORDERS}")
                news.set_heard(True)
                while True:
                    await connection.execute(f"LISTEN {CHANNEL}")
                    for wake in wakes:
                        wake()
                    seconds = await _pass_on(connection, told)
                    await connection.execute(f"UNLISTEN {CHANNEL}")
                    with suppress(TimeoutError):
                        async with asyncio.timeout(seconds):
                            await _pass_on(connection, told)
            finally:
                news.set_heard(False)
                await connection.close()
        except psycopg.Error:
            await asyncio.sleep(_RECONNECT_PAUSE_S)


async def _pass_on(connection: LinkConnection, told: Callable[[set[str]], float]) -> float:
    """Give `told` the channels of notifications until it returns seconds; return those.

    No task wakes for a notification. Raises psycopg.Error.
    """
    loop, libpq = asyncio.get_running_loop(), connection.pgconn
    number = libpq.socket
    rest: asyncio.Future[float] = loop.create_future()

    def readable() -> None:
        try:
            libpq.consume_input()
            while connection.broken:  # libuv reports an error only once
                libpq.consume_input()
            channels = set()
            while note := libpq.notifies():
                channels.add(note.relname.decode())
            seconds = told(channels)
        except Exception as error:
            # at once: libpq may have closed the socket, and another may soon have its number
            loop.remove_reader(number)
            if not rest.done():
                rest.set_exception(error)
        else:
            if seconds and not rest.done():
                rest.set_result(seconds)

    loop.add_reader(number, readable)
    try:
        return await rest
    finally:
        if libpq.status == ConnStatus.OK:
            loop.remove_reader(number)


class Notifier:
    """Wakes the workers after mail was committed.

    A statement outside of that transaction does it, because transactions with a NOTIFY commit one
    after the other. After a quiet time the transaction has it itself: that saves a commit.
    """

    def __init__(self, resources: Resources) -> None:
        self._link = resources.link("notify")
        self._task: asyncio.Task[None] | None = None
        self._last = -math.inf  # when the last NOTIFY went out, by the monotonic clock
        self.quiet_at = -math.inf
        """After this time of the monotonic clock a transaction may have its own NOTIFY."""
        self._quiet = asyncio.Event()  # nothing is due, and none is being sent
        self._quiet.set()
        self.due = asyncio.Event()
        """Set it to have a NOTIFY sent: at once after a quiet time, else one for many."""

    def start(self) -> None:
        """Begin to wait for `due`."""
        self._task = start_part("notify", self._run)

    async def _run(self) -> None:
        while True:
            await self.due.wait()
            self._quiet.clear()
            await asyncio.sleep(max(0.0, self._last + _NOTIFY_INTERVAL_S - time.monotonic()))
            self.due.clear()
            self.count()
            with suppress(StoreUnavailable, psycopg.Error):  # the workers poll as well
                await self._link.run(NOTIFY)
            if not self.due.is_set():
                self._quiet.set()

    def count(self) -> None:
        """Note that a NOTIFY goes out."""
        self._last = time.monotonic()
        self.quiet_at = self._last + QUIET_S

    async def close(self) -> None:
        """Send a NOTIFY that is due, if PostgreSQL answers in time."""
        if task := self._task:
            await asyncio.sleep(0)  # lets the task see that a NOTIFY is due
            with suppress(TimeoutError):
                await asyncio.wait_for(self._quiet.wait(), _LAST_NOTIFY_TIMEOUT_S)
            task.cancel()
            await asyncio.wait([task])

"""Threads that check passwords: few, so that memory and processors are left for mail."""

from __future__ import annotations

import asyncio
import os
import threading
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from pgmta.password import matches
from smtpd.auth.authenticator import AuthUnavailable

_WAITING = 500  # passwords that wait for a thread, of users from own networks and of others
_NICE = 15  # below the sessions: an attack costs their mail little


class Passwords:
    """Checks a few passwords at a time; users from own networks come first."""

    def __init__(self, threads: int) -> None:
        self._pool = ThreadPoolExecutor(threads, "password", initializer=_give_way)
        self._free = threads
        self._first: deque[asyncio.Future[None]] = deque()
        self._others: deque[asyncio.Future[None]] = deque()

    async def match(self, known: str, password: bytes, *, first: bool) -> bool:
        """Return whether a prepared password has a hash.

        `first` has it checked before others. Raises AuthUnavailable if too many wait, and
        ValueError for a hash that is malformed or costs too much.
        """
        await self._turn(self._first if first else self._others)
        loop = asyncio.get_running_loop()
        check = loop.run_in_executor(self._pool, matches, known, password)
        check.add_done_callback(self._next)
        return await asyncio.shield(check)  # the thread goes on without the session

    async def _turn(self, queue: deque[asyncio.Future[None]]) -> None:
        if self._free:
            self._free -= 1
            return
        if len(queue) >= _WAITING:
            raise AuthUnavailable("too many logins wait for their password to be checked")
        turn = asyncio.get_running_loop().create_future()
        queue.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._next()
            raise

    def _next(self, ended: asyncio.Future[bool] | None = None) -> None:
        """Give the thread that became free to the next in turn."""
        if ended and not ended.cancelled():
            ended.exception()  # the session gets it, if it still waits
        for queue in (self._first, self._others):
            while queue:
                turn = queue.popleft()
                if not turn.done():
                    turn.set_result(None)
                    return
        self._free += 1

    def close(self) -> None:
        """End the threads, without waiting for them."""
        self._pool.shutdown(wait=False, cancel_futures=True)


def _give_way() -> None:
    """Make the thread nice. Only Linux has this for single threads."""
    with suppress(OSError, AttributeError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)

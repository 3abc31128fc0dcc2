"""Threads that check passwords: few, so that memory and processors are left for mail."""

from __future__ import annotations

import asyncio
import os
import threading
from collections import OrderedDict, deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from pgmta.accounts.authenticator import AuthUnavailable
from pgmta.password import matches

_WAITING = 500  # passwords that wait for a thread, of users from own networks and of others
_MANY = "too many logins wait for their password to be checked"
_NICE = 15  # below the sessions: an attack costs their mail little


class Turns:
    """Logins that wait for a thread. The addresses take turns, however many wait of each."""

    def __init__(self) -> None:
        self._waiting: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()
        self._count = 0

    def queue(self, address: str) -> asyncio.Future[None]:
        """Return the turn of a login from an address.

        If too many wait, the address with the most of them loses its last one.
        Raises AuthUnavailable if that is this one.
        """
        if self._count >= _WAITING:
            most = max(self._waiting.values(), key=len)
            if len(most) <= len(self._waiting.get(address, ())) + 1:
                raise AuthUnavailable(_MANY)
            self._count -= 1
            lost = most.pop()
            if not lost.done():
                lost.set_exception(AuthUnavailable(_MANY))
        turn = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(address, deque()).append(turn)
        self._count += 1
        return turn

    def give(self) -> bool:
        """Give the thread that became free to the next in turn; return whether one waited."""
        while self._waiting:
            address, turns = self._waiting.popitem(last=False)
            turn = turns.popleft()
            self._count -= 1
            if turns:
                self._waiting[address] = turns  # behind the other addresses
            if not turn.done():
                turn.set_result(None)
                return True
        return False


class Passwords:
    """Checks a few passwords at a time; users from own networks come first."""

    def __init__(self, threads: int) -> None:
        self._pool = ThreadPoolExecutor(threads, "password", initializer=_give_way)
        self._free = threads
        self._first, self._others = Turns(), Turns()

    async def match(self, known: str, password: bytes, address: str, *, first: bool) -> bool:
        """Return whether a prepared password has a hash. `address` is that of the client.

        `first` has it checked before others. Raises AuthUnavailable if too many wait, and
        ValueError for a hash that is malformed or costs too much.
        """
        await self._turn(self._first if first else self._others, address)
        loop = asyncio.get_running_loop()
        check = loop.run_in_executor(self._pool, matches, known, password)
        check.add_done_callback(self._next)
        return await asyncio.shield(check)  # the thread goes on without the session

    async def _turn(self, turns: Turns, address: str) -> None:
        if self._free:
            self._free -= 1
            return
        turn = turns.queue(address)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled() and not turn.exception():
                self._next()
            raise

    def _next(self, ended: asyncio.Future[bool] | None = None) -> None:
        """Give the thread that became free to the next in turn."""
        if ended and not ended.cancelled():
            ended.exception()  # the session gets it, if it still waits
        if not (self._first.give() or self._others.give()):
            self._free += 1

    def close(self) -> None:
        """End the threads, without waiting for them."""
        self._pool.shutdown(wait=False, cancel_futures=True)


def _give_way() -> None:
    """Make the thread nice. Only Linux has this for single threads."""
    with suppress(OSError, AttributeError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)

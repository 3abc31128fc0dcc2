"""Runs the hooks of one handler, so that none of them holds up a session of others."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import Any

from pgmta.logs import get
from smtpd.config.hooks import HookLimits
from smtpd.hooks.call import Done, HookCall, HookTimeout
from smtpd.hooks.methods import Method
from smtpd.hooks.thread import HookPool, HookThread

MAX_CALLS = 2000  # open ones of a handler; with more its sessions get 451 4.3.0
_LOOK_INTERVAL_S = 0.1  # at the thread, while calls are open
_END_TIMEOUT_S = 1.0  # for threads to end
_NO_PROGRESS = -1

log = get("hooks")


class HookOverload(Exception):
    """More calls are open than permitted, or no thread can be expected to become free."""


class HookRunner:
    """Runs calls in one thread with one event loop, or each in a thread of a pool.

    All methods of a handler run in one event loop, because its connections and locks belong to a
    loop. While a hook blocks that loop, further calls run in the pool. With `pooled` all do.
    """

    def __init__(self, name: str, limits: HookLimits, *, pooled: bool = False) -> None:
        self.name = name
        self.calls = 0
        """Calls so far."""
        self.seconds = 0.0
        """How long those took that have ended."""
        self._time_s = limits.time
        self._pooled = pooled
        self._loop = asyncio.get_running_loop()
        self._thread = HookThread(f"hook {name}", self._loop, self._came)
        self._pool = HookPool(name, limits.threads, self._loop, self._came)
        self._open: dict[HookCall, None] = {}  # calls that sessions wait for, the oldest first
        self._count = 0  # number of calls that no thread has given back
        self._blocked = False  # whether a hook keeps the thread while calls wait
        self._progress = _NO_PROGRESS  # that of the thread at the last look, if calls waited then
        self._looked = 0.0  # time of the last look
        self._look_handle: asyncio.TimerHandle | None = None
        self._stopped = False
        self._idle = asyncio.Event()

    def run_function[T](self, function: Callable[[], T]) -> Future[T]:
        """Call a function in the thread of the handler."""
        return self._thread.run_function(function)

    def call(
        self,
        method: Method,
        rescue: Method | None,
        arguments: tuple[Any, ...],
        done: Done,
        *,
        asks: bool = False,
    ) -> HookCall:
        """Call a hook; `done` gets its answer, or an error, later, in the loop of the sessions.

        The error is what the hook raised, HookTimeout after its time, or HookOverload. A call that
        `asks` the client further questions occupies no thread of the pool.
        """
        self.calls += 1
        now = self._loop.time()
        call = HookCall(method, rescue, arguments, done, now, now + self._time_s)
        pooled = (self._pooled and not asks) or self._blocked
        refusal = ""
        if self._stopped or self._count >= MAX_CALLS:
            refusal = f"{self._count} calls are open"
        elif pooled and self._pool.hangs(now):
            refusal = "no thread is free: the calls that run have outlived their time"
        if refusal:
            self._loop.call_soon(self._finish, call, HookOverload(refusal))
            return call
        self._count += 1
        self._watch(call)
        if pooled:
            self._pool.put_call(call)
        else:
            self._thread.put_call(call)
        return call

    def pause(self, call: HookCall) -> None:
        """Stop the time of a call, because it waits for the client."""
        self._open.pop(call, None)

    def go_on(self, call: HookCall) -> None:
        """Give a call that was paused its whole time again."""
        if not call.over:
            call.deadline = self._loop.time() + self._time_s
            self._watch(call)

    def _watch(self, call: HookCall) -> None:
        self._open[call] = None
        if not self._look_handle:
            self._look_handle = self._loop.call_later(_LOOK_INTERVAL_S, self._look)

    async def stop(self, grace: float) -> None:
        """Wait for open calls as long as `grace` seconds, then cancel them and end the threads."""
        if self._open:
            self._idle.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._idle.wait(), grace)
        self._stopped = True
        for call in list(self._open):
            self._give_up(call, HookTimeout("smtpd stops"))
        if self._look_handle:
            self._look_handle.cancel()
        self._thread.stop()
        self._pool.stop()
        await asyncio.to_thread(self._join)

    def _join(self) -> None:
        end = time.monotonic() + _END_TIMEOUT_S
        for thread in (self._thread.thread, *self._pool.threads):
            thread.join(max(0.0, end - time.monotonic()))

    def _came(self, call: HookCall) -> None:
        """Take a call back from its thread."""
        self._count -= 1
        self._open.pop(call, None)
        try:
            self._finish(call)
        except Exception as error:  # of one session: the others still get their answers
            log.error("error after a hook", exc_info=error)
        if not self._open:
            self._idle.set()

    def _finish(self, call: HookCall, error: Exception | None = None) -> None:
        if not call.over:
            self.seconds += self._loop.time() - call.began
            call.finish(error)

    def _give_up(self, call: HookCall, error: Exception) -> None:
        self._open.pop(call, None)
        if not call.over:
            self._finish(call, error)
            call.cancel()

    def _look(self) -> None:
        """Give up calls whose time is over, and see whether a hook blocks the thread."""
        now = self._loop.time()
        for call in list(self._open):
            if call.deadline > now and not call.over:
                break
            self._give_up(call, HookTimeout(f"no answer after {self._time_s:g} s"))
        self._thread.deliver()  # the answers of calls before the one that blocks
        self._look_at_thread(late=now > self._looked + 2 * _LOOK_INTERVAL_S)
        self._looked = now
        self._look_handle = (
            self._loop.call_later(_LOOK_INTERVAL_S, self._look) if self._open else None
        )

    def _look_at_thread(self, *, late: bool) -> None:
        """Note whether the thread is blocked; a `late` look proves nothing, as all was late."""
        thread = self._thread
        if thread.progress != self._progress or (late and not self._blocked):
            if self._blocked:
                log.info("hook serves again", hook=self.name)
            self._blocked = False
            self._progress = thread.progress if thread.queue else _NO_PROGRESS
        elif not self._blocked:
            log.warning("hook blocks its thread", hook=self.name, place=thread.place())
            self._blocked = True
            with suppress(IndexError):  # raised if the thread has taken the last call
                while True:
                    self._pool.put_call(thread.queue.popleft())

"""Threads for a handler that may block: `sync: thread` in smtpd.yaml."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue

import uvloop

from pgmta.logs import get
from smtpd.hooks.call import HookCall
from smtpd.hooks.thread import interrupt

_INTERRUPT = 1.0  # seconds between two interruptions of a call that no session waits for

log = get("hooks")


class HookPool:
    """Runs each call in a thread that it has for itself, with an event loop.

    A thread starts when no other one is free, up to `most`. Then calls wait for one.
    """

    def __init__(
        self,
        name: str,
        most: int,
        main: asyncio.AbstractEventLoop,
        done: Callable[[HookCall], None],
    ) -> None:
        self._name = name
        self._most = most
        self._main = main
        self._done = done
        self._queue: SimpleQueue[HookCall | None] = SimpleQueue()
        self._workers: list[_Worker] = []
        self._calls = 0  # that no thread has given back

    def put(self, call: HookCall) -> None:
        """Hand a call over."""
        self._calls += 1
        if self._calls > len(self._workers) < self._most:
            worker = _Worker(f"hook {self._name} pool {len(self._workers) + 1}", self)
            self._workers.append(worker)
            worker.start()
        self._queue.put(call)

    def look(self, now: float) -> None:
        """Interrupt the threads whose call is over for its session; `now` is of its loop."""
        for worker in self._workers:
            call = worker.call
            if call and call.over and now >= worker.interrupted + _INTERRUPT:
                worker.interrupted = now
                interrupt(worker.ident)

    def stop(self) -> None:
        """End the threads, each after its call."""
        for _ in self._workers:
            self._queue.put(None)

    def join(self, seconds: float) -> None:
        """Wait for the end of each thread, at most `seconds` for each."""
        for worker in self._workers:
            if not worker.call:
                worker.join(seconds)

    def take(self) -> HookCall | None:
        """Wait for the next call, in a thread of the pool; None: the thread ends."""
        return self._queue.get()

    def give_back(self, call: HookCall) -> None:
        """Give a call back to the sessions, from a thread of the pool."""
        with suppress(RuntimeError):  # the process ends, and no session waits
            self._main.call_soon_threadsafe(self._came, call)

    def _came(self, call: HookCall) -> None:
        self._calls -= 1
        try:
            self._done(call)
        except Exception as error:  # of one session: the others have theirs
            log.error("error after a hook", exc_info=error)


class _Worker:
    """One thread of a pool."""

    def __init__(self, name: str, pool: HookPool) -> None:
        self._pool = pool
        self.call: HookCall | None = None
        self.interrupted = 0.0
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def join(self, seconds: float) -> None:
        self._thread.join(seconds)

    @property
    def ident(self) -> int:
        return self._thread.ident or 0

    def _run(self) -> None:
        loop = uvloop.new_event_loop()
        asyncio.set_event_loop(loop)
        loop.set_exception_handler(lambda _, context: None)  # what failed is answered for
        while True:
            call: HookCall | None = None
            try:
                call = self._pool.take()
                if not call:
                    break
                self._serve(call, loop)
            except BaseException as error:  # the interruption came late, or the loop was ended
                if call and not (call.answer or call.error):
                    call.error = error
            finally:
                self.call = None
                if call:
                    self._pool.give_back(call)
        loop.close()

    def _serve(self, call: HookCall, loop: asyncio.AbstractEventLoop) -> None:
        self.call = call
        if call.over:
            return
        call.loop = loop
        task = loop.create_task(_perform(call, loop))
        call.task = task
        loop.run_until_complete(task)


async def _perform(call: HookCall, loop: asyncio.AbstractEventLoop) -> None:
    try:
        call.arguments[1].loop = loop  # hooks make timers and futures with session.loop
        call.answer = await call.method(*call.arguments)
    except BaseException as error:  # a hook that ends its task ends neither thread nor process
        await call.rescued(error)

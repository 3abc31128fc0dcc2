"""Threads in which hooks run: one with an event loop for many calls, and a pool of further ones."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from itertools import islice
from os.path import dirname
from queue import SimpleQueue
from sys import _current_frames  # documented in Python's library reference
from typing import Any

import uvloop

from smtpd.hooks.call import HookCall

_OWN = dirname(__file__)
_CANCEL_TIMEOUT_S = 1.0  # for a hook to end when it is cancelled

type GiveBack = Callable[[HookCall], None]
"""Takes a call back from its thread, in the loop of the sessions."""


class HookThread:
    """Takes calls in batches, and gives them back in batches.

    A wake-up of a thread costs more than a call. So each side wakes the other one only if that one
    is not awake already. A task starts eagerly: a hook that awaits nothing ends in its first step.
    """

    def __init__(self, name: str, main: asyncio.AbstractEventLoop, give_back: GiveBack) -> None:
        self._loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
        self._main = main
        self._give_back = give_back
        self.queue: deque[HookCall] = deque()
        """Calls that the thread has not begun."""
        self.progress = 0
        """Grows with each call that the thread begins, and whenever it has emptied the queue."""
        self._awake = False  # whether the thread is about to look at the queue
        self._answers: deque[HookCall] = deque()
        self._batch = False  # whether answers leave together, after the calls at hand
        self._signalled = False  # whether the sessions' loop is about to look at the answers
        self._stopping = False
        self.thread = threading.Thread(target=self._run, name=name, daemon=True)
        self.thread.start()

    def stop(self) -> None:
        """Cancel what runs, and end the thread when its hooks give it back."""
        self._stopping = True
        self._loop.call_soon_threadsafe(self._stop)

    def put_call(self, call: HookCall) -> None:
        """Hand a call over."""
        call.loop = self._loop
        self.queue.append(call)
        if not self._awake:
            self._awake = True
            # after this round of the sessions' loop, so that all its calls need one wake-up
            self._main.call_soon(self._loop.call_soon_threadsafe, self._take)

    def run_function[T](self, function: Callable[[], T]) -> Future[T]:
        """Call a function in the thread; the future gets what it returns or raises."""

        async def work() -> T:
            return function()

        return asyncio.run_coroutine_threadsafe(work(), self._loop)

    def place(self) -> str:
        """Return the line of the hook that the thread executes now, or '' if it executes none."""
        frame, inner = _current_frames().get(self.thread.ident or 0), None
        while frame and dirname(frame.f_code.co_filename) != _OWN:
            inner, frame = frame, frame.f_back
        if not (frame and inner):
            return ""
        return f"{inner.f_code.co_qualname} ({inner.f_code.co_filename}:{inner.f_lineno})"

    def _run(self) -> None:
        _use(self._loop)
        while not self._stopping:
            with suppress(BaseException):  # for example SystemExit by a callback of a hook
                self._loop.run_forever()
        self._loop.close()

    def _stop(self) -> None:
        for task in asyncio.all_tasks(self._loop):
            task.cancel()
        self._loop.call_later(0.05, self._loop.stop)  # after the tasks have ended

    def _take(self) -> None:
        self._awake = False
        queue, loop = self.queue, self._loop
        try:
            while queue:
                try:
                    call = queue.popleft()
                except IndexError:  # the thread of the sessions has taken the call back
                    break
                self.progress += 1
                if call.over:
                    self._answers.append(call)
                    continue
                # a hook that awaits nothing answers in this batch
                self._batch = True
                task: asyncio.Task[Any] = asyncio.Task(
                    self._perform(call), loop=loop, eager_start=True
                )
                self._batch = False
                if not task.done():
                    call.task = task
        finally:
            self._batch = False
            self.progress += 1
            self._answer()

    async def _perform(self, call: HookCall) -> None:
        try:
            await call.perform()
        finally:
            self._answers.append(call)
            if not self._batch:
                self._answer()

    def _answer(self) -> None:
        """Have the sessions' loop look at the answers."""
        if self._answers and not self._signalled:
            self._signalled = True
            try:
                self._main.call_soon_threadsafe(self.deliver)
            except RuntimeError:  # raised while the process ends, when no session waits
                self._signalled = False

    def deliver(self) -> None:
        """Give the answers so far to the sessions, in the thread of those."""
        self._signalled = False
        answers = self._answers
        while answers:
            self._give_back(answers.popleft())


class HookPool:
    """At most `most` threads, each with an event loop, that run one call at a time.

    A thread starts when no other one is free. They are daemon threads: the process ends although a
    hook never gives its thread back.
    """

    def __init__(
        self, name: str, most: int, main: asyncio.AbstractEventLoop, give_back: GiveBack
    ) -> None:
        self._name = name
        self._most = most
        self._main = main
        self._give_back = give_back
        self._queue: SimpleQueue[HookCall | None] = SimpleQueue()
        self.threads: list[threading.Thread] = []
        self._open: dict[HookCall, None] = {}  # calls that no thread has given back, oldest first

    def hangs(self, now: float) -> bool:
        """Return whether each thread runs a call that has outlived its deadline."""
        if len(self._open) < self._most:
            return False
        running = islice(self._open, self._most)  # calls begin in the order in which they came
        return all(now > call.deadline + _CANCEL_TIMEOUT_S for call in running)

    def put_call(self, call: HookCall) -> None:
        """Hand a call over."""
        call.loop = None  # HookThread may have set its own loop, but has the call no longer
        self._open[call] = None
        if len(self._open) > len(self.threads) < self._most:
            name = f"hook {self._name} pool {len(self.threads) + 1}"
            thread = threading.Thread(target=self._run, name=name, daemon=True)
            self.threads.append(thread)
            thread.start()
        self._queue.put(call)

    def stop(self) -> None:
        """End the threads, each after its call."""
        for _ in self.threads:
            self._queue.put(None)

    def _came(self, call: HookCall) -> None:
        del self._open[call]
        self._give_back(call)

    def _run(self) -> None:
        loop = uvloop.new_event_loop()
        _use(loop)
        while call := self._queue.get():
            call.loop = loop
            call.task = task = loop.create_task(call.perform())
            if call.over:  # checked again, because from now on `cancel` finds the task
                task.cancel()
            try:
                loop.run_until_complete(task)
            except BaseException as error:  # for example SystemExit by a callback of a hook
                if not task.done():
                    task.cancel()
                    call.error = error
            with suppress(RuntimeError):  # raised while the process ends, when no session waits
                self._main.call_soon_threadsafe(self._came, call)
        loop.close()


def _use(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    # errors of hooks have been answered already
    loop.set_exception_handler(lambda _, context: None)

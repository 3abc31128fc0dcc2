"""Threads with an event loop each, in which hooks run: one for all calls, or a pool."""

from __future__ import annotations

import asyncio
import ctypes
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from os.path import dirname
from queue import SimpleQueue
from sys import _current_frames  # documented in Python's library reference
from typing import Any

import uvloop

from smtpd.hooks.call import HookCall

_OWN = dirname(__file__)
_INTERRUPT = 1.0  # seconds between two interruptions of a call that no session waits for


class HookInterrupted(BaseException):
    """Ends Python code of a hook that does not give its thread back."""


def interrupt(ident: int) -> None:
    """Raise HookInterrupted in the Python code that the thread of that number executes."""
    if ident:
        ctypes.pythonapi.PyThreadState_SetAsyncExc(
            ctypes.c_ulong(ident), ctypes.py_object(HookInterrupted)
        )


class HookThread:
    """Takes calls in batches, and gives them back in batches.

    A wake-up of a thread costs more than a call. So each side wakes the other one only if that one
    is not awake already. A task starts eagerly: a hook that awaits nothing ends in its first step.
    """

    def __init__(
        self, name: str, main: asyncio.AbstractEventLoop, done: Callable[[HookCall], None]
    ) -> None:
        self.loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
        self._main = main
        self._done = done
        self.queue: deque[HookCall] = deque()
        """Calls that the thread has not begun."""
        self.turned = 0
        """How often the thread began a call or answered a `probe`."""
        self._awake = False  # the thread will look at the queue
        self._answers: deque[HookCall] = deque()
        self._batch = False  # answers leave together after the calls at hand
        self._signalled = False  # the loop of the sessions will look at the answers
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Cancel what runs, and end the thread when its hooks give it back."""
        self._stopping = True
        self.loop.call_soon_threadsafe(self._stop)

    def join(self, seconds: float) -> bool:
        """Wait for the end of the thread; False if it lasts longer than `seconds`."""
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def put_call(self, call: HookCall) -> None:
        """Hand a call over."""
        call.loop = self.loop
        self.queue.append(call)
        if not self._awake:
            self._awake = True
            # after this round of the sessions' loop, so that all its calls need one wake-up
            self._main.call_soon(self._wake)

    def _wake(self) -> None:
        self.loop.call_soon_threadsafe(self._take)

    def run_function[T](self, function: Callable[[], T]) -> Future[T]:
        """Call a function in the thread; the future gets what it returns or raises."""

        async def work() -> T:
            return function()

        return asyncio.run_coroutine_threadsafe(work(), self.loop)

    def probe(self) -> None:
        """Have `turned` counted up as soon as the loop of the thread turns again."""
        self.loop.call_soon_threadsafe(self._turn)

    def interrupt(self) -> None:
        """Raise HookInterrupted in the Python code that the thread executes.

        Code outside of Python, `time.sleep` for one, sees it only when it returns.
        """
        interrupt(self.ident)

    def place(self) -> str:
        """Return the line of the hook that the thread executes now, or '' if it executes none."""
        frame, inner = _current_frames().get(self.ident), None
        while frame and frame.f_code is not self._PERFORM:
            if dirname(frame.f_code.co_filename) != _OWN:
                inner = frame
            frame = frame.f_back
        if not (frame and inner):
            return ""
        return f"{inner.f_code.co_qualname} ({inner.f_code.co_filename}:{inner.f_lineno})"

    @property
    def ident(self) -> int:
        """The thread's number."""
        return self._thread.ident or 0

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.set_exception_handler(lambda _, context: None)  # what failed is answered for
        while not self._stopping:
            with suppress(BaseException):  # a hook's callback called sys.exit, or was interrupted
                self.loop.run_forever()
        self.loop.close()

    def _stop(self) -> None:
        for task in asyncio.all_tasks(self.loop):
            task.cancel()
        self.loop.call_later(0.05, self.loop.stop)  # they end first

    def _turn(self) -> None:
        self.turned += 1

    def _take(self) -> None:
        self._awake = False
        queue, loop = self.queue, self.loop
        try:
            while queue:
                try:
                    call = queue.popleft()
                except IndexError:  # another thread has taken it over
                    break
                self.turned += 1
                if call.over:
                    self._answers.append(call)
                    continue
                # it answers in this batch if it awaits nothing
                self._batch = True
                task: asyncio.Task[Any] = asyncio.Task(
                    self._perform(call), loop=loop, eager_start=True
                )
                self._batch = False
                if not task.done():
                    call.task = task
        finally:
            self._batch = False
            self._answer()

    async def _perform(self, call: HookCall) -> None:
        arguments = call.arguments
        try:
            arguments[1].loop = self.loop  # hooks make timers and futures with session.loop
            call.answer = await call.method(*arguments)
        except BaseException as error:  # a hook that ends its task ends neither thread nor process
            await call.rescued(error)
        finally:
            self._answers.append(call)
            if not self._batch:
                self._answer()

    _PERFORM = _perform.__code__

    def _answer(self) -> None:
        """Have the sessions' loop look at the answers."""
        if self._answers and not self._signalled:
            self._signalled = True
            try:
                self._main.call_soon_threadsafe(self.deliver)
            except RuntimeError:  # the process ends, and no session waits
                self._signalled = False

    def deliver(self) -> None:
        """Give the answers so far to the sessions, in the thread of those."""
        self._signalled = False
        answers = self._answers
        while answers:
            self._done(answers.popleft())


class HookPool:
    """Runs each call in a thread that it has for itself, with an event loop.

    A thread starts when no other one is free, up to `most`. Then calls wait for one. They are
    daemon threads: the process ends although a hook never gives its thread back.
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
        self._threads: list[threading.Thread] = []
        self._running: dict[int, HookCall] = {}  # by the number of the thread
        self._calls = 0  # that no thread has given back

    def put_call(self, call: HookCall) -> None:
        """Hand a call over."""
        self._calls += 1
        if self._calls > len(self._threads) < self._most:
            name = f"hook {self._name} pool {len(self._threads) + 1}"
            thread = threading.Thread(target=self._run, name=name, daemon=True)
            self._threads.append(thread)
            thread.start()
        self._queue.put(call)

    def interrupt_late(self, now: float) -> None:
        """Interrupt the threads whose call is over for its session; `now` is of its loop."""
        for ident, call in list(self._running.items()):
            if call.over and now >= call.interrupted + _INTERRUPT:
                call.interrupted = now
                interrupt(ident)

    def stop(self) -> None:
        """End the threads, each after its call."""
        for _ in self._threads:
            self._queue.put(None)

    def join(self, seconds: float) -> None:
        """Wait for the end of each thread without a call, at most `seconds` for each."""
        for thread in self._threads:
            if thread.ident not in self._running:
                thread.join(seconds)

    def _came(self, call: HookCall) -> None:
        self._calls -= 1
        self._done(call)

    def _run(self) -> None:
        ident, loop = threading.get_ident(), uvloop.new_event_loop()
        asyncio.set_event_loop(loop)
        loop.set_exception_handler(lambda _, context: None)  # what failed is answered for
        while True:
            call: HookCall | None = None
            try:
                call = self._queue.get()
                if not call:
                    break
                self._running[ident] = call
                if not call.over:
                    call.loop = loop
                    call.task = loop.create_task(_perform(call, loop))
                    loop.run_until_complete(call.task)
            except BaseException as error:  # the interruption came late, or the loop was ended
                if call and not (call.answer or call.error):
                    call.error = error
            finally:
                self._running.pop(ident, None)
                if call:
                    with suppress(RuntimeError):  # the process ends, and no session waits
                        self._main.call_soon_threadsafe(self._came, call)
        loop.close()


async def _perform(call: HookCall, loop: asyncio.AbstractEventLoop) -> None:
    try:
        call.arguments[1].loop = loop  # hooks make timers and futures with session.loop
        call.answer = await call.method(*call.arguments)
    except BaseException as error:  # a hook that ends its task ends neither thread nor process
        await call.rescued(error)

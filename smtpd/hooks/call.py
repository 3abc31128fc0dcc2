"""One call of one hook, on its way from a session to a thread of the handler and back."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from smtpd.hooks.methods import Method

type Done = Callable[[Any, BaseException | None], None]


class HookTimeout(Exception):
    """A hook did not answer within its time."""


@dataclass(eq=False, slots=True)
class HookCall:
    """Carries the arguments to the hook, and its answer back.

    The thread of the sessions alone writes `over` and `deadline`. The thread of the handler alone
    writes `answer`, `error`, `failed` and `task`, before it gives the call back. `loop` is written
    by whoever hands the call to a loop.
    """

    method: Method
    rescue: Method | None
    """The handler's `handle_exception`, which answers in place of a method that raises."""
    arguments: tuple[Any, ...]
    """Server, session, envelope, and the hook's own arguments."""
    done: Done
    began: float
    """Time of the sessions' event loop, in seconds."""
    deadline: float
    """Time of that loop at which the session stops waiting."""
    over: bool = False
    """Whether the session has its answer, or waits no longer."""
    loop: asyncio.AbstractEventLoop | None = None
    """The loop in which the hook runs."""
    task: asyncio.Task[None] | None = None
    answer: Any = None
    error: BaseException | None = None
    failed: bool = False
    """Whether the method raised, `handle_exception` or not."""

    async def perform(self) -> None:
        """Call the hook, in its loop, and keep its answer or what it raised."""
        try:
            self.arguments[1].loop = self.loop  # hooks make timers and futures with session.loop
            self.answer = await self.method(*self.arguments)
        except BaseException as error:  # a hook may end neither the thread nor the process
            await self._rescue(error)

    async def _rescue(self, error: BaseException) -> None:
        self.failed = True
        if not (self.rescue and isinstance(error, Exception)):
            self.error = error
            return
        try:
            answer = self.rescue(error)
            # aiosmtpd awaits the result, although its documentation shows a plain function
            self.answer = await answer if isinstance(answer, Awaitable) else answer
        except BaseException as inner:
            self.error = inner

    def finish(self, error: BaseException | None = None) -> None:
        """Give the session its answer, or `error` in place of it; once."""
        if not self.over:
            self.over = True
            self.done(self.answer, error or self.error)

    def abandon(self) -> None:
        """Cancel the hook: the session waits no longer and gets no answer."""
        if not self.over:
            self.over = True
            self.cancel()

    def cancel(self) -> None:
        """End the hook's coroutine; one that has not begun does not begin."""
        if self.loop:
            self.loop.call_soon_threadsafe(self._cancel)

    def _cancel(self) -> None:
        if self.task:
            self.task.cancel()

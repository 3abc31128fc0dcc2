"""Calls a handler that awaits nothing in the thread of the sessions (decision 0026).

Uses `asyncio.events._set_running_loop`, which asyncio has for event loops. It was checked with
CPython 3.12.1 and CPython 3.13.0.
"""

from __future__ import annotations

import asyncio
import time
from asyncio.events import _set_running_loop
from collections.abc import Callable
from contextvars import copy_context
from typing import Any

from pgmta.logs import get
from smtpd.hooks import outside
from smtpd.hooks.call import Done
from smtpd.hooks.mechanisms import Method
from smtpd.hooks.thread import HookInterrupted, HookThread
from smtpd.hooks.trial import Trial, waits
from smtpd.hooks.watchdog import HookMoved, Watchdog

_SLOW = 0.002  # seconds of a call
_SHARE = 0.1  # of the time that slow calls may take
_DEBT = 0.1  # seconds that they may take at once

log = get("hooks")


class _NoLoop:
    """Takes the place of `session.loop`: a hook that needs its loop is moved to its thread."""

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError("no running event loop")


_NO_LOOP = _NoLoop()


class DirectCalls:
    """Calls one handler directly, from the time at which it has passed its trial.

    A handler that is slow, raises or wants to wait goes back to its thread. Its next trial is
    longer. One that the watchdog has interrupted stays there.
    """

    def __init__(self, name: str, thread: HookThread, trial: Trial, watchdog: Watchdog) -> None:
        self.on = False
        """Whether calls are direct now."""
        self._name = name
        self._thread = thread
        self._trial: Trial | None = trial
        thread.trial = trial
        self._watchdog = watchdog
        self._loop = asyncio.get_running_loop()
        self._owed = 0.0  # seconds of slow calls that are not made up for
        self._slow_at = 0.0

    @property
    def ready(self) -> bool:
        """Whether the calls may become direct."""
        return not self.on and self._trial is not None and self._trial.passed

    def begin(self) -> None:
        """Call directly from now on; no call may be open in the thread."""
        if not self._trial:
            return
        if outside.bound(self._thread.ident):
            self.stay()
        elif asyncio.all_tasks(self._thread.loop):  # some work of the handler goes on there
            self._trial.repeat()
        else:
            self._watchdog.start()
            self._thread.loop.set_debug(True)  # then it refuses what another thread must not do
            self._owed, self._slow_at = 0.0, time.monotonic()
            self.on = True
            log.debug("hook is called directly", hook=self._name)

    def postpone(self) -> None:
        """Begin the trial again: a call in the thread does not end."""
        if self._trial:
            self._trial.fail()

    def stay(self) -> None:
        """Never call directly again."""
        self._trial = self._thread.trial = None

    def answer(self, method: Method, arguments: tuple[Any, ...], done: Done) -> bool:
        """Call a method; `done` gets its answer. Return False if the thread has to call it."""
        try:
            answer, spent, waited = self._perform(method, arguments)
        except HookMoved as error:
            self._back(str(error))
            return False
        except HookInterrupted:
            log.warning("hook blocks the sessions, and stays in its thread", hook=self._name)
            self._back("")
            self.stay()
            return False
        if spent > _SLOW:
            self._judge(spent, waited=waited)
        done(answer, None)
        return True

    def _perform(self, method: Method, arguments: tuple[Any, ...]) -> tuple[Any, float, bool]:
        """Return the answer, the seconds, and whether the thread waited.

        Raises HookMoved if the call needs the thread of the handler: it failed, wants to wait or
        uses an event loop. Raises HookInterrupted if it kept the thread of the sessions.
        """
        watchdog = self._watchdog
        arguments[1].loop = _NO_LOOP
        before, began = waits(), time.perf_counter()
        try:
            # no event loop is running for the hook: its tasks would run among the sessions
            _set_running_loop(None)
            answer = _run(watchdog, method, arguments)
        finally:
            watchdog.inside = 0  # again: a signal may have come at the end of the call
            _set_running_loop(self._loop)
        spent = time.perf_counter() - began
        return answer, spent, spent > _SLOW and waits() > before

    def _judge(self, spent: float, *, waited: bool) -> None:
        """Judge a slow call. If the thread did not wait, the system may have stopped it."""
        now = time.monotonic()
        self._owed = max(0.0, self._owed - (now - self._slow_at) * _SHARE) + spent
        self._slow_at = now
        if waited or self._owed > _DEBT:
            self._back(f"took {spent * 1000:.0f} ms")

    def _back(self, reason: str) -> None:
        """Have the handler called in its thread again, until it has passed a longer trial."""
        self.on = False
        self._thread.loop.set_debug(False)
        if self._trial:
            self._trial.repeat()
        if reason:
            log.info("hook runs in its thread again", hook=self._name, reason=reason)


def _run(watchdog: Watchdog, method: Method, arguments: tuple[Any, ...]) -> Any:
    """Return the answer of a coroutine that ends in its first step."""
    watchdog.moved = ""
    watchdog.number = number = watchdog.number + 1
    if watchdog.asleep:  # looked at after the number, which the watchdog reads before it waits
        watchdog.wake()
    answer: Any = None
    problem = "does not end at once"
    try:
        run = copy_context().run
        send: Callable[[None], Any] = method(*arguments).send
        try:
            watchdog.inside = number
            run(send, None)
        finally:
            watchdog.inside = 0
    except StopIteration as end:
        answer, problem = end.value, ""
    except BaseException as error:  # a hook that ends its task does not end the process
        problem = f"raised {type(error).__name__}"
    if watchdog.interrupted == number:  # also if the hook caught it
        raise HookInterrupted
    if watchdog.moved:
        raise HookMoved(f"wants to do {watchdog.moved}")
    if problem:
        raise HookMoved(problem)
    return answer

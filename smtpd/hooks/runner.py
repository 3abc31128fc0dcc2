"""Runs the hooks of one handler, so that none of them holds up a session of others."""

from __future__ import annotations

import asyncio
import sys
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from pgmta.logs import get
from smtpd.hooks.call import Done, HookCall, HookTimeout
from smtpd.hooks.methods import Method
from smtpd.hooks.thread import HookPool, HookThread

_LOOK = 0.05  # seconds between two looks at the threads, while calls are open
_STUCK = 0.1  # seconds in which a thread begins no call although one waits
_ALONE = 1.0  # the same if none waits: a busy loop slows the sessions nevertheless
_INTERRUPT = 1.0  # seconds between two interruptions of a stuck thread
_END = 1.0  # seconds for threads to end
_SWITCH = 0.0005  # seconds; the usual 0.005 leave the sessions 200 events a second

log = get("hooks")

_usual_switch = 0.0
_hurried: set[object] = set()


class HookOverload(Exception):
    """More calls are open than permitted."""


class _Place:
    """A thread and what the last look at it found."""

    def __init__(self, thread: HookThread) -> None:
        self.thread = thread
        self.turned = -1
        self.since = 0.0  # when the thread was seen to make no progress first
        self.probed = False  # the thread shall show that it makes progress
        self.stuck = False
        self.interrupted = 0.0


class HookRunner:
    """Runs calls in one thread, and in others as long as that one is stuck.

    All methods of a handler run in one event loop, because its connections and locks belong to a
    loop. A hook may block that loop for 0.1 s while other calls wait. Those go to another thread
    with another loop, at most `threads` in all. A thread that comes back serves again.

    With `pooled` each call has a thread for itself.
    """

    def __init__(
        self, name: str, *, time: float, threads: int, calls: int, pooled: bool = False
    ) -> None:
        self.name = name
        self._time = time
        self._most = threads
        self._calls = calls
        self._loop = asyncio.get_running_loop()
        self._places: list[_Place] = []
        self._open: dict[HookCall, None] = {}  # sessions wait for these, the oldest first
        self.calls = 0
        """Calls so far."""
        self.seconds = 0.0
        """How long those took that have ended."""
        self._count = 0  # calls that no thread has given back
        self._overflow: deque[HookCall] = deque()  # all threads are stuck
        self._pool = HookPool(name, threads, self._loop, self._came) if pooled else None
        self._look_handle: asyncio.Handle | None = None
        self._looked = 0.0  # when the last look was
        self._stopped = False
        self._idle: asyncio.Future[None] | None = None  # `stop` waits for the last open call

    def run_function[T](self, function: Callable[[], T]) -> Future[T]:
        """Call a function in the thread of the handler."""
        return (self._places[0] if self._places else self._add()).thread.run_function(function)

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

        The error is what the hook raised, HookTimeout after `time` seconds, or HookOverload. A call
        that `asks` the client further questions runs in the thread of the handler.
        """
        self.calls += 1
        began = self._loop.time()

        def timed(answer: Any, error: BaseException | None) -> None:
            self.seconds += self._loop.time() - began
            done(answer, error)

        call = HookCall(method, rescue, arguments, timed)
        if self._count >= self._calls or self._stopped:
            self._loop.call_soon(call.finish, HookOverload(f"{self._count} calls are open"))
            return call
        self._count += 1
        call.deadline = self._loop.time() + self._time
        self._open[call] = None
        if self._pool and not asks:
            self._pool.put_call(call)
        else:
            self._put(call)
        if not self._look_handle:
            self._begin_look()
        return call

    def pause(self, call: HookCall) -> None:
        """Stop the time of a call, because it waits for the client."""
        self._open.pop(call, None)

    def go_on(self, call: HookCall) -> None:
        """Give a call that was paused its whole time again."""
        if not call.over:
            call.deadline = self._loop.time() + self._time
            self._open[call] = None

    async def stop(self, grace: float) -> None:
        """Wait for open calls as long as `grace` seconds, then cancel them and end the threads."""
        if self._open and grace > 0:
            self._idle = self._loop.create_future()
            await asyncio.wait([self._idle], timeout=grace)
        self._stopped = True
        for call in list(self._open):
            self._give_up(call, HookTimeout("smtpd stops"))
        if self._look_handle:
            self._look_handle.cancel()
            self._look_handle = None
        for place in self._places:
            place.thread.stop()
        for place in self._places:
            if not place.stuck:
                await asyncio.to_thread(place.thread.join, _END)
        if self._pool:
            self._pool.stop()
            await asyncio.to_thread(self._pool.join, _END)
        _hurry(self, False)

    def _add(self) -> _Place:
        name = f"hook {self.name} {len(self._places) + 1}"
        place = _Place(HookThread(name, self._loop, self._came))
        self._places.append(place)
        place.thread.start()
        return place

    def _put(self, call: HookCall) -> None:
        places = self._places
        if places and not places[0].stuck:  # mostly
            places[0].thread.put_call(call)
            return
        place = next((place for place in places if not place.stuck), None)
        if not place and len(self._places) < self._most:
            place = self._add()
        if place:
            place.thread.put_call(call)
        else:
            self._overflow.append(call)

    def _came(self, call: HookCall) -> None:
        """Take a call back from its thread."""
        self._count -= 1
        self._open.pop(call, None)
        try:
            call.finish()
        except Exception as error:  # of one session: the others have theirs
            log.error("error after a hook", exc_info=error)
        if self._idle and not (self._open or self._idle.done()):
            self._idle.set_result(None)

    def _give_up(self, call: HookCall, error: Exception) -> None:
        self._open.pop(call, None)
        if not call.over:
            call.finish(error)
            call.cancel()

    def _begin_look(self) -> None:
        """Begin to look, after a time without calls or in which the sessions' loop was late."""
        self._looked = self._loop.time()
        for place in self._places:
            if not place.stuck:
                place.since = self._looked
        self._look_handle = self._loop.call_later(_LOOK, self._look)

    def _look(self) -> None:
        """Look for calls whose time is over, and for threads that are stuck."""
        now = self._loop.time()
        if now > self._looked + 2 * _LOOK:
            self._begin_look()
            return
        self._looked = now
        self._look_handle = None
        for call in list(self._open):
            if call.deadline > now and not call.over:
                break
            self._give_up(call, HookTimeout(f"no answer after {self._time:g} s"))
        for place in list(self._places):
            self._look_at(place, now)
        if self._pool:
            self._pool.interrupt_late(now)
        while self._overflow and any(not place.stuck for place in self._places):
            self._put(self._overflow.popleft())
        while self._overflow and self._overflow[0].over:
            self._overflow.popleft()
            self._count -= 1
        stuck = any(place.stuck for place in self._places)
        _hurry(self, stuck)
        if self._open or self._count or stuck:
            self._look_handle = self._loop.call_later(_LOOK, self._look)

    def _look_at(self, place: _Place, now: float) -> None:
        thread = place.thread
        thread.deliver()  # those before a hook that blocks
        if thread.turned != place.turned:
            if place.stuck:
                log.info("hook serves again", hook=self.name, after=round(now - place.since, 1))
            place.turned, place.since, place.stuck = thread.turned, now, False
            place.probed = False
        elif not (thread.queue or place.stuck or place.probed):
            place.since, place.probed = now, True
            thread.probe()
        elif not place.stuck and now - place.since >= (_STUCK if thread.queue else _ALONE):
            log.warning("hook blocks its thread", hook=self.name, place=thread.place())
            place.stuck = True
            place.interrupted = place.since + self._time
            thread.probe()
        if not place.stuck:
            return
        while thread.queue:
            try:
                self._put(thread.queue.popleft())
            except IndexError:
                break
        if now >= place.interrupted:
            place.interrupted = now + _INTERRUPT
            thread.interrupt()


def _hurry(owner: object, wanted: bool) -> None:
    """Have threads change often as long as at least one owner wants it.

    The thread of the sessions gives up the interpreter in every event. A hook in a busy loop then
    keeps it for the whole interval.
    """
    global _usual_switch
    if wanted == (owner in _hurried):
        return
    if not _hurried:
        _usual_switch = sys.getswitchinterval()
        sys.setswitchinterval(min(_SWITCH, _usual_switch))
    if wanted:
        _hurried.add(owner)
        return
    _hurried.discard(owner)
    if not _hurried:
        sys.setswitchinterval(_usual_switch)

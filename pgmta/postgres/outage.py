"""An outage of PostgreSQL as smtpd bears it: it waits for the end of a short one."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress

from pgmta.errors import (
    AnswerLost,
    Blocked,
    LoginRefused,
    SchemaMismatch,
    StoreUnavailable,
    Undecided,
)
from pgmta.logs import get
from pgmta.postgres import blockers

_PROBE_INTERVAL_S = 0.25  # while sessions wait
_LATE_PROBE_INTERVAL_S = 0.5
_PROBE_TIMEOUT_S = 10.0  # several hosts may be silent for 3 s each
# A full disk takes a probe, but no mail. So an error soon after a good probe belongs to the same
# outage, unless mail was stored meanwhile: within the first time its task goes on, and within the
# second its patience counts from its beginning.
_CALM_S = 1.0
_UNPROVEN_S = 60.0

log = get("outage")


class Outage:
    """Says whether PostgreSQL is away, and whether that is young enough to wait for its end.

    It begins with an error that `note` gets. From then on only `probe` tries the database: it
    returns if PostgreSQL works. An outage that is older than `patience` seconds keeps nobody
    waiting any more; `give_up` gets its last error then.
    """

    def __init__(
        self,
        patience: float,
        probe: Callable[[], Awaitable[object]],
        give_up: Callable[[StoreUnavailable], None],
    ) -> None:
        self._patience = patience
        self._probe = probe
        self._give_up = give_up
        self.away = False
        """Whether PostgreSQL is away."""
        self.waits = False
        """Whether it is away, and what needs it waits for its end."""
        self.ended_at = -math.inf
        """When the last outage ended, by the monotonic clock."""
        self._began = 0.0
        self._unproven_until = -math.inf  # time until which only probes have been good
        self._error = StoreUnavailable()
        self._changed = asyncio.Event()  # set at the next change of `away` or `waits`
        self._task: asyncio.Task[None] | None = None  # during an outage, and until it is calm
        self._timer: asyncio.TimerHandle | None = None
        self._stopped = False

    @property
    def refuses(self) -> bool:
        """Whether PostgreSQL is away, and nothing waits for it."""
        return self.away and not self.waits

    def note(self, error: StoreUnavailable) -> bool:
        """Note an error; return whether to `wait`, and to try again then.

        Nothing waits for the end of a lock, for a login that is refused, or for a standby.
        """
        waitable, now = _passes(error), time.monotonic()
        self._error = error
        if self._stopped:
            return False
        if not self._task and now >= self._unproven_until:
            self._began = now
        waits = waitable and now < self._began + self._patience
        if not self._task:
            more = {"waits_s": self._patience} if waits else {}
            log.warning("database is away", reason=str(error), **more)
        if not self.away:
            self._begin(waits=waits)
        return waitable and self.waits

    def refuse(self) -> None:
        """Begin an outage that keeps nobody waiting; the caller has logged why."""
        if not self._task:
            self._began = time.monotonic()
        if self.away:
            self._change(away=True, waits=False)
        else:
            self._begin(waits=False)

    def end(self) -> None:
        """Note that PostgreSQL has done work, more than a probe."""
        self._unproven_until = -math.inf
        if self._task:
            self._task.cancel()
            self._interrupt()
            self._finish()

    async def wait(self) -> bool:
        """Return once nothing waits; whether PostgreSQL is back."""
        while self.waits:
            await self._changed.wait()
        return not self.away

    async def outlast[T](self, ask: Callable[[], Awaitable[T]]) -> T:
        """Return what `ask` returns; when PostgreSQL is away, wait and ask again.

        Raises what `ask` raises: StoreUnavailable and, in an outage, TimeoutError if it has been
        asked for longer than the outage may last.
        """
        until = math.inf
        while True:
            await self.wait()
            try:
                return await ask()
            except (StoreUnavailable, TimeoutError) as error:
                # a host that is silent takes the time of the question
                again = self.note(error) if isinstance(error, StoreUnavailable) else self.waits
                until = min(until, time.monotonic() + self._patience)
                if not again or time.monotonic() >= until or not await self.wait():
                    raise

    async def stop(self) -> None:
        """End its task; nothing waits any more, and no outage begins."""
        self._stopped = True
        if self._timer:
            self._timer.cancel()
        if self._task:
            self._task.cancel()
            await asyncio.wait([self._task])
        self._change(away=self.away, waits=False)

    def _interrupt(self) -> None:
        """Let go on what waits."""
        if self.away:
            self.ended_at = time.monotonic()
            self._change(away=False, waits=False)

    def _finish(self) -> None:
        if self._timer:
            self._timer.cancel()
        self._task = self._timer = None
        log.info("database is back", after_s=round(self.ended_at - self._began, 1))

    def _begin(self, *, waits: bool) -> None:
        self._change(away=True, waits=waits)
        loop = asyncio.get_running_loop()
        if not self._task:
            self._task = loop.create_task(self._run())
        if waits and not self._timer:
            left = self._began + self._patience - time.monotonic()
            self._timer = loop.call_later(left, self._lose_patience)

    def _change(self, *, away: bool, waits: bool) -> None:
        self.away, self.waits = away, waits
        self._changed.set()
        self._changed = asyncio.Event()

    def _lose_patience(self) -> None:
        if self.waits:
            self._change(away=True, waits=False)
            self._give_up(self._error)

    async def _run(self) -> None:
        """Probe until PostgreSQL works, and goes on to work."""
        while self.away:
            try:
                async with asyncio.timeout(_PROBE_TIMEOUT_S):
                    await self._probe()
            except Exception:  # whatever it is, a later probe may be good
                await asyncio.sleep(_PROBE_INTERVAL_S if self.waits else _LATE_PROBE_INTERVAL_S)
                continue
            self._interrupt()
            with suppress(TimeoutError):
                async with asyncio.timeout(_CALM_S):
                    await self._changed.wait()
                await asyncio.sleep(_PROBE_INTERVAL_S)
        self._unproven_until = time.monotonic() + _UNPROVEN_S
        self._finish()


def _passes(error: StoreUnavailable) -> bool:
    """Return whether an error is like those of a switchover, and so may pass by itself."""
    if isinstance(error, Undecided):
        return isinstance(error, AnswerLost)
    if isinstance(error, Blocked | LoginRefused | SchemaMismatch):
        return False
    return not (error.__cause__ and blockers.limited(error.__cause__))

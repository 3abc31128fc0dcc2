"""What all sessions of one smtpd process share."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Protocol

from queued.listen import Notifier
from smtpd import replies
from smtpd.config import SmtpdConfig
from smtpd.ingest import Committer
from smtpd.limits import Places
from smtpd.memory import Holder, Memory
from smtpd.metadata import Metadata
from smtpd.policy import Policy
from smtpd.postmaster import Postmaster
from smtpd.scheduler import Scheduler

_LATE = 1.0  # seconds for a transaction over a connection that was accepted at the last moment


class Guest(Holder, Protocol):
    """A session, as far as the process needs to know it."""

    client: str

    def end(self) -> None:
        """Close when no transaction is cut off by it."""


class Front:
    """Configuration, policy, the way into the queue, and who is connected."""

    def __init__(self, config: SmtpdConfig, uri: str) -> None:
        self.config = config
        self.policy = Policy(config.relay)
        self.postmaster = Postmaster(config, self.policy)
        self.metadata = Metadata(config.metadata)
        self._notifier = Notifier(uri)
        self.committer = Committer(uri, config.ingest, self._notifier.notify)
        self.stopping = False
        self._guests: set[Guest] = set()
        limits = config.limits
        exempt = config.relay.networks if limits.exempt is None else limits.exempt
        self._places = Places(limits, exempt)
        self._scheduler: Scheduler | None = None
        self.memory = Memory(limits.memory, self._guests)
        self._empty = asyncio.Event()
        self._empty.set()
        self._tasks: set[asyncio.Task[None]] = set()

    def scheduler(self, loop: asyncio.AbstractEventLoop) -> Scheduler:
        """The one scheduler of the process."""
        self._scheduler = self._scheduler or Scheduler(loop)
        return self._scheduler

    def enter(self, guest: Guest) -> str:
        """Count a connection; return the reply of a refusal where there are too many, or ''."""
        if len(self._guests) >= self.config.limits.connections:
            return replies.TOO_MANY_CONNECTIONS
        if not self._places.enter(guest.client):
            return replies.TOO_MANY_FROM_YOU
        self._guests.add(guest)
        self._empty.clear()
        return ""

    def leave(self, guest: Guest) -> None:
        """A connection has ended."""
        if guest in self._guests:
            self._guests.remove(guest)
            self._places.leave(guest.client)
        if not self._guests:
            self._empty.set()

    def later(self, work: Coroutine[None, None, None]) -> None:
        """Do something that no session waits for."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def stop(self, grace: float) -> bool:
        """End idle sessions, wait for the others; False where some had to be cut off.

        Connections that the kernel has handed over just before may still do one transaction.
        """
        self.stopping = True
        clean = await self._end(_LATE) or await self._end(grace - _LATE)
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=5)
        await self._notifier.close()
        await self.committer.stop()
        return clean

    async def _end(self, seconds: float) -> bool:
        for guest in list(self._guests):
            guest.end()
        try:
            async with asyncio.timeout(seconds):
                await self._empty.wait()
        except TimeoutError:
            return False
        return True

"""What all sessions of one smtpd process share."""

from __future__ import annotations

import asyncio
import time
from typing import Protocol

from pgmta.intake.committer import Committer
from pgmta.logs import get
from pgmta.postgres.notify import Notifier
from smtpd import replies
from smtpd.config import SmtpdConfig
from smtpd.limits import Places
from smtpd.memory import Holder, Memory
from smtpd.metadata import Metadata
from smtpd.policy import Policy
from smtpd.postmaster import Postmaster
from smtpd.scheduler import Scheduler

TURNED_AWAY = 1000
"""Connections beside those within the limits that may wait for their refusal."""
_DELAY = 1.0  # seconds until it
_TELL = 60.0  # seconds between two lines about refused connections
_LATE = 1.0  # seconds for a transaction over a connection that was accepted at the last moment


log = get("smtpd")


class Guest(Holder, Protocol):
    """A session, as far as the process needs to know it."""

    client: str

    def hold_back(self) -> None:
        """Read the next content in a turn."""

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
        self._refused = 0  # connections since the last line in the log about them
        self._refused_told = -_TELL
        self._guests: set[Guest] = set()
        self._turned_away = 0  # connections that wait for their refusal
        limits = config.limits
        exempt = config.relay.networks if limits.exempt is None else limits.exempt
        self._places = Places(limits, exempt)
        self._scheduler: Scheduler | None = None
        self.memory = Memory(limits.memory, self._guests)
        self._empty = asyncio.Event()
        self._empty.set()

    def scheduler(self, loop: asyncio.AbstractEventLoop) -> Scheduler:
        """The one scheduler of the process."""
        self._scheduler = self._scheduler or Scheduler(loop, self.memory)
        return self._scheduler

    def enter(self, guest: Guest) -> str:
        """Count a connection; return the reply of a refusal where there are too many, or ''."""
        full = len(self._guests) >= self.config.limits.connections
        refusal = replies.TOO_MANY_CONNECTIONS if full else self._places.enter(guest.client)
        if refusal:
            self._tell_refused(guest.client, refusal)
            return refusal
        self._guests.add(guest)
        self._empty.clear()
        return ""

    def _tell_refused(self, client: str, reply: str) -> None:
        """Log the first refusal, and once a minute how many there were."""
        self._refused += 1
        now = time.monotonic()
        if now >= self._refused_told + _TELL:
            log.warning("connections refused", count=self._refused, client=client,
                        reply=reply.format(self.config.environment.hostname))  # fmt: skip
            self._refused, self._refused_told = 0, now

    def turn_away(self, transport: asyncio.Transport, reply: bytes) -> None:
        """Refuse a connection, a while later: who comes again at once is kept busy that way."""
        if self._turned_away < TURNED_AWAY and not self.stopping:
            self._turned_away += 1
            asyncio.get_running_loop().call_later(_DELAY, self._turn_away, transport, reply)
        else:
            transport.write(reply)
            transport.close()

    def _turn_away(self, transport: asyncio.Transport, reply: bytes) -> None:
        self._turned_away -= 1
        if not transport.is_closing():
            transport.write(reply)
            transport.close()

    def hold_back(self, cause: Guest) -> None:
        """More content comes than others can wait for: read that of the other sessions in turns."""
        for guest in self._guests:
            if guest is not cause:
                guest.hold_back()

    def leave(self, guest: Guest) -> None:
        """A connection has ended."""
        if guest in self._guests:
            self._guests.remove(guest)
            self._places.leave(guest.client)
        if not self._guests:
            self._empty.set()

    async def stop(self, grace: float) -> bool:
        """End idle sessions, wait for the others; False where some had to be cut off.

        Connections that the kernel has handed over just before may still do one transaction.
        """
        self.stopping = True
        clean = await self._end(_LATE) or await self._end(grace - _LATE)
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

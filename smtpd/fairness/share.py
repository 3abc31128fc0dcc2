"""The part that one connection takes of the process's time and memory."""

from __future__ import annotations

import asyncio
import fcntl
import termios
from array import array
from typing import Protocol

from smtpd.fairness.memory import Memory
from smtpd.fairness.scheduler import Scheduler

BULK = 1 << 14
"""Octets of one read, above which it counts as one of many octets."""
HEAVY = 0.005
"""Seconds of work for a session since its last mail, after which it always takes turns."""


class ContentSource(Protocol):
    """A session, as far as it takes content."""

    @property
    def collecting(self) -> bool:
        """Whether the client sends content that may still become a message."""

    def write_ahead(self) -> bool:
        """Begin to write content in memory into the database; False if there is too little."""


class Sharer(Protocol):
    """A connection, as far as its turns are concerned."""

    transport: asyncio.Transport | None
    busy: bool
    blocked: bool

    @property
    def session(self) -> ContentSource:
        """Return the session that takes content."""

    @property
    def waits(self) -> bool:
        """Whether no command can be done now."""

    @property
    def pending(self) -> bool:
        """Whether there is something to do."""

    @property
    def octets(self) -> int:
        """Octets in memory."""

    def work(self) -> None:
        """Do what has been read."""

    def pause_reading(self) -> None:
        """Read no more from the client."""

    def read_on(self) -> None:
        """Read from the client again."""


class Others(Protocol):
    """The other connections of the process."""

    def hold_back(self, cause: Share) -> None:
        """Read their next content in turns."""


class Share:
    """Counts the work and the memory of a connection, and takes turns if they are much."""

    def __init__(self, connection: Sharer, scheduler: Scheduler, memory: Memory) -> None:
        self._connection = connection
        self._memory = memory
        self.scheduler = scheduler
        self.spent = 0.0
        """Seconds of work since the last accepted mail."""
        self.queued = False
        """Others have their turn before the next command."""
        self.in_turn = False
        """The next read belongs to a turn."""
        self.large = False
        """Input or content may be more than a little."""
        self.held = 0
        """Octets in memory, as last counted."""

    @property
    def heavy(self) -> bool:
        """Whether content is to be read in turns."""
        return self.spent >= HEAVY or (self._memory.scarce and self.large)

    def queue(self) -> None:
        """Let others have their turn; a connection that waits for something lets them anyway."""
        connection = self._connection
        if not (connection.busy or self.queued):
            self.queued = True
            self.scheduler.add(self, content=connection.session.collecting)

    def turn(self) -> None:
        """Do some more commands, or let the next content come."""
        connection = self._connection
        self.queued = False
        if connection.pending and not (connection.busy or connection.blocked):
            connection.work()
        elif self.held:
            self.account()
        if not connection.waits:
            self.in_turn = connection.session.collecting
            connection.read_on()

    def take_turns(self, others: Others) -> None:
        """Read the content in turns from now on: it is part of a flood."""
        if self._connection.session.collecting:
            if self.scheduler.sweep():
                others.hold_back(self)
            self.spent = max(self.spent, HEAVY)
            self.in_turn = True

    def hold_back(self) -> None:
        """Read the next content in a turn, if there is much: all content comes too fast."""
        connection = self._connection
        if connection.session.collecting and not connection.waits and self.unread() > BULK:
            self.spent = max(self.spent, HEAVY)
            connection.pause_reading()
            self.queue()

    @property
    def waits_for_client(self) -> bool:
        """Whether smtpd has done all that the client has sent."""
        return not (self.queued or self._connection.pending or self.unread())

    def unread(self) -> int:
        """Return the octets that the kernel has for this connection."""
        transport = self._connection.transport
        socket = transport.get_extra_info("socket") if transport else None
        if not transport or not socket or transport.is_closing():
            return 0
        count = array("i", [0])
        fcntl.ioctl(socket, termios.FIONREAD, count)
        return count[0]

    def account(self) -> None:
        """Count the memory anew."""
        held = self._connection.octets
        if held != self.held:
            change, self.held = held - self.held, held
            self._memory.change(change)

    def relieve(self) -> bool:
        """Read no more from the client until its content is in the database.

        False if there is too little of it.
        """
        connection = self._connection
        if not self.held or not (connection.busy or connection.session.write_ahead()):
            return False
        connection.pause_reading()
        return True

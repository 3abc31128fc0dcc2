"""The part that one connection takes of the process's time and memory."""

from __future__ import annotations

import fcntl
import termios
from array import array
from typing import TYPE_CHECKING

from smtpd.server.server import Server
from smtpd.session.phase import Reading

if TYPE_CHECKING:
    from smtpd.session.connection import Connection

BULK = 1 << 14
"""Octets of one read, above which it counts as one of many octets."""
HEAVY = 0.005
"""Seconds of work for a session since its last mail, after which it always takes turns."""


class Share:
    """Counts the memory of a connection, and takes turns if its work or its memory is much."""

    def __init__(self, connection: Connection, server: Server) -> None:
        self._connection = connection
        self._server = server
        self._scheduler = server.scheduler
        self._memory = server.memory
        self._in_turn = False  # the next read belongs to a turn
        self.queued = False
        """Others have their turn before the next command."""
        self.held = 0
        """Octets in memory, as last counted."""

    def takes_turns(self, seconds: float) -> bool:
        """Return whether content is read in turns after a large read: it is part of a flood."""
        if not self._scheduler.flooded(seconds):
            return False
        if not self._connection.session.reception.collecting:
            return False
        if self._scheduler.sweep():
            self._server.hold_back(self._connection.member)
        self._in_turn = True
        return True

    def use_turn(self) -> bool:
        """Work through the last read if it belongs to a turn; return whether it does."""
        if not self._in_turn:
            return False
        self._in_turn = False
        self._scheduler.during(self._connection.work)
        return True

    def queue(self) -> None:
        """Queue the next turn, unless the connection waits for something or for its turn."""
        connection = self._connection
        if connection.takes_input and not self.queued:
            self.queued = True
            self._scheduler.add_turn(self._turn, content=connection.session.reception.collecting)

    def _turn(self) -> None:
        """Do some more commands, or let the next content come."""
        connection = self._connection
        self.queued = False
        if connection.pending and connection.takes_input and not connection.blocked:
            connection.work()
        elif self.held:
            self.account()
        if not connection.waits:
            self._in_turn = connection.session.reception.collecting
            connection.read_on()

    def hold_back(self) -> bool:
        """Read the next content in a turn, if there is much; return whether there is."""
        connection = self._connection
        collecting = connection.session.reception.collecting
        if not collecting or connection.waits or self.unread() <= BULK:
            return False
        connection.pause_reading()
        self.queue()
        return True

    def next_read(self) -> None:
        """Let the client send on, at once or in a turn, if nothing is left to do."""
        connection = self._connection
        if connection.waits or not connection.transport:
            return
        if connection.reading is Reading.ENDED:
            connection.closing.hang_up()
        elif connection.session.reception.collecting and (
            connection.spent >= HEAVY or (self._memory.scarce and connection.large)
        ):
            connection.pause_reading()  # one read in each turn
            self.queue()
        else:
            connection.read_on()

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
            self.held = held
            self._memory.hold(self._relieve, held)

    def _relieve(self) -> bool:
        """Read no more from the client until its content is in the database.

        False if there is too little of it.
        """
        connection = self._connection
        if connection.takes_input and not connection.session.reception.write_ahead():
            return False
        connection.pause_reading()
        return True

"""The part that one connection takes of the process's time and memory."""

from __future__ import annotations

from smtpd.server.memory import Relieve
from smtpd.server.scheduler import Turn
from smtpd.server.server import Member, Server


class Share:
    """Queues the turns of a connection whose work is much, and counts its memory.

    `turn` is called when its turn comes, and `relieve` when memory is used up.
    """

    def __init__(self, server: Server, turn: Turn, relieve: Relieve) -> None:
        self._server = server
        self._turn = turn
        self._relieve = relieve
        self._in_turn = False  # whether the next read belongs to a turn
        self.queued = False
        """Others have their turn before the next command."""
        self.held = 0
        """Octets in memory, as last counted."""

    def takes_turns(self, seconds: float, member: Member, *, content: bool) -> bool:
        """Return whether content is read in turns after a large read: it is part of a flood."""
        scheduler = self._server.scheduler
        if not (scheduler.flooded(seconds) and content):
            return False
        if scheduler.sweep():
            self._server.hold_back(member)
        self._in_turn = True
        return True

    def use_turn(self, work: Turn) -> bool:
        """Work through the last read if it belongs to a turn; return whether it does."""
        if not self._in_turn:
            return False
        self._in_turn = False
        self._server.scheduler.during(work)
        return True

    def lead_read(self, *, content: bool) -> None:
        """Let the next read belong to the turn that ends now, if it is one of content."""
        self._in_turn = content

    def queue(self, *, content: bool) -> None:
        """Queue the next turn, once."""
        if not self.queued:
            self.queued = True
            self._server.scheduler.add_turn(self._begin_turn, content=content)

    def _begin_turn(self) -> None:
        self.queued = False
        self._turn()

    def hold(self, octets: int) -> None:
        """Count the memory anew."""
        if octets != self.held:
            self.held = octets
            self._server.memory.hold(self._relieve, octets)

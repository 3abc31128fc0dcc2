"""The stage that lets mail of one sender go 2 s after it came."""

from __future__ import annotations

from datetime import timedelta

from queued.config import QueuedConfig
from queued.delivery.transport.result import postponed
from queued.outgoing.outgoing import Outgoing
from queued.outgoing.stage import OutgoingStage, Prepare, Prepared

SENDER = "slow@a.example"
_WAIT = timedelta(seconds=2)


class SlowSender(OutgoingStage):
    """Puts rows off."""

    def configured(self, config: QueuedConfig) -> Prepare:
        """Return the step."""
        return self.prepare

    def prepare(self, outgoing: Outgoing) -> Prepared:
        """Return the message if its time has come."""
        if outgoing.sender != SENDER:
            return outgoing
        until = max(item.ts for item in outgoing.items) + _WAIT
        if until <= outgoing.started:
            return outgoing
        wait = (until - outgoing.started).total_seconds()
        return postponed(wait, f"mail of {SENDER} waits for 2 s")

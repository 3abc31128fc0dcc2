"""The stage that puts suspended mail off."""

from __future__ import annotations

from queued.config import QueuedConfig
from queued.delivery.transport.result import suspended
from queued.outgoing.outgoing import Outgoing
from queued.outgoing.stage import OutgoingStage, Prepare, Prepared


class SuspensionStage(OutgoingStage):
    """Takes the rows that meet a suspension. The verdict finds their next time."""

    def configured(self, config: QueuedConfig) -> Prepare:
        """Return the step; it depends on no setting."""
        return self.prepare

    def prepare(self, outgoing: Outgoing) -> Prepared:
        """Return the message with the rows that may go."""
        mail = self.context.suspended
        if not mail.active:
            return outgoing
        found = mail.find_places(outgoing.items, outgoing.destination)
        if not found:
            return outgoing
        for place, number in found.items():
            self.context.end([outgoing.items[place]], suspended(number), outgoing.started)
        rest = [item for place, item in enumerate(outgoing.items) if place not in found]
        return outgoing._replace(items=rest) if rest else None

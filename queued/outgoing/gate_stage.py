"""The stage at which the gate keeps mail back, before anything is made of it."""

from __future__ import annotations

from queued.config import QueuedConfig
from queued.delivery.transport.result import gate_result
from queued.outgoing.outgoing import Outgoing
from queued.outgoing.stage import OutgoingStage, Prepare, Prepared


class GateStage(OutgoingStage):
    """Takes the rows that may not go now. The verdict finds their next time."""

    def configured(self, config: QueuedConfig) -> Prepare:
        """Return the step; it depends on no setting."""
        return self.prepare

    def prepare(self, outgoing: Outgoing) -> Prepared:
        """Return the message with the rows that may go."""
        gate = self.context.means.gate
        if not gate.active:
            return outgoing
        found = gate.find_rows(outgoing.items, outgoing.routed.destination)
        if not found:
            return outgoing
        for place, reason in found.items():
            self.context.dispatcher.end(
                [outgoing.items[place]], gate_result(reason), outgoing.started
            )
        rest = [item for place, item in enumerate(outgoing.items) if place not in found]
        return outgoing._replace(items=rest) if rest else None

"""The stage that ends rows whose deadline is over."""

from __future__ import annotations

import asyncio
from datetime import datetime

from pgmta.logs import get
from pgmta.mail.metadata import DEADLINE_KEY, deadline_of
from pgmta.model import Item
from queued.config import QueuedConfig
from queued.delivery.transport.result import DEADLINE_OVER
from queued.outgoing.outgoing import Outgoing
from queued.outgoing.stage import OutgoingStage, Prepare, Prepared

log = get("worker")


class DeadlineStage(OutgoingStage):
    """Reads the deadlines of rows. The log names a bad one once for each row."""

    _bad: tuple[Item, str] | None = None  # the first new row of a claim whose deadline is bad
    _others = 0

    def configured(self, config: QueuedConfig) -> Prepare:
        """Return the step; it depends on no setting."""
        return self.prepare

    def prepare(self, outgoing: Outgoing) -> Prepared:
        """Return the message, in parts if its rows have several deadlines."""
        for item in outgoing.items:
            if item.metadata and DEADLINE_KEY in item.metadata:
                return self._parts(outgoing)
        return outgoing

    def _parts(self, outgoing: Outgoing) -> list[Outgoing]:
        groups: dict[datetime | None, list[Item]] = {}
        for item in outgoing.items:
            deadline, problem = deadline_of(item.metadata or "{}")
            if problem and item.attempts <= 1:
                self._note(item, problem)
            if deadline and deadline <= outgoing.started:
                self.context.dispatcher.end([item], DEADLINE_OVER, outgoing.started)
            else:
                groups.setdefault(deadline, []).append(item)
        return [outgoing._replace(items=rows, deadline=at) for at, rows in groups.items()]

    def _note(self, item: Item, problem: str) -> None:
        if self._bad:
            self._others += 1
            return
        self._bad = item, problem
        asyncio.get_running_loop().call_soon(self._warn)  # after the whole claim

    def _warn(self) -> None:
        """Name the bad deadlines of a claim in one line of the log."""
        assert self._bad  # noqa: S101 - for the type checker
        item, problem = self._bad
        log.warning("a deadline is ignored", row=item.id, message=item.message_id, reason=problem,
                    others=self._others)  # fmt: skip
        self._bad, self._others = None, 0

"""Counts of claims, attempts and commits of one process, in plain numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence

from pgmta.metrics.series import NUMBERS, SECONDS, WAITS, Histogram
from pgmta.model import Facts, Item, Outcome
from pgmta.states import NOT_BEGUN_EVENTS
from queued.process.next_hop_figures import NextHopFigures

MAX_NEXT_HOPS = 100
"""Next hops with own figures; the others share one."""


class DeliveryFigures:
    """Counts each outcome once it is durable, so that the sums are those of the log of attempts.

    A takeover is an attempt by SQL, and is not in them.
    """

    def __init__(self) -> None:
        self.attempts: Counter[tuple[str, str]] = Counter()
        """Attempts by event and answer class."""
        self.next_hops: NextHopFigures[tuple[str, str]] = NextHopFigures(MAX_NEXT_HOPS)
        """The same by next hop."""
        self.returned: Counter[str] = Counter()
        """Rows without an attempt, by event."""
        self.late = 0
        """Outcomes that changed no row: it had moved on, or was gone."""
        self.claims = 0
        self.claimed = 0
        """Rows of all claims."""
        self.failed_claims = 0
        self.dsns = 0
        self.claim_seconds = Histogram(SECONDS)
        self.settle_seconds = Histogram(SECONDS)
        self.settle_outcomes = Histogram(NUMBERS)
        self.first_attempt = Histogram(WAITS)
        """Seconds from the acceptance, or from the send_at, to the first attempt."""
        self.connect = Histogram(SECONDS)
        """Seconds of the set-up of a connection."""
        self.transaction = Histogram(SECONDS)
        """Seconds of the transaction of an attempt."""
        self._facts: Facts | None = None  # those of the last outcome, which many outcomes share

    def count_claim(self, rows: int, seconds: float) -> None:
        """Count a claim."""
        self.claims += 1
        self.claimed += rows
        self.claim_seconds.observe(seconds)

    def count_settled(
        self,
        outcomes: Sequence[Outcome],
        changed: Collection[int] | None,
        next_hop: Callable[[Item], str],
        seconds: float,
    ) -> None:
        """Count outcomes that are durable; `changed` are their rows, None if that is not known."""
        self.settle_seconds.observe(seconds)
        self.settle_outcomes.observe(len(outcomes))
        attempts, hops = self.attempts, self.next_hops
        for outcome in outcomes:
            event, item = outcome.event, outcome.item
            if event in NOT_BEGUN_EVENTS:
                self.returned[event.value] += 1
                continue
            if changed is not None and item.id not in changed:
                self.late += 1
            key = event.value, outcome.answer_class
            attempts[key] += 1
            hops.count(next_hop(item), key)
            if item.attempts == 1:
                self.first_attempt.observe((outcome.started - item.ts).total_seconds())
            if outcome.seconds:
                self.transaction.observe(outcome.seconds)
            facts = outcome.facts
            if facts and facts is not self._facts:
                self._facts = facts
                if facts.connect_seconds or facts.greeting_seconds:
                    self.connect.observe(
                        facts.connect_seconds + facts.greeting_seconds + facts.tls_seconds
                    )

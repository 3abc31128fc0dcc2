"""Counts of committed messages, in plain numbers."""

from __future__ import annotations

from collections.abc import Sequence

from pgmta.intake.content import Content
from pgmta.metrics.series import NUMBERS, SECONDS, Histogram


class IntakeFigures:
    """Counts groups that are durable, once each."""

    def __init__(self) -> None:
        self.messages = 0
        self.recipients = 0
        self.octets = 0
        self.refused = 0
        """Messages that could not be stored, because PostgreSQL was away or refused them."""
        self.seconds = Histogram(SECONDS)
        """How long the commit of a group took."""
        self.sizes = Histogram(NUMBERS)
        """Messages of a group."""

    def count_group(self, group: Sequence[Content], seconds: float) -> None:
        """Count a group that is committed."""
        self.seconds.observe(seconds)
        self.sizes.observe(len(group))
        self.messages += len(group)
        for content in group:
            if message := content.message:
                self.recipients += len(message.recipients)
                self.octets += message.size

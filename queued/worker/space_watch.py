"""The count of stored content that deliveries free."""

from __future__ import annotations

from typing import Protocol


class SpaceWatch(Protocol):
    """Counts content that deliveries free."""

    def freed(self, message_id: int, octets: int) -> None:
        """Note that a message was delivered whose content is stored in chunks."""

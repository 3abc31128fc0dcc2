"""Section `log` of queued.yaml."""

from __future__ import annotations

from pydantic import Field

from pgmta.config.environment import Log


class QueuedLog(Log):
    """Choose what the process logs to stderr."""

    attempts: bool = Field(
        default=False,
        description="a line per attempt, at level info: message, row, sender, recipient, next hop, "
        "delays in seconds by phase, TLS, status, reply and answer class",
    )

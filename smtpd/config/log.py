"""Section `log` of smtpd.yaml."""

from __future__ import annotations

from pydantic import Field

from pgmta.config.environment import Log


class SmtpdLog(Log):
    """Choose what the process logs to stderr."""

    accepted: bool = Field(
        default=True,
        description="a line per message that smtpd has taken, at level info: message id, client, "
        "user, sender, number of recipients, size, listener and session",
    )

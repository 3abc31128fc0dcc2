"""The section `maildrop` of smtpd.yaml."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from pgmta.config.types import FilePath, Period, Section


class Maildrop(Section):
    """The directory in which the command `sendmail` keeps mail while smtpd is away."""

    directory: FilePath | None = Field(
        default=Path("/var/spool/pgmta/maildrop"),
        description="smtpd makes it if its parent lets it; null: smtpd takes no mail from there",
    )
    every: Period = Field(default=10.0, description="time between two looks")

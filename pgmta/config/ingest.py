"""Section `ingest` of smtpd.yaml: the group commit."""

from __future__ import annotations

from pydantic import Field

from pgmta.config.types import Period, Section, Whole


class Ingest(Section):
    """Say how accepted messages are committed, and how long one waits for it."""

    connections: Whole = Field(
        default=1,
        ge=1,
        le=16,
        description="connections to PostgreSQL per process; 4 if a sync takes 5 ms",
    )
    wait: Period = Field(
        default=30.0,
        description="time for a commit to begin, and for its statement; then the client gets 451",
    )

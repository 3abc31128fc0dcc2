"""Section `ingest` of smtpd.yaml: the group commit."""

from __future__ import annotations

from pydantic import Field

from pgmta.config.types import Period, Section, Size, Whole


class Ingest(Section):
    """Bound how many accepted messages one commit takes, and how long a message waits."""

    group: Whole = Field(
        default=100, ge=1, le=10_000, description="at most this many messages per commit"
    )
    octets: Size = Field(default=16 << 20, description="at most this much content per commit")
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

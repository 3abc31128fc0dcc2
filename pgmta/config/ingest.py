"""The section `ingest`: group commit."""

from __future__ import annotations

from pydantic import Field

from pgmta.config.types import Period, Section, Size, Whole


class Ingest(Section):
    """How accepted messages are gathered into commits."""

    group: Whole = Field(default=100, ge=1, le=10_000, description="messages a commit, at most")
    octets: Size = Field(default=16 << 20, description="content a commit, at most")
    connections: Whole = Field(default=1, ge=1, le=16, description="to PostgreSQL, each process")
    wait: Period = Field(
        default=30.0,
        description="for a commit to begin, and for its statement; later the client gets 451",
    )

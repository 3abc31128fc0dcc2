"""Section `ingest` of smtpd.yaml: the group commit."""

from __future__ import annotations

from pydantic import Field, model_validator

from pgmta.config.types import Duration, Period, Section, Whole


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
    patience: Duration = Field(
        default=10.0,
        ge=0,
        description="age up to which an outage of PostgreSQL keeps messages and sessions waiting; "
        "then clients get 451; default: at most `wait`; 0s: they get it at once",
    )

    @model_validator(mode="after")
    def _in_order(self) -> Ingest:
        if "patience" not in self.model_fields_set:
            object.__setattr__(self, "patience", min(self.patience, self.wait))
        if self.patience > self.wait:
            raise ValueError(f"patience ({self.patience:g} s) is above wait ({self.wait:g} s)")
        return self

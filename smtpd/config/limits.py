"""The section `limits` of smtpd.yaml."""

from __future__ import annotations

from pydantic import Field, model_validator

from pgmta.config.types import NetworkList, Period, Section, Size, Whole


class Limits(Section):
    """Bounds on what a client may ask for."""

    message_size: Size = Field(
        default=50 << 20, description="at most this number of octets per message"
    )
    recipients: Whole = Field(default=1000, ge=100, description="recipients per transaction")
    connections: Whole = Field(default=1000, ge=1, description="connections at a time per process")
    connections_per_address: Whole = Field(
        default=50,
        ge=1,
        description="connections of one address (IPv6: /64) per process; of its "
        "network (IPv4: /24, IPv6: /48) four times as many",
    )
    new_connections_per_address: Whole = Field(
        default=600,
        ge=1,
        description="new connections per minute from one address (IPv6: /64) per process; from its "
        "network four times as many",
    )
    exempt: NetworkList | None = Field(
        default=None,
        description="networks without limits by address and network, and without those of "
        "messages, recipients and unknown recipients per session; null: relay.networks",
    )
    errors: Whole = Field(
        default=20, ge=1, description="5xx replies of a session since its last accepted mail"
    )
    hops: Whole = Field(
        default=100, ge=1, description="Received fields; a message with more is in a loop"
    )
    timeout: Period = Field(default=300.0, description="time for the client's next command or data")
    slow_commit: Period = Field(
        default=2.0,
        description="if a commit takes longer, each session waits a second after MAIL",
    )
    late_commit: Period = Field(
        default=20.0,
        description="if a commit takes longer, MAIL and DATA get 451 4.3.0",
    )
    memory: Size = Field(
        default=64 << 20,
        ge=1 << 20,
        description="octets that the sessions of a process hold; above, the largest are not read",
    )

    @model_validator(mode="after")
    def _in_order(self) -> Limits:
        if self.late_commit < self.slow_commit:
            raise ValueError("late_commit is at least slow_commit")
        return self

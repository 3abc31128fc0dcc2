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
        default=50, ge=1, description="connections of one address (IPv6: /64) per process"
    )
    connections_per_network: Whole = Field(
        default=200,
        ge=1,
        description="connections of one network (IPv4: /24, IPv6: /48) per process",
    )
    new_connections_per_address: Whole = Field(
        default=600,
        ge=1,
        description="new connections per minute from one address (IPv6: /64) per process",
    )
    new_connections_per_network: Whole = Field(
        default=2400,
        ge=1,
        description="new connections per minute from one network (IPv4: /24, IPv6: /48) per "
        "process",
    )
    exempt: NetworkList | None = Field(
        default=None,
        description="networks without limits by address and network, and without those of "
        "messages, recipients and unknown recipients per session; null: relay.networks",
    )
    messages_per_session: Whole = Field(
        default=1000, ge=1, description="messages of a session; then MAIL gets 421"
    )
    recipients_per_session: Whole = Field(
        default=10_000, ge=1, description="recipients of a session; then MAIL gets 421"
    )
    unknown_recipients: Whole = Field(
        default=10, ge=1, description="unknown recipients that a session may name; then 421"
    )
    errors: Whole = Field(
        default=20, ge=1, description="5xx replies of a session since its last accepted mail"
    )
    junk: Whole = Field(
        default=100,
        ge=1,
        description="commands that carry no mail (NOOP, RSET, VRFY, EHLO …) of a session since its "
        "last accepted mail, one more per second; further ones are errors",
    )
    hops: Whole = Field(
        default=100, ge=1, description="Received fields; a message with more is in a loop"
    )
    hello_time: Period = Field(default=60.0, description="time from the connection to EHLO or HELO")
    timeout: Period = Field(default=300.0, description="time for the client's next command or data")
    data_time: Period = Field(default=1800.0, description="time for the whole content of a message")
    data_rate: Whole = Field(
        default=100, ge=1, description="least octets of content per second, over three minutes"
    )
    transaction_time: Period = Field(
        default=3600.0, description="time from MAIL to the end of the message"
    )
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

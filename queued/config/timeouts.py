"""Section `delivery.timeouts` of queued.yaml."""

from __future__ import annotations

from pydantic import Field

from pgmta.config.types import Duration, Period, Section


class Timeouts(Section):
    """How long to wait for the next hop (RFC 5321, section 4.5.3.2)."""

    connect: Period = Field(default=30.0, description="for a connection, each address")
    greeting: Period = Field(default=300.0, description="for 220")
    command: Period = Field(default=300.0, description="for the replies to EHLO, MAIL, RCPT")
    data: Period = Field(default=120.0, description="for 354")
    block: Period = Field(default=180.0, description="for the next part of the content to go out")
    final: Period = Field(default=600.0, description="for the reply to the final dot")
    quit: Duration = Field(default=2.0, description="for the reply to QUIT")
    tls: Period = Field(default=30.0, description="for the TLS handshake")

"""Section `delivery.dns` of queued.yaml."""

from __future__ import annotations

from typing import Annotated

from pydantic import BeforeValidator, Field

from pgmta.config.types import HostPort, Period, Section, parse_server


class Dns(Section):
    """Which name servers are asked for MX and addresses."""

    servers: list[Annotated[HostPort, BeforeValidator(parse_server)]] = Field(
        default=[], description="address or address:port of name servers; none: the system's"
    )
    timeout: Period = Field(default=10.0, description="for one query, all servers together")
    trust_ad: bool = Field(
        default=False,
        description="believe name servers that are not on loopback that they have validated an "
        "answer (AD bit); DANE needs it",
    )
    probe: str = Field(
        default=".",
        description="a domain whose NS records are signed: DANE is off if they come without AD bit",
    )

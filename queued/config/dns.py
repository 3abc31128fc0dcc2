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

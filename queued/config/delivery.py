"""Section `delivery` of queued.yaml: how mail is sent to next hops."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from pgmta.config.types import Duration, Section, Size, Whole
from queued.config.dns import Dns
from queued.config.timeouts import Timeouts


class Delivery(Section):
    """How mail is sent to next hops."""

    connections: Whole = Field(default=20, ge=1, le=1000, description="at most, to one next hop")
    transactions: Whole = Field(default=1000, ge=1, description="at most, on one connection")
    idle: Duration = Field(default=5.0, description="keep an unused connection this long")
    recipients: Whole = Field(
        default=100, ge=1, le=10_000, description="at most, in one transaction"
    )
    inline: Size = Field(
        default=1 << 17, description="content up to this size comes with the claim of its row"
    )
    bare_newlines: Literal["guard", "reject"] = Field(
        default="guard",
        description="bare CR or LF in content, which may come by SQL: guard sends them but holds "
        "what a next hop could take for the end of data; reject holds them all",
    )
    ipv6: bool = Field(default=True, description="use AAAA addresses of next hops")
    timeouts: Timeouts = Field(default=Timeouts())
    dns: Dns = Field(default=Dns())

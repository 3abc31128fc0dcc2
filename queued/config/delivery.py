"""Section `delivery` of queued.yaml: how mail is sent to next hops."""

from __future__ import annotations

from ipaddress import ip_network
from typing import Literal

from pydantic import Field

from pgmta.config.types import Duration, NetworkList, Period, Section, Size, Whole
from queued.config.dns import Dns
from queued.config.timeouts import Timeouts
from queued.config.tls import Tls

# networks that are not of the Internet: the registries of IANA for RFC 6890, and multicast
_FORBIDDEN = (
    "0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12",
    "192.0.0.0/24", "192.0.2.0/24", "192.168.0.0/16", "198.18.0.0/15", "198.51.100.0/24",
    "203.0.113.0/24", "224.0.0.0/4", "240.0.0.0/4", "::/128", "::1/128", "100::/64", "2001:2::/48",
    "2001:db8::/32", "3fff::/20", "5f00::/16", "fc00::/7", "fe80::/10", "fec0::/10", "ff00::/8",
)  # fmt: skip


class Delivery(Section):
    """How mail is sent to next hops."""

    connections: Whole = Field(default=20, ge=1, le=1000, description="at most, to one next hop")
    start: Whole = Field(
        default=4,
        ge=1,
        le=1000,
        description="connections to one next hop at the beginning; more with each message that it "
        "takes, fewer if it refuses one",
    )
    transactions: Whole = Field(default=1000, ge=1, description="at most, on one connection")
    idle: Duration = Field(default=5.0, description="keep an unused connection this long")
    recipients: Whole = Field(
        default=100, ge=1, le=10_000, description="at most, in one transaction"
    )
    transaction: Period = Field(
        default=1800.0, description="a transaction that has not come to its final dot ends after it"
    )
    inline: Size = Field(
        default=1 << 17, description="content up to this size comes with the claim of its row"
    )
    bare_newlines: Literal["guard", "reject"] = Field(
        default="guard",
        description="bare CR or LF in content, which may come by SQL: guard sends them, and "
        "what a next hop could take for the end of data fails; with reject they all fail",
    )
    eightbit: Literal["send", "bounce"] = Field(
        default="send",
        description="content beyond ASCII for a next hop without 8BITMIME: send it as it is, or "
        "let it fail (RFC 6152 asks for that)",
    )
    ipv6: bool = Field(default=True, description="use AAAA addresses of next hops")
    port: Whole = Field(default=25, ge=1, le=65535, description="of hosts that DNS names")
    hosts: Whole = Field(
        default=5, ge=1, le=100, description="at most, tried for one message before its next retry"
    )
    addresses: Whole = Field(default=4, ge=1, le=100, description="at most, tried of one host")
    literals: bool = Field(
        default=False, description="deliver mail for user@[192.0.2.1]; it fails otherwise"
    )
    forbidden: NetworkList = Field(
        default=[ip_network(network) for network in _FORBIDDEN],
        description="no mail goes to hosts in these networks, unless a route names the host",
    )
    allowed: NetworkList = Field(
        default=[], description="parts of `forbidden` to which DNS may lead mail all the same"
    )
    timeouts: Timeouts = Field(default=Timeouts())
    dns: Dns = Field(default=Dns())
    tls: Tls = Field(default=Tls())

"""Section `delivery` of queued.yaml: name servers, times, TLS, connections."""

from __future__ import annotations

import os
import ssl
from ipaddress import ip_network
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, ValidationInfo, field_validator

from pgmta.config.types import (
    FOLDER,
    Duration,
    HostPort,
    NetworkList,
    Period,
    Section,
    Size,
    Whole,
    checked,
    parse_server,
)
from pgmta.mail.address import parse_mailbox


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


DATA_S = 120.0  # for 354, as the RFC says
BLOCK_S = 180.0  # for the next part of the content to go out, as the RFC says
QUIT_S = 2.0  # for the reply to QUIT, which changes nothing


class Timeouts(Section):
    """How long to wait for the next hop (RFC 5321, section 4.5.3.2)."""

    connect: Period = Field(default=30.0, description="for a connection, each address")
    greeting: Period = Field(default=300.0, description="for 220")
    command: Period = Field(
        default=300.0,
        description="for the replies to EHLO, MAIL, RCPT; for those to DATA and QUIT, and for each "
        "part of the content, at most 2 minutes, 2 seconds and 3 minutes",
    )
    final: Period = Field(default=600.0, description="for the reply to the final dot")
    tls: Period = Field(default=30.0, description="for the TLS handshake")

    @property
    def data(self) -> float:
        """Seconds for 354."""
        return min(DATA_S, self.command)

    @property
    def block(self) -> float:
        """Seconds for the next part of the content to go out."""
        return min(BLOCK_S, self.command)

    @property
    def quit(self) -> float:
        """Seconds for the reply to QUIT."""
        return min(QUIT_S, self.command)


class Tls(Section):
    """How strong the TLS with next hops has to be."""

    mode: Literal["best", "none", "opportunistic", "encrypt", "verify", "dane"] = Field(
        default="best",
        description="best: the strongest that the domain promises, by DANE (RFC 7672) before "
        "MTA-STS (RFC 8461), else opportunistic; none; opportunistic: plain text if TLS fails; "
        "encrypt: any certificate; verify: a trusted CA's for the host; dane: TLSA records",
    )
    minimum: Literal["TLSv1", "TLSv1.1", "TLSv1.2", "TLSv1.3"] = Field(
        default="TLSv1.2", description="lowest version of TLS"
    )
    ca: str | None = Field(
        default=None,
        description="file (PEM) or folder (c_rehash) of trusted CAs, relative to this one, for "
        "verify and MTA-STS; null: the system's",
    )
    sts: bool = Field(default=True, description="mode best: obey MTA-STS policies")
    sts_port: Whole = Field(
        default=443, ge=1, le=65535, description="port of MTA-STS policies, for tests"
    )

    @field_validator("ca")
    @classmethod
    def _readable(cls, path: str | None, info: ValidationInfo) -> str | None:
        if path is None:
            return None
        path = os.path.join((info.context or {}).get(FOLDER, ""), path)
        if os.path.isdir(path):
            return path
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(path)
        except ssl.SSLError:
            raise ValueError(f"{path} has no certificates in PEM") from None
        except OSError as error:
            raise ValueError(f"{path}: {error.strerror}") from None
        return path


# Networks outside of the Internet: those of the registries of IANA (RFC 6890), and multicast.
_FORBIDDEN_NETWORKS = (
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
    literals: bool = Field(
        default=False, description="deliver mail for user@[192.0.2.1]; it fails otherwise"
    )
    forbidden: NetworkList = Field(
        default=[ip_network(network) for network in _FORBIDDEN_NETWORKS],
        description="no mail goes to hosts in these networks, unless a route names the host",
    )
    allowed: NetworkList = Field(
        default=[], description="parts of `forbidden` to which DNS may lead mail all the same"
    )
    redirect: str | None = Field(
        default=None,
        description="for staging: all mail goes to this address, with its recipient in the field "
        "X-Original-To",
    )
    hold_all: bool = Field(
        default=False,
        description="for staging: a rule holds all mail until an operator releases it",
    )
    timeouts: Timeouts = Field(default=Timeouts())
    dns: Dns = Field(default=Dns())
    tls: Tls = Field(default=Tls())

    @field_validator("redirect")
    @classmethod
    def _address(cls, redirect: str | None) -> str | None:
        if redirect is not None:
            checked("expected an address: ", parse_mailbox, redirect, utf8=True)
        return redirect

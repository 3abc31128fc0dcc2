"""smtpd.yaml: where to listen, whose mail to take. Twin of etc/smtpd.yaml."""

from __future__ import annotations

import ipaddress
import os
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from queued.address import normalise_domain
from queued.config.environment import Environment, Log
from queued.config.types import Period, Section, Size, Whole
from queued.errors import AddressError

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


def _parse_network(value: object) -> Network:
    try:
        return ipaddress.ip_network(str(value))
    except ValueError as error:
        raise ValueError(f"expected an address or CIDR network: {error}") from None


def _parse_address(value: str) -> str:
    try:
        return str(ipaddress.ip_address(value))
    except ValueError:
        raise ValueError(f"{value!r} is no IP address to listen on") from None


def _parse_domain(value: str) -> str:
    bare = value.removeprefix("*.")
    try:
        return value[: len(value) - len(bare)] + normalise_domain(bare)
    except AddressError as error:
        raise ValueError(f"expected a domain or *.domain: {error}") from None


def default_processes() -> int:
    """One process a core, and no more than four: PostgreSQL needs some too."""
    return max(1, min(4, (os.cpu_count() or 2) // 2))


class Listener(Section):
    """One address and port."""

    address: Annotated[str, AfterValidator(_parse_address)] = Field(
        default="127.0.0.1", description="IP address; 0.0.0.0 or :: for all"
    )
    port: Whole = Field(default=2525, ge=1, le=65535, description="TCP port")
    backlog: Whole = Field(default=1024, ge=1, description="connections that may wait for accept")


class Relay(Section):
    """Whose mail is taken; everything else is refused: no open relay."""

    networks: list[Annotated[Network, BeforeValidator(_parse_network)]] = Field(
        default=[ipaddress.ip_network("127.0.0.0/8"), ipaddress.ip_network("::1/128")],
        description="clients in these networks may send to anybody",
    )
    domains: list[Annotated[str, AfterValidator(_parse_domain)]] = Field(
        default=[], description="recipients in these domains (or *.domain) are taken from anybody"
    )


class Limits(Section):
    """Bounds on what a client may ask for."""

    message_size: Size = Field(default=50 << 20, description="octets of a message")
    recipients: Whole = Field(default=1000, ge=100, description="in one transaction")
    connections: Whole = Field(default=1000, ge=1, description="at a time, to each process")
    hops: Whole = Field(default=100, ge=1, description="Received lines; more is a loop")
    timeout: Period = Field(default=300.0, description="for the client's next command or data")


class Content(Section):
    """What a message may look like on the wire."""

    bare_newlines: Literal["guard", "reject"] = Field(
        default="guard",
        description="bare CR or LF: guard keeps them but refuses what another server could take "
        "for the end of data; reject refuses them all",
    )


class Ingest(Section):
    """How accepted messages are gathered into commits."""

    group: Whole = Field(default=100, ge=1, le=10_000, description="messages a commit, at most")
    octets: Size = Field(default=16 << 20, description="content a commit, at most")
    connections: Whole = Field(default=2, ge=1, le=16, description="to PostgreSQL, each process")
    wait: Period = Field(default=30.0, description="for a commit; later the client gets 451")


class SmtpdConfig(Section):
    """The whole of smtpd.yaml."""

    environment: Environment = Field(default_factory=Environment)
    listen: list[Listener] = Field(
        default=[Listener()], min_length=1, description="where to take mail"
    )
    processes: Whole = Field(
        default_factory=default_processes,
        ge=1,
        le=64,
        description="processes that share the listeners; default: one for two cores, at most 4",
    )
    relay: Relay = Field(default=Relay())
    limits: Limits = Field(default=Limits())
    content: Content = Field(default=Content())
    ingest: Ingest = Field(default=Ingest())
    log: Log = Field(default=Log())

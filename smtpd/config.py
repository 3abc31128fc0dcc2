"""smtpd.yaml: where to listen, whose mail to take. Twin of etc/smtpd.yaml."""

from __future__ import annotations

import ipaddress
import os
import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, field_validator, model_validator

from pgmta.address import normalise_domain, parse_mailbox
from pgmta.config.environment import Environment, Log
from pgmta.config.ingest import Ingest
from pgmta.config.types import Network, Period, Section, Size, Whole, hint, parse_network
from pgmta.errors import AddressError


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


def _parse_mailbox(value: str) -> str:
    try:
        return parse_mailbox(value)[0]
    except AddressError as error:
        raise ValueError(f"expected an address: {error}") from None


def default_processes() -> int:
    """Return one process per two cores, at most four: PostgreSQL needs cores too."""
    return max(1, min(4, (os.cpu_count() or 2) // 2))


SOURCES = (
    "listener",
    "client",
    "user",
    "sender",
    "sender_domain",
    "recipient",
    "recipient_domain",
)
_WORD = r"[^\W\d]\w*"
_REFERENCE = re.compile(rf"{_WORD}(\.{_WORD})*:{_WORD}(\.{_WORD})*")
_HEADER = re.compile(r"header:[!-9;-~]+")


def _parse_source(value: str) -> str:
    if value in SOURCES or _HEADER.fullmatch(value):
        return value
    raise ValueError(f"{value!r} is no source; {hint(value, (*SOURCES, 'header:NAME'))}")


class Source(Section):
    """The source of one metadata key's value."""

    source: Annotated[str, AfterValidator(_parse_source)] = Field(
        alias="from",
        description="listener, client, user, sender, sender_domain, recipient, recipient_domain "
        "or header:NAME",
    )
    map: dict[str, str] | None = Field(
        default=None, description="value → metadata; others get the default"
    )
    buckets: Whole | None = Field(
        default=None, ge=2, le=10_000, description="a stable hash of the value: '1' to this number"
    )
    default: str | None = Field(
        default=None, description="for an empty or unmapped value; absent: the key is left out"
    )

    @property
    def of_recipient(self) -> bool:
        """Whether recipients of one message may get different values."""
        return self.source.startswith("recipient")

    @model_validator(mode="after")
    def _one_way(self) -> Source:
        if self.map and self.buckets:
            raise ValueError("map and buckets exclude each other")
        return self


def _parse_key(key: str) -> str:
    if not key or len(key) > 64 or not key.isprintable():
        raise ValueError("a metadata key is a word of at most 64 characters")
    return key


class Hook(Section):
    """A handler of the operator's own, in the interface of aiosmtpd (docs/hooks.md)."""

    handler: str = Field(description="package.module:Name of a class, an object or a function")
    arguments: list[Any] = Field(default=[], description="for the class or the function")

    @field_validator("handler")
    @classmethod
    def _reference(cls, value: str) -> str:
        if not _REFERENCE.fullmatch(value):
            raise ValueError(f"expected package.module:Name, not {value!r}")
        return value


def _parse_hook(value: object) -> object:
    """Read `package.module:Name` alone, which is the usual case."""
    return {"handler": value} if isinstance(value, str) else value


Hooks = list[Annotated[Hook, BeforeValidator(_parse_hook)]]


class Listener(Section):
    """One address and port."""

    name: str | None = Field(
        default=None, description="for metadata from listener; absent: address:port"
    )

    address: Annotated[str, AfterValidator(_parse_address)] = Field(
        default="127.0.0.1", description="IP address; 0.0.0.0 or :: for all"
    )
    port: Whole = Field(default=2525, ge=1, le=65535, description="TCP port")
    backlog: Whole = Field(default=1024, ge=1, description="connections that may wait for accept")
    hooks: Hooks | None = Field(
        default=None, description="handlers of this listener; absent: those of the top level"
    )
    relay: Literal["policy", "hook"] = Field(
        default="policy",
        description="who accepts recipients: the section relay, which hooks only narrow, or the "
        "handle_RCPT of a hook alone",
    )

    @property
    def label(self) -> str:
        """The value of metadata from listener."""
        return self.name or f"{self.address}:{self.port}"


class Relay(Section):
    """The relay policy; smtpd refuses all other mail: it is no open relay."""

    networks: list[Annotated[Network, BeforeValidator(parse_network)]] = Field(
        default=[ipaddress.ip_network("127.0.0.0/8"), ipaddress.ip_network("::1/128")],
        description="clients in these networks may send to any address",
    )
    domains: list[Annotated[str, AfterValidator(_parse_domain)]] = Field(
        default=[], description="any client may send to recipients in these domains (or *.domain)"
    )


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
    exempt: list[Annotated[Network, BeforeValidator(parse_network)]] | None = Field(
        default=None,
        description="networks without limits by address and network; null: relay.networks",
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
    timeout: Period = Field(default=300.0, description="time for the client's next command or data")
    data_time: Period = Field(default=1800.0, description="time for the whole content of a message")
    memory: Size = Field(
        default=64 << 20,
        ge=1 << 20,
        description="octets that the sessions of a process hold; above, the largest are not read",
    )


class HookLimits(Section):
    """Bounds on what hooks may use, per handler and process."""

    time: Period = Field(default=60.0, description="for the answer of a hook, then 451 4.3.0")
    threads: Whole = Field(
        default=16, ge=1, le=256, description="threads, of which all but one wait for a blocked one"
    )
    calls: Whole = Field(default=2000, ge=1, description="open calls; further ones get 451 4.3.0")
    direct: bool = Field(
        default=True,
        description="call a handler that awaits nothing in the thread of the sessions, after it "
        "has answered 500 calls at once",
    )


class Content(Section):
    """Rules for content on the wire."""

    bare_newlines: Literal["guard", "reject"] = Field(
        default="guard",
        description="bare CR or LF: guard keeps them but refuses an end of data for lenient "
        "servers; reject refuses them all",
    )


class SmtpdConfig(Section):
    """The whole of smtpd.yaml."""

    environment: Environment = Field(default_factory=Environment)
    listen: list[Listener] = Field(
        default=[Listener()], min_length=1, description="addresses and ports that take mail"
    )
    processes: Whole = Field(
        default_factory=default_processes,
        ge=1,
        le=64,
        description="processes that share the listeners; default: one per two cores, at most 4",
    )
    relay: Relay = Field(default=Relay())
    postmaster: Annotated[str, AfterValidator(_parse_mailbox)] | None = Field(
        default=None,
        description="address for mail to the postmaster of this host; null: smtpd holds it",
    )
    metadata: dict[Annotated[str, AfterValidator(_parse_key)], Source] = Field(
        default={}, description="metadata of each row by key, such as _partid"
    )
    limits: Limits = Field(default=Limits())
    content: Content = Field(default=Content())
    ingest: Ingest = Field(default=Ingest())
    hooks: Hooks = Field(
        default=[],
        description="handlers in the interface of aiosmtpd, asked in this order: "
        "package.module:Name, or handler and arguments",
    )
    hook_limits: HookLimits = Field(default=HookLimits())
    log: Log = Field(default=Log())

    @property
    def uses_hooks(self) -> bool:
        """Whether a hook is configured, or a listener needs one."""
        listeners = any(listener.hooks or listener.relay == "hook" for listener in self.listen)
        return bool(self.hooks) or listeners

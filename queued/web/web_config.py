"""The file web.yaml: where `queued web` listens, its public URL, keys and limits."""

from __future__ import annotations

import ipaddress
from typing import Annotated, ClassVar

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    ValidationInfo,
    field_validator,
)

from pgmta.config.environment import Environment, Log, environment_field
from pgmta.config.joined import JoinedFile, joined
from pgmta.config.token_keys import TokenKeys
from pgmta.config.types import (
    NetworkList,
    Period,
    Section,
    Size,
    Whole,
    hint,
    parse_listen_address,
)
from pgmta.config.urls import parse_public_url
from pgmta.daemon_role import API as API_DAEMON
from pgmta.daemon_role import WEB, DaemonRole
from pgmta.features import import_paths

PAGES, API = "pages", "api"

type Audience = frozenset[str]
"""What a listener serves."""


def _audience(word: str) -> str:
    known = sorted({PAGES} | {name for _, name, _ in import_paths("routes")})
    if word not in known:
        raise ValueError(f"unknown; {hint(word, known)}")
    return word


class WebListener(Section):
    """One address and port. TLS is the affair of a proxy."""

    needs_restart: ClassVar[bool] = True

    address: Annotated[str, AfterValidator(parse_listen_address)] = Field(
        default="127.0.0.1", description="IP address; 0.0.0.0 or :: for all"
    )
    port: Whole = Field(default=2581, ge=1, le=65535, description="TCP port")
    serves: list[Annotated[str, AfterValidator(_audience)]] = Field(
        default=[PAGES, "callbacks"],
        min_length=1,
        description="pages of tokens, callbacks of providers, and api: the HTTP API",
    )

    @property
    def audience(self) -> Audience:
        """What it serves."""
        return frozenset(self.serves)


class Public(Section):
    """URLs as browsers see them. No URL comes from a request."""

    url: Annotated[str, BeforeValidator(parse_public_url)] = Field(
        default="http://127.0.0.1:2581",
        description="begin of the links in mail; with https browsers keep to https (HSTS)",
    )


class WebLimits(Section):
    """Bounds on clients."""

    exempt: NetworkList = Field(
        default=[],
        description="networks without the limit of 20 refused tokens per minute, such as an "
        "application that verifies for its users",
    )
    address_connections: Whole = Field(
        default=100,
        ge=1,
        le=100_000,
        description="connections of an address (IPv6: /64), except those of `proxies` and "
        "`limits.exempt`",
    )
    request: Period = Field(default=10.0, description="time for a header and its body")
    body: Size = Field(default=8 << 10, description="octets of a body, at most")


class WebConfig(JoinedFile):
    """The whole of web.yaml."""

    environment: Environment = environment_field()
    proxies: NetworkList = Field(  # above `listen`, whose check needs it
        default=[],
        description="networks of proxies; their X-Forwarded-For names the client, from the right",
    )
    listen: list[WebListener] = Field(
        default=[WebListener()], min_length=1, description="where the server listens"
    )
    public: Public = Field(default=Public())
    tokens: TokenKeys = Field(default=TokenKeys())
    limits: WebLimits = Field(default=WebLimits())
    log: Log = Field(default=Log())

    @property
    def audiences(self) -> Audience:
        """What some listener serves."""
        return frozenset().union(*(each.audience for each in self.listen))

    @property
    def role(self) -> DaemonRole:
        """The kind of this process, which its login fits: of the API alone, or of pages too."""
        return API_DAEMON if self.audiences == {API} else WEB

    @field_validator("listen")
    @classmethod
    def _distinct(cls, listen: list[WebListener]) -> list[WebListener]:
        places = [(each.address, each.port) for each in listen]
        for address, port in places:
            if places.count((address, port)) > 1:
                raise ValueError(f"{address}, port {port}, is listed twice")
        return listen

    @field_validator("listen")
    @classmethod
    def _protected(cls, listen: list[WebListener], info: ValidationInfo) -> list[WebListener]:
        """Refuse an API that gets keys over a network without TLS."""
        proxies = info.data.get("proxies", True)  # wrong ones are a mistake of their own
        for each in listen:
            if API in each.serves and not (proxies or _is_loopback(each.address)):
                raise ValueError(
                    f"the API listens on {each.address} without TLS: name those that have it in "
                    "`proxies`, or let it listen on 127.0.0.1"
                )
        return listen


def _is_loopback(address: str) -> bool:
    return ipaddress.ip_address(address).is_loopback


def whole_web_config() -> type[WebConfig]:
    """Return WebConfig with the sections and the keys of the features."""
    return joined(WebConfig, "web")

"""The file shaping.yaml: routes, their hosts and logins, and the keys of VERP addresses."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    PrivateAttr,
    ValidationError,
    ValidationInfo,
    create_model,
    field_validator,
    model_validator,
)
from pydantic_core import PydanticCustomError

from pgmta.config.joined import extended
from pgmta.config.loader import Problem
from pgmta.config.types import (
    Section,
    Whole,
    hint,
    is_address,
    listed,
    parse_host_port,
)
from pgmta.config.yaml_file import dotted
from pgmta.features import import_paths, load
from pgmta.model import RouteLimit
from pgmta.selection import Selection
from queued.config.mail_conditions import MailConditions, Patterns, domain_term
from queued.config.retry import Retry, RouteRetry
from queued.config.rewriting import ShapingRewrite
from queued.config.shaping_secrets import ShapingVerp, read_password, read_verp_key


class ShapingHost(Section):
    """A host that takes mail; `host:port` as text is short for a mapping with these keys."""

    host: str = Field(description="name or address")
    port: Whole | None = Field(
        default=None, ge=1, le=65535, description="default: `port` of the route"
    )
    weight: Whole = Field(
        default=1, ge=1, le=1000, description="of 2: tried first twice as often as a host of 1"
    )
    fallback: bool = Field(default=False, description="tried after all other hosts")

    @model_validator(mode="before")
    @classmethod
    def _from_text(cls, value: Any) -> Any:
        if not isinstance(value, str):
            return value
        found = parse_host_port(value)
        bare = value.strip().endswith("]") or ":" not in value
        return {"host": found.host} if bare else {"host": found.host, "port": found.port}

    @field_validator("host")
    @classmethod
    def _named(cls, host: str) -> str:
        bare = host.removeprefix("[").removesuffix("]")
        text = f"[{bare}]" if bare.count(":") > 1 else host
        found = parse_host_port(text)
        if found.host != bare:
            raise ValueError(f"{host!r} has a port: write it as the key port")
        return found.host


type Mechanism = Literal["SCRAM-SHA-256", "PLAIN", "LOGIN"]


class ShapingLogin(Section):
    """A user of next hops. Its password is in a file, so that no configuration shows it."""

    user: str = Field(min_length=1, max_length=255, description="the name that next hops know")
    password_file: Path = Field(
        description="file whose only line is the password, relative to shaping.yaml; other users "
        "must not be able to read it"
    )
    mechanisms: list[Mechanism] = Field(
        default=["SCRAM-SHA-256", "PLAIN", "LOGIN"],
        min_length=1,
        description="the first that the next hop offers is used",
    )


_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")


def _name(word: Any) -> str | None:
    if word is None or (isinstance(word, str) and _NAME.fullmatch(word)):
        return word
    raise ValueError("only letters, digits, '_', '.' and '-', at most 64")


SMTP_TRANSPORTS = ("smtp", "lmtp")
"""The transports whose destinations are hosts; others have `parameters`."""


def _transport(name: str, info: ValidationInfo) -> str:
    known = (info.context or {}).get("transports")
    if known is not None and name not in known:
        raise ValueError(f"no transport {name!r}; {hint(name, known)}")
    return name


def _parameters(given: Any, info: ValidationInfo) -> Any:
    """Return what the transport makes of its parameters."""
    known = (info.context or {}).get("transports") or {}
    parse = known.get(info.data.get("transport"))
    if parse is None:
        return given
    try:
        return parse(given)
    except ValidationError as error:
        reasons = (f"{dotted(each['loc'])}: {each['msg']}" for each in error.errors())
        raise ValueError("; ".join(reasons)) from None


def _targets(value: Any, info: ValidationInfo) -> Any:
    if value is None:
        if (
            info.data.get("transport") in SMTP_TRANSPORTS
        ):  # the key is absent if the transport is unknown
            raise PydanticCustomError("missing", "is required")
        return []
    if isinstance(value, str) and value.lower() == "mx":
        return []
    if value == []:
        raise ValueError("expected mx, a host or a list of hosts")
    return listed(value)


@dataclass(frozen=True, slots=True)
class ShownLimit:
    """How commands show what a key of a feature limits.

    `text` returns what the limits of a route say of it, None if they say nothing. `facts` returns
    that for machines: the value named `key`, and others, all None without a limit.
    """

    key: str
    text: Callable[[Sequence[RouteLimit]], str | None]
    facts: Callable[[Sequence[RouteLimit]], dict[str, Any]]


class ShapingRoute(MailConditions):
    """A route. All of its conditions have to be met; one without conditions is for all mail."""

    name: Annotated[str | None, BeforeValidator(_name)] = Field(
        default=None, description="its name in logs and `queuectl route`; default: its number"
    )
    domain: Patterns | None = Field(
        default=None, description="recipient domain, *.domain (all below it), * or a list of these"
    )
    transport: Annotated[str, AfterValidator(_transport)] = Field(
        default="smtp",
        description="smtp; lmtp, to a mailbox server (RFC 2033); or another that is registered",
    )
    to: Annotated[list[ShapingHost], BeforeValidator(_targets)] = Field(
        default=None,
        validate_default=True,
        description="mx, a host, or a list of hosts: each host:port or a mapping; required with "
        "smtp and lmtp",
    )
    parameters: Annotated[Any, AfterValidator(_parameters)] = Field(
        default={},
        validate_default=True,
        description="for another transport than smtp and lmtp, which checks them",
    )
    port: Whole | None = Field(
        default=None,
        ge=1,
        le=65535,
        description="of hosts without one; default: 25, with lmtp 24, with implicit 465; of MX "
        "hosts: delivery.port",
    )
    implicit: bool = Field(default=False, description="TLS from the first octet (RFC 8314)")
    tls: Literal["best", "none", "opportunistic", "encrypt", "verify", "dane"] | None = Field(
        default=None,
        description="as delivery.tls.mode, which is the default; default with a login: verify, or "
        "dane if the host has TLSA records",
    )
    login: str | None = Field(default=None, description="one of `logins`; only over TLS")
    retry: RouteRetry | None = Field(
        default=None,
        description="keys of the section retry of queued.yaml that differ for its mail",
    )
    rewrite: ShapingRewrite | None = Field(
        default=None, description="changes to its mail as it leaves"
    )

    @property
    def mail(self) -> Selection:
        """The mail that it is for."""
        domain = Selection.every(domain_term("domain", self.domain))
        return domain & self.of_path & self.of_row

    @property
    def by_domain(self) -> bool:
        """Whether each recipient domain is a destination of its own, because MX hosts take it."""
        return self.transport in SMTP_TRANSPORTS and not self.to

    @property
    def limits(self) -> tuple[RouteLimit, ...]:
        """What its mail waits for beside a connection, by keys of features."""
        return ()

    @classmethod
    def shown_limits(cls) -> tuple[ShownLimit, ...]:
        """How commands show these limits."""
        return ()

    def wrong_keys(self) -> Iterator[tuple[str, str]]:
        """Yield keys of features that do not fit together, and the reasons."""
        yield from ()


type SecretName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")]


class Shaping(Section):
    """The whole of shaping.yaml."""

    logins: dict[str, ShapingLogin] = Field(default={}, description="names and passwords")
    secrets: dict[SecretName, Path] = Field(
        default={},
        description="files whose only line is a secret, relative to shaping.yaml, that other users "
        "can't read; parameters of a transport have them as words {{secrets.NAME}}",
    )
    routes: list[ShapingRoute] = Field(
        default=[], description="the first that matches says where mail goes"
    )
    verp: ShapingVerp = Field(default=ShapingVerp())
    _passwords: dict[str, str] = PrivateAttr(default={})
    _secrets: dict[str, str] = PrivateAttr(default={})
    _verp_keys: list[bytes] = PrivateAttr(default=[])

    @property
    def verp_keys(self) -> tuple[bytes, ...]:
        """The keys of VERP addresses; empty until `read_passwords` has read them."""
        return tuple(self._verp_keys)

    def password(self, login: str) -> str:
        """Return the password of a login; empty until `read_passwords` has read it."""
        return self._passwords.get(login, "")

    @property
    def secret_values(self) -> Mapping[str, str]:
        """The secrets by name; empty ones until `read_passwords` has read them."""
        return {name: self._secrets.get(name, "") for name in self.secrets}

    def read_passwords(self, folder: Path) -> list[Problem]:
        """Read passwords and keys; their files are relative to `folder`. Return the mistakes."""
        problems: list[Problem] = []
        for name, login in self.logins.items():
            try:
                self._passwords[name] = read_password(folder / login.password_file)
            except ValueError as error:
                problems.append((("logins", name, "password_file"), str(error)))
        for name, file in self.secrets.items():
            try:
                self._secrets[name] = read_password(folder / file)
                if not self._secrets[name].isascii():  # header fields can't have other characters
                    raise ValueError(f"{folder / file} has other characters than ASCII")
            except ValueError as error:
                problems.append((("secrets", name), str(error)))
        for number, file in enumerate(self.verp.keys):
            try:
                self._verp_keys.append(read_verp_key(folder / file))
            except ValueError as error:
                problems.append((("verp", "keys", number), str(error)))
        return problems

    def with_retry(self, usual: Retry) -> Shaping:
        """Return the same, and each `retry` has from the section what the route does not say."""
        routes = [
            route.model_copy(update={"retry": route.retry.over(usual)}) if route.retry else route
            for route in self.routes
        ]
        return self.model_copy(update={"routes": routes})

    def problems(self, usual_tls: str = "best") -> list[Problem]:
        """Return the mistakes that no single key has; `usual_tls` is delivery.tls.mode."""
        found: list[Problem] = []
        names: dict[str, int] = {}
        for number, route in enumerate(self.routes):
            for key, reason in chain(self._wrong(route), _wrong_dane(route, usual_tls)):
                found.append((("routes", number, key), reason))
            for keys, reason in route.retry.problems() if route.retry else ():
                found.append((("routes", number, "retry", *keys), reason))
            if route.rewrite:
                found += ((("routes", number, "rewrite", *key), reason)
                          for key, reason in route.rewrite.problems())  # fmt: skip
                if route.rewrite.verp and not self.verp.keys:
                    where = "routes", number, "rewrite", "sender"
                    found.append((where, "needs a key: `verp.keys` has none"))
            if route.name in names:
                reason = f"routes[{names[route.name]}] has the same name"
                found.append((("routes", number, "name"), reason))
            elif route.name:
                names[route.name] = number
        for number, route in enumerate(self.routes[:-1]):
            if not route.mail.groups:
                reason = "takes all mail, so the routes after it are never used"
                found.append((("routes", number), reason))
                break
        return found

    def _wrong(self, route: ShapingRoute) -> Iterator[tuple[str, str]]:
        """Yield keys of a route that do not fit together, and the reasons."""
        if route.login is not None and route.login not in self.logins:
            advice = hint(route.login, self.logins) if self.logins else "there are no logins"
            yield "login", f"no login {route.login!r}; {advice}"
        yield from route.wrong_keys()
        if route.transport not in SMTP_TRANSPORTS:
            for key in ("to", "port", "implicit", "tls", "login"):
                if key in route.model_fields_set:
                    yield key, f"is for smtp and lmtp; {route.transport} has `parameters`"
            for name in sorted(getattr(route.parameters, "secret_names", ())):
                if name not in self.secrets:
                    advice = hint(name, self.secrets) if self.secrets else "there are no secrets"
                    yield "parameters", f"no secret {name!r}; {advice}"
            return
        if route.parameters:
            yield "parameters", "are for other transports than smtp and lmtp"
        if not route.to:
            for key in ("login", "implicit"):
                if getattr(route, key):
                    yield key, "needs hosts in `to`, not mx"
            if route.transport == "lmtp":
                yield "transport", "lmtp needs hosts in `to`, not mx"
        if route.implicit and route.tls == "none":
            yield "tls", "is none, but implicit is true"
        ports = (host.port or route.port for host in route.to)
        if 465 in ports and "implicit" not in route.model_fields_set:
            yield "implicit", "is missing: port 465 speaks TLS from the first octet (RFC 8314)"
        if route.transport == "lmtp" and 25 in (route.port, *(host.port for host in route.to)):
            yield "transport", "lmtp must not use port 25 (RFC 2033, section 5)"


@cache
def whole_route() -> type[ShapingRoute]:
    """Return ShapingRoute with the keys of the features.

    Raises FeatureError if two give the same key.
    """
    parts = [(feature, load(path)) for feature, _, path in import_paths("route_keys")]
    return extended(ShapingRoute, parts, "key of routes")


@cache
def whole_shaping() -> type[Shaping]:
    """Return Shaping whose routes have the keys of the features."""
    route: Any = whole_route()
    routes: Any = (list[route], Shaping.model_fields["routes"])
    return create_model("Shaping", __base__=Shaping, __doc__=Shaping.__doc__, routes=routes)


def _wrong_dane(route: ShapingRoute, usual_tls: str) -> Iterator[tuple[str, str]]:
    """Yield the key that asks for TLSA records of an address, and the reason."""
    found = next((host.host for host in route.to if is_address(host.host)), None)
    if found and (route.tls or usual_tls) == "dane":
        problem = f"is dane, but no TLSA record can be for {found}; write the host's name"
        if route.tls:
            yield "tls", f"{problem} in `to`, or tls: verify"
        else:
            yield "to", f"delivery.tls.mode {problem}, or add tls: verify"

"""Where mail goes and how: the destinations of mail, their hosts and logins (pure)."""

from __future__ import annotations

import hashlib
import math
import secrets
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Literal

from pgmta.config.types import HostPort
from queued.config import Retry
from queued.delivery.transport.tls_policy import TlsMode
from queued.rewriting.rewrite import Rewriting

type Protocol = Literal["smtp", "lmtp"]

_SECRET = secrets.token_bytes(16)  # so that a key of a destination is no test for passwords


@dataclass(frozen=True, slots=True)
class Hop:
    """A host that a route names; a `fallback` is tried after all others."""

    host: str
    port: int = 25
    weight: int = 1
    fallback: bool = False

    def __str__(self) -> str:
        return str(HostPort(self.host, self.port))


@dataclass(frozen=True, slots=True)
class Login:
    """A name and a password for hosts that ask for them; `mechanisms` in order of preference."""

    name: str
    user: str
    password: str = field(repr=False)
    mechanisms: tuple[str, ...] = ("SCRAM-SHA-256", "PLAIN", "LOGIN")

    @property
    def key(self) -> str:
        """A text that differs between logins and does not show the password."""
        words = "\0".join((self.name, self.user, self.password, *self.mechanisms)).encode()
        return f"{self.name}:{hashlib.blake2s(words, key=_SECRET, digest_size=12).hexdigest()}"


@dataclass(frozen=True, slots=True)
class Destination:
    """The hosts that mail goes to, and how: fixed `hops`, or the `domain` whose MX are looked up.

    `port` is that of MX hosts; None means `delivery.port`. `implicit` is TLS from the first octet.
    A `tls` of None means `delivery.tls.mode`. `requiretls` and `tls_optional` are wishes of
    the sender (RFC 8689). `route` is the name of its route, for operators.
    Mail of equal destinations may share a connection, and `key` is equal only for them. Mail with
    the same `group` may share a transaction: it is rewritten alike, too.
    `retry` is that of its route.
    """

    hops: tuple[Hop, ...] = ()
    domain: str = ""
    port: int | None = None
    protocol: Protocol = "smtp"
    implicit: bool = False
    tls: TlsMode | None = None
    login: Login | None = None
    requiretls: bool = False
    tls_optional: bool = False
    route: str = field(default="", compare=False)
    retry: Retry | None = field(default=None, repr=False, compare=False)
    rewriting: Rewriting | None = field(default=None, repr=False, compare=False)
    key: str = field(init=False, repr=False, compare=False)
    group: str = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        # no part has a space or a comma in it
        hosts = ",".join(f"{h}*{h.weight}{'-' if h.fallback else ''}" for h in self.hops)
        parts = [hosts or f"mx {self.domain}"]
        wish = "optional" if self.tls_optional else self.requiretls
        how = (self.port or "", self.protocol, self.implicit, self.tls or "", wish)
        if how != ("", "smtp", False, "", False):
            parts += [str(value) for value in how]
        if self.login:
            parts.append(self.login.key)
        key = " ".join(parts)
        object.__setattr__(self, "key", key)
        group = f"{key} {self.rewriting.name}" if self.rewriting else key
        object.__setattr__(self, "group", group)

    @property
    def wished(self) -> bool:
        """Whether a sender has asked for another TLS than usual."""
        return self.requiretls or self.tls_optional

    def __str__(self) -> str:
        return ",".join(map(str, self.hops)) or f"mx:{self.domain}"


def hops_in_order(hops: Iterable[Hop], chance: Callable[[], float]) -> list[Hop]:
    """Return the hops in the order for one connection: by weight at random, fallbacks last.

    A hop of weight 2 comes first twice as often as one of weight 1. `chance` returns a number from
    0 to below 1, as random.random does.
    """

    def place(hop: Hop) -> tuple[bool, float]:
        # the least of exponential variates: Efraimidis and Spirakis, 2006
        return hop.fallback, -math.log(1.0 - chance()) / hop.weight

    return sorted(hops, key=place)

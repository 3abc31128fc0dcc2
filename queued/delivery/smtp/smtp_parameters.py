"""The parameters of destinations that get mail by SMTP or LMTP (pure)."""

from __future__ import annotations

import hashlib
import secrets
from dataclasses import dataclass, field

from queued.delivery.dns.hop import Hop
from queued.delivery.tls.tls_policy import TlsDemand, TlsMode
from queued.delivery.transport.destination import Destination, TlsWish

# With it nobody can try passwords on the key of a destination.
_SECRET = secrets.token_bytes(16)


@dataclass(frozen=True, slots=True)
class SmtpLogin:
    """A name and a password for hosts that ask for them; `mechanisms` in order of preference."""

    name: str
    user: str
    password: str = field(repr=False)
    mechanisms: tuple[str, ...] = ("SCRAM-SHA-256", "PLAIN", "LOGIN")

    @property
    def key(self) -> str:
        """A text that differs between logins and does not show the password."""
        identity = "\0".join((self.name, self.user, self.password, *self.mechanisms)).encode()
        return f"{self.name}:{hashlib.blake2s(identity, key=_SECRET, digest_size=12).hexdigest()}"


@dataclass(frozen=True, slots=True)
class SmtpParameters:
    """The hosts that mail goes to, and how: fixed `hops`, or the MX of the recipient domain.

    `port` is that of MX hosts; None means `delivery.port`. `implicit` is TLS from the first octet.
    A `tls` of None means `delivery.tls.mode`.
    """

    hops: tuple[Hop, ...] = ()
    port: int | None = None
    implicit: bool = False
    tls: TlsMode | None = None
    login: SmtpLogin | None = None

    @property
    def key(self) -> str:
        """A text that differs between parameters and shows no password."""
        # no part of a host has a space or a comma in it
        hosts = ",".join(f"{h}*{h.weight}{'-' if h.fallback else ''}" for h in self.hops)
        login = self.login.key if self.login else ""
        return f"{hosts} {self.port or ''} {self.implicit} {self.tls or ''} {login}"

    def __str__(self) -> str:
        return ",".join(map(str, self.hops)) or "mx"


def parameters_of(destination: Destination) -> SmtpParameters:
    """Return the parameters of a destination for SMTP or LMTP."""
    parameters = destination.parameters
    assert isinstance(parameters, SmtpParameters)  # noqa: S101 - for the type checker
    return parameters


def demand_of(destination: Destination) -> TlsDemand:
    """Return the TLS that a destination for SMTP or LMTP asks for."""
    parameters = parameters_of(destination)
    return TlsDemand(
        parameters.tls,
        destination.domain,
        parameters.implicit,
        parameters.login is not None,
        requiretls=destination.wish is TlsWish.REQUIRED,
        optional=destination.wish is TlsWish.OPTIONAL,
    )

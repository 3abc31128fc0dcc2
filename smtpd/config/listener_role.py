"""The roles of listeners, and the defaults that each role sets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pgmta.config.types import checked
from pgmta.mail.address import normalise_domain, parse_mailbox

Tls = Literal["none", "offered", "required", "implicit"]
Auth = Literal["none", "offered", "required"]
BareNewlines = Literal["guard", "reject"]
Early = Literal["allow", "refuse"]


@dataclass(frozen=True, slots=True)
class Role:
    """Has the options of a listener that names none."""

    tls: Tls
    """With certificates; `offered` becomes `none` without any."""
    auth: Auth
    bare_newlines: BareNewlines
    early: Early
    fix_ups: bool
    """Whether smtpd adds Date and Message-ID, and removes Bcc (RFC 6409, section 8)."""
    trusts: bool
    """Whether clients in `relay.networks` may send to any address."""


ROLES = {
    "relay": Role("offered", "none", "reject", "refuse", fix_ups=False, trusts=True),
    "submission": Role("required", "required", "guard", "allow", fix_ups=True, trusts=False),
    "internal": Role("offered", "none", "guard", "allow", fix_ups=False, trusts=True),
}


def parse_domain(value: str) -> str:
    """Return a normalised domain or *.domain; raises ValueError."""
    bare = value.removeprefix("*.")
    normal = checked("expected a domain or *.domain: ", normalise_domain, bare)
    return value[: len(value) - len(bare)] + normal


def parse_address(value: str) -> str:
    """Return a mailbox; raises ValueError."""
    return checked("expected an address: ", parse_mailbox, value)[0]

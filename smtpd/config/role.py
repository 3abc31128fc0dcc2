"""The roles of listeners, and the defaults that each role sets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

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

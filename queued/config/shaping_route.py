"""One of `routes` in shaping.yaml: which mail it is for, and where that goes."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from pgmta.config.types import Whole, listed
from queued.config.mail_conditions import MailConditions, Patterns, Senders, Tenants, Values
from queued.config.retry import RouteRetry
from queued.config.shaping_host import ShapingHost
from queued.config.shaping_rewrite import ShapingRewrite

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")


def _name(word: Any) -> str | None:
    if word is None or (isinstance(word, str) and _NAME.fullmatch(word)):
        return word
    raise ValueError("only letters, digits, '_', '.' and '-', at most 64")


def _targets(value: Any) -> Any:
    if isinstance(value, str) and value.lower() == "mx":
        return []
    if value == []:
        raise ValueError("expected mx, a host or a list of hosts")
    return listed(value)


class ShapingRoute(MailConditions):
    """A route. All of its conditions have to be met; one without conditions is for all mail."""

    name: Annotated[str | None, BeforeValidator(_name)] = Field(
        default=None, description="its name in logs and `queuectl route`; default: its number"
    )
    domain: Patterns | None = Field(
        default=None, description="recipient domain, *.domain (all below it), * or a list of these"
    )
    sender_domain: Patterns | None = Field(
        default=None, description="domain of the sender, likewise"
    )
    sender: Senders | None = Field(
        default=None, description="address of the sender, <> for none, or a list of these"
    )
    tenant: Tenants | None = Field(
        default=None, description="tenant for whom the mail is, or a list of these"
    )
    metadata: dict[str, Values] = Field(
        default={}, alias="metadata.KEY", description="value of this metadata, or a list of values"
    )
    to: Annotated[list[ShapingHost], BeforeValidator(_targets)] = Field(
        description="mx, a host, or a list of hosts: each host:port or a mapping",
    )
    port: Whole | None = Field(
        default=None,
        ge=1,
        le=65535,
        description="of hosts without one; default: 25, with lmtp 24, with implicit 465; of MX "
        "hosts: delivery.port",
    )
    protocol: Literal["smtp", "lmtp"] = Field(
        default="smtp", description="lmtp: to a mailbox server (RFC 2033)"
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

"""The section `auth` of smtpd.yaml."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from pgmta.config.types import NetworkList, Section, Whole


def _distinct(values: list[str]) -> list[str]:
    if len(set(values)) < len(values):
        raise ValueError("a mechanism is named twice")
    return values


class Failures(Section):
    """Bounds on failed logins, over all processes; above them a login gets 454 4.7.0."""

    address: Whole = Field(
        default=10,
        ge=1,
        description="failures of an address (IPv6: /64); four times as many of its network (IPv4: "
        "/24, IPv6: /48), and as many of a user from a network where the user logged in",
    )
    user: Whole = Field(
        default=20,
        ge=1,
        description="failures of a user, without those from networks where the user logged in",
    )
    exempt: NetworkList = Field(
        default=[],
        description="networks without limits by address and network, such as that of a webmail",
    )


class Authentication(Section):
    """How users log in (RFC 4954); the option auth of a listener says whether."""

    mechanisms: Annotated[
        list[Literal["PLAIN", "LOGIN", "SCRAM-SHA-256"]], AfterValidator(_distinct)
    ] = Field(default=["PLAIN", "LOGIN", "SCRAM-SHA-256"], min_length=1,
              description="offered, in this order")  # fmt: skip
    failures: Failures = Field(default=Failures())

"""The section `auth` of smtpd.yaml."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from pgmta.config.types import NetworkList, Period, Section, Whole


def _distinct(values: list[str]) -> list[str]:
    if len(set(values)) < len(values):
        raise ValueError("a mechanism is named twice")
    return values


class Failures(Section):
    """Bounds on failed logins, over all processes; above them a login gets 454 4.7.0."""

    period: Period = Field(
        default=600.0, gt=0, description="time in which the following numbers are forgotten"
    )
    address: Whole = Field(default=10, ge=1, description="failures of an address (IPv6: /64)")
    network: Whole = Field(
        default=40, ge=1, description="failures of a network (IPv4: /24, IPv6: /48)"
    )
    user: Whole = Field(
        default=20,
        ge=1,
        description="failures of a user, without those from networks where the user logged in",
    )
    own: Whole = Field(
        default=10,
        ge=1,
        description="failures of a user from one network where the user logged in; other limits "
        "do not keep the user out there",
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
    remember: Period = Field(
        default=600.0,
        description="time for which a process remembers a right password, as a keyed hash in "
        "memory; a change of the user ends it within a second",
    )
    threads: Whole = Field(
        default=2,
        ge=1,
        le=16,
        description="passwords that a process checks at a time; each takes 19 MB",
    )
    failures: Failures = Field(default=Failures())

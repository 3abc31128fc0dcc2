"""Where mail goes: a transport, and its parameters (pure)."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol


class TransportParameters(Protocol):
    """The parameters of a destination, which only its transport reads. They never change."""

    @property
    def key(self) -> str:
        """A text that differs between parameters and shows no password."""


class TlsWish(StrEnum):
    """The wish of a sender for the TLS on the way (RFC 8689)."""

    NONE = ""
    REQUIRED = "required"
    OPTIONAL = "optional"


@dataclass(frozen=True, slots=True)
class Destination:
    """A transport by its name, its parameters, and a wish of the sender.

    `domain` is the recipient domain if the destination is for the mail of one domain only. Mail of
    equal destinations may share a channel, and `key` is equal only for them.
    """

    transport: str
    parameters: TransportParameters
    domain: str = ""
    wish: TlsWish = TlsWish.NONE
    key: str = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        parts = self.transport, self.wish, self.parameters.key, self.domain
        object.__setattr__(self, "key", "\n".join(parts))

    def __str__(self) -> str:
        return f"{self.parameters}:{self.domain}" if self.domain else str(self.parameters)

    @property
    def next_hops(self) -> set[str]:
        """The names of its next hops: hosts with and without port, or a domain.

        A destination by MX has the domain of the recipient.
        """
        if self.domain:
            return {self.domain}
        hops = str(self.parameters).lower().split(",")
        return {*hops, *(hop.rpartition(":")[0].strip("[]") for hop in hops)}

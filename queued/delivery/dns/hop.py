"""The hosts that a route names (pure)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from pgmta.config.types import HostPort


@dataclass(frozen=True, slots=True)
class Hop:
    """A host that a route names; a `fallback` is tried after all others."""

    host: str
    port: int = 25
    weight: int = 1
    fallback: bool = False

    def __str__(self) -> str:
        return str(HostPort(self.host, self.port))


def hops_in_order(hops: Iterable[Hop], chance: Callable[[], float]) -> list[Hop]:
    """Return the hops in the order for one connection: by weight at random, fallbacks last.

    A hop of weight 2 comes first twice as often as one of weight 1. `chance` returns a number from
    0 to below 1, as random.random does.
    """

    def place(hop: Hop) -> tuple[bool, float]:
        # the least of exponential variates: Efraimidis and Spirakis, 2006
        return hop.fallback, -math.log(1.0 - chance()) / hop.weight

    return sorted(hops, key=place)

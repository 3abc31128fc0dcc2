"""How much mail may go to a destination at most, and which keys say so (pure)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

from pgmta.features import loaded
from queued.config import Delivery
from queued.routing.routes import Routed

_CONNECTIONS = "delivery.connections of queued.yaml"


@dataclass(frozen=True, slots=True)
class ShownLimit:
    """How commands show what the keys of a feature limit.

    `text` returns the limit of a route, None if it has none. `facts` returns it for machines: the
    value named `key`, the key of the configuration that sets it, named `KEY_by`, and others; all
    are None if there is no limit.
    """

    key: str
    text: Callable[[Routed], str | None]
    facts: Callable[[Routed], dict[str, Any]]


@cache
def shown_limits() -> tuple[ShownLimit, ...]:
    """Return the limits that features put on routes."""
    return tuple(loaded("route_limits"))


def ceiling(delivery: Delivery, routed: Routed) -> dict[str, Any]:
    """Return the ceilings of a route: connections of each worker, and limits over all workers.

    `shown` is all in one text, and each number has the key that sets it.
    """
    default = "" if "connections" in delivery.model_fields_set else ", its default"
    found: dict[str, Any] = {
        "route": routed.route,
        "shown": str(delivery.connections),
        "connections": delivery.connections,
        "connections_by": f"{_CONNECTIONS}{default}",
    }
    for each in shown_limits():
        found |= each.facts(routed)
        if text := each.text(routed):
            found["shown"] += f" \N{MULTIPLICATION SIGN} {text}"
    return found

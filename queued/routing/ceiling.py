"""How much mail may go to a destination at most, and which keys say so (pure)."""

from __future__ import annotations

from typing import Any

from queued.config import Delivery, whole_route
from queued.routing.routes import Routed

_CONNECTIONS = "delivery.connections of queued.yaml"


def ceiling(delivery: Delivery, routed: Routed) -> dict[str, Any]:
    """Return the ceilings of a route: connections of each worker, and limits over all workers.

    `shown` is all in one text, and each number has the key that sets it, named `KEY_by`.
    """
    default = "" if "connections" in delivery.model_fields_set else ", its default"
    found: dict[str, Any] = {
        "route": routed.route,
        "shown": str(delivery.connections),
        "connections": delivery.connections,
        "connections_by": f"{_CONNECTIONS}{default}",
    }
    for each in whole_route().shown_limits():
        text = each.text(routed.limits)
        found |= each.facts(routed.limits)
        found[f"{each.key}_by"] = f"{routed.key}.{each.key} of shaping.yaml" if text else None
        if text:
            found["shown"] += f" \N{MULTIPLICATION SIGN} {text}"
    return found

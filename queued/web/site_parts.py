"""The parts of the site: those of the features."""

from __future__ import annotations

from pgmta.features import import_paths, load
from queued.web.site import WebPart
from queued.web.web_config import WebConfig


def parts(config: WebConfig) -> list[tuple[str, WebPart]]:
    """Return the parts that the listeners serve, each with its audience."""
    served = config.audiences
    return [(name, load(path)) for _, name, path in import_paths("routes") if name in served]


def warnings_about(config: WebConfig) -> list[str]:
    """Return notes about a configuration for the operator, in sentences."""
    found = [part for _, part in parts(config)]
    if not any(part.is_used(config) for part in found):
        return ["nothing is served: tokens has no key, so that every token is refused"]
    return [warning for part in found for warning in part.warnings(config)]

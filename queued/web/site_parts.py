"""The parts of the site: those of the features."""

from __future__ import annotations

from pgmta.features import loaded
from queued.web.site import WebPart
from queued.web.web_config import WebConfig


def parts() -> list[WebPart]:
    """Return the parts of the features."""
    return list(loaded("routes"))


def warnings_about(config: WebConfig) -> list[str]:
    """Return notes about a configuration for the operator, in sentences."""
    if not any(part.is_used(config) for part in parts()):
        return ["nothing is served: tokens has no key, so that every token is refused"]
    return [warning for part in parts() for warning in part.warnings(config)]

"""The section `metrics` of each daemon's file."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from pydantic import BeforeValidator, Field

from pgmta.config.types import HostPort, Section, is_address, parse_host_port


def _parse_listener(value: Any) -> HostPort:
    address = parse_host_port(value, 0)
    if not is_address(address.host):
        raise ValueError(f"{address.host!r} is no IP address to listen on")
    return address


class MetricsPage(Section):
    """Choose where the figures and the health of a daemon are served. They have no login."""

    needs_restart: ClassVar[bool] = True

    listen: Annotated[HostPort, BeforeValidator(_parse_listener)] | None = Field(
        default=None,
        description="address:port of /metrics, /healthz and /readyz, such as 127.0.0.1:9101; null: "
        "no such server",
    )

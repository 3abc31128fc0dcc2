"""One of the hosts in `to` of a route in shaping.yaml."""

from __future__ import annotations

from typing import Any

from pydantic import Field, field_validator, model_validator

from pgmta.config.types import Section, Whole, parse_host_port


class ShapingHost(Section):
    """A host that takes mail; `host:port` as text is short for a mapping with these keys."""

    host: str = Field(description="name or address")
    port: Whole | None = Field(
        default=None, ge=1, le=65535, description="default: `port` of the route"
    )
    weight: Whole = Field(
        default=1, ge=1, le=1000, description="of 2: tried first twice as often as a host of 1"
    )
    fallback: bool = Field(default=False, description="tried after all other hosts")

    @model_validator(mode="before")
    @classmethod
    def _from_text(cls, value: Any) -> Any:
        if not isinstance(value, str):
            return value
        found = parse_host_port(value)
        bare = value.strip().endswith("]") or ":" not in value
        return {"host": found.host} if bare else {"host": found.host, "port": found.port}

    @field_validator("host")
    @classmethod
    def _named(cls, host: str) -> str:
        bare = host.removeprefix("[").removesuffix("]")
        text = f"[{bare}]" if bare.count(":") > 1 else host
        found = parse_host_port(text)
        if found.host != bare:
            raise ValueError(f"{host!r} has a port: write it as the key port")
        return found.host

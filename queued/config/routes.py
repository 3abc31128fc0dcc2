"""Section `routes` of queued.yaml: its keys and values."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator

from pgmta.address import normalise_domain
from pgmta.config.types import HostPort, parse_host_port
from pgmta.errors import AddressError


def _parse_target(value: Any) -> HostPort | Literal["mx"]:
    if isinstance(value, str) and value.lower() == "mx":
        return "mx"
    return parse_host_port(value)


def parse_pattern(pattern: str) -> str:
    """Return a domain, `*.domain` or `*`, normalised. Raises ValueError."""
    bare = pattern.removeprefix("*.") if pattern != "*" else "example.com"
    try:
        normal = normalise_domain(bare)
    except AddressError as error:
        raise ValueError(f"expected a domain, *.domain or *: {error}") from None
    return pattern if pattern == "*" else pattern[: len(pattern) - len(bare)] + normal


Target = Annotated[HostPort | Literal["mx"], BeforeValidator(_parse_target)]
Pattern = Annotated[str, AfterValidator(parse_pattern)]

"""Section `routes` of queued.yaml: its keys and values."""

from __future__ import annotations

from collections.abc import Collection
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator

from pgmta.address import domains_above, normalise_domain
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


def domain_fits(patterns: Collection[str] | None, domain: str) -> bool:
    """Return whether a domain is one of the patterns; None stands for all domains."""
    if patterns is None or "*" in patterns or domain in patterns:
        return True
    return any(f"*.{above}" in patterns for above in domains_above(domain))


Target = Annotated[HostPort | Literal["mx"], BeforeValidator(_parse_target)]
Pattern = Annotated[str, AfterValidator(parse_pattern)]

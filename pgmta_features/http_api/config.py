"""The keys of web.yaml about the API."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field

from pgmta.config.types import Section, Size, Whole

_MAX_BODY_OCTETS = 10 << 20  # a body of JSON is in memory as a whole, several times


def _not_too_large(octets: int) -> int:
    if octets > _MAX_BODY_OCTETS:
        raise ValueError("should be at most 10MB; larger attachments go by multipart/form-data")
    return octets


class ApiLimits(Section):
    """Bounds on clients of the API."""

    api_body: Annotated[Size, AfterValidator(_not_too_large)] = Field(
        default=1 << 20, description="octets of a body of JSON for the API, at most; up to 10MB"
    )
    api_rate: Whole | None = Field(
        default=None,
        ge=1,
        le=1_000_000,
        description="requests of an API key per second and process, at most; null: any number",
    )

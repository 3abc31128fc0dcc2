"""The lists `certificates` of smtpd.yaml."""

from __future__ import annotations

from typing import Annotated

from pydantic import BeforeValidator, Field

from pgmta.config.types import FilePath, Section


class Certificate(Section):
    """A certificate of this host with its key."""

    certificate: FilePath = Field(
        description="PEM file, relative to this one: the certificate, then those of the "
        "authorities below the root"
    )
    key: FilePath | None = Field(
        default=None, description="PEM file of its private key; null: it is in the same file"
    )


def _parse(value: object) -> object:
    """Read the path of a file alone, which has certificate and key."""
    return {"certificate": value} if isinstance(value, str) else value


Certificates = list[Annotated[Certificate, BeforeValidator(_parse)]]

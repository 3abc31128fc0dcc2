"""The section `client_certificates` of a listener in smtpd.yaml."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator, Field, model_validator

from pgmta.config.types import FilePath, Section

_FINGERPRINT = re.compile(r"[0-9a-f]{64}")


def _parse_fingerprint(value: str) -> str:
    digits = value.replace(":", "").lower()
    if not _FINGERPRINT.fullmatch(digits):
        raise ValueError("expected the 64 hexadecimal digits of a SHA-256 fingerprint")
    return digits


class ClientCertificates(Section):
    """Certificates by which clients may send to any address."""

    authorities: FilePath | None = Field(
        default=None,
        description="PEM file of the authorities, or of the clients' certificates themselves: "
        "clients are asked for a certificate, and with any other one they can't begin TLS",
    )
    names: list[Annotated[str, AfterValidator(str.lower)]] = Field(
        default=[], description="names of trusted clients: host names or mail addresses"
    )
    fingerprints: list[Annotated[str, AfterValidator(_parse_fingerprint)]] = Field(
        default=[], description="SHA-256 fingerprints of trusted certificates"
    )

    @model_validator(mode="after")
    def _someone(self) -> ClientCertificates:
        named = bool(self.names or self.fingerprints)
        if self.authorities and not named:
            raise ValueError("needs names or fingerprints of the clients that are trusted")
        if named and not self.authorities:
            raise ValueError("needs authorities, whose certificates are asked for")
        return self

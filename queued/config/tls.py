"""Section `delivery.tls` of queued.yaml."""

from __future__ import annotations

import os
import ssl
from typing import Literal

from pydantic import Field, ValidationInfo, field_validator

from pgmta.config.types import FOLDER, Period, Section, Whole


class Tls(Section):
    """How strong the TLS with next hops has to be."""

    mode: Literal["best", "none", "opportunistic", "encrypt", "verify", "dane"] = Field(
        default="best",
        description="best: the strongest that the domain promises, by DANE (RFC 7672) before "
        "MTA-STS (RFC 8461), else opportunistic; none; opportunistic: plain text if TLS fails; "
        "encrypt: any certificate; verify: a trusted CA's for the host; dane: TLSA records",
    )
    minimum: Literal["TLSv1", "TLSv1.1", "TLSv1.2", "TLSv1.3"] = Field(
        default="TLSv1.2", description="lowest version of TLS"
    )
    ca: str | None = Field(
        default=None,
        description="file (PEM) or folder (c_rehash) of trusted CAs, relative to this one, for "
        "verify and MTA-STS; null: the system's",
    )
    sts: bool = Field(default=True, description="mode best: obey MTA-STS policies")
    remember: Period = Field(
        default=3600.0,
        description="a host whose handshake failed twice within this time gets plain text for as "
        "long, unless a policy asks for TLS",
    )
    sts_port: Whole = Field(
        default=443, ge=1, le=65535, description="port of MTA-STS policies, for tests"
    )

    @field_validator("ca")
    @classmethod
    def _readable(cls, path: str | None, info: ValidationInfo) -> str | None:
        if path is None:
            return None
        path = os.path.join((info.context or {}).get(FOLDER, ""), path)
        if os.path.isdir(path):
            return path
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(path)
        except ssl.SSLError:
            raise ValueError(f"{path} has no certificates in PEM") from None
        except OSError as error:
            raise ValueError(f"{path}: {error.strerror}") from None
        return path

"""Section `webhooks` of queued.yaml and web.yaml: secrets of endpoints, and where they may be."""

from __future__ import annotations

import base64
import binascii
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from pydantic import (
    BeforeValidator,
    Field,
    ValidationInfo,
    WithJsonSchema,
    field_validator,
    model_validator,
)

from pgmta.config.token_keys import TokenKeyFiles
from pgmta.config.types import FOLDER, NetworkList, Section
from pgmta.secret_file import read_secret
from pgmta_features.webhooks.signing import SECRET_NAME, SECRET_PREFIX, Secrets

_SECRET = re.compile(rf"{SECRET_PREFIX}([A-Za-z0-9+/]+=*)", re.ASCII)
_MIN_OCTETS, _MAX_OCTETS = 24, 64  # of a secret, by Standard Webhooks
_MAX_FILE_OCTETS = 1024


@dataclass(frozen=True, slots=True)
class SecretFile:
    """A secret as receivers have it, `whsec_…`."""

    secret: str = field(repr=False)


def _read(value: Any, info: ValidationInfo) -> SecretFile:
    if not isinstance(value, str) or not value:
        raise ValueError("expected the path of a file with a secret such as whsec_…")
    folder = (info.context or {}).get(FOLDER)
    path = Path(folder) / value if folder else Path(value)
    text = read_secret(path, _MAX_FILE_OCTETS).decode("latin-1").strip()
    try:
        match = _SECRET.fullmatch(text)
        size = len(base64.b64decode(match[1], validate=True)) if match else 0
    except binascii.Error:
        size = 0
    if not _MIN_OCTETS <= size <= _MAX_OCTETS:
        raise ValueError(
            f"{path} has no secret: expected {SECRET_PREFIX} and {_MIN_OCTETS} to {_MAX_OCTETS} "
            "octets as base64"
        )
    return SecretFile(text)


type _SecretFile = Annotated[SecretFile, BeforeValidator(_read), WithJsonSchema({"type": "string"})]


class WebhookKeys(Section):
    """The keys of the installation, from which secrets of endpoints are derived."""

    keys: TokenKeyFiles = Field(
        default=[],
        description="files with 64 hexadecimal digits, of which `queuectl token key` makes one: "
        "the first derives secrets of endpoints, and each has those that it has derived; the same "
        "in queued.yaml and web.yaml",
    )

    @model_validator(mode="before")
    @classmethod
    def _of_queued(cls, value: Any) -> Any:
        if isinstance(value, dict):
            for name in value.keys() & (WebhookSettings.model_fields.keys() - cls.model_fields):
                raise ValueError(f"{name} belongs into queued.yaml: here it may have `keys`")
        return value

    def known_secrets(self) -> Secrets:
        """Return the secrets of endpoints that it has."""
        return Secrets(self.keys, {})


class WebhookSettings(WebhookKeys):
    """Where events are posted, and who proves it with which secret."""

    secrets: dict[str, _SecretFile] = Field(
        default={},
        description="files with a secret such as whsec_…, by the name that `queuectl webhook add "
        "--secret` gives",
    )
    networks: NetworkList = Field(
        default=[],
        description="networks beside public ones to which events may be posted, also without TLS; "
        "never for endpoints of a tenant or of a key of the API",
    )

    def known_secrets(self) -> Secrets:
        """Return the secrets of endpoints that it has, with those of files."""
        return Secrets(self.keys, {name: file.secret for name, file in self.secrets.items()})

    @field_validator("secrets")
    @classmethod
    def _names(cls, secrets: dict[str, _SecretFile]) -> dict[str, _SecretFile]:
        for name in secrets:
            if not SECRET_NAME.fullmatch(name):
                raise ValueError(f"{name!r} is no name: expected up to 32 of a-z, 0-9 and . _ -")
        return secrets

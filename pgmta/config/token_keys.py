"""Section `tokens`: the keys of signed tokens, which queued.yaml and web.yaml share."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Annotated, Any

from pydantic import (
    BeforeValidator,
    Field,
    ValidationInfo,
    WithJsonSchema,
    field_validator,
    model_validator,
)

from pgmta.config.types import FOLDER, Section
from pgmta.secret_file import read_secret

KEY_ID = re.compile(r"[a-z0-9](?:[a-z0-9._-]{0,31})", re.ASCII)
"""The name of a key: rows of the queue name their key by it."""

_HEX = re.compile(rb"[0-9A-Fa-f]{64}")
_MAX_FILE_OCTETS = 1024


@dataclass(frozen=True, slots=True)
class KeyFile:
    """The path of a file with a key, and the key in it: 32 octets."""

    path: str
    secret: bytes = field(repr=False)


def read_key(path: str) -> KeyFile:
    """Read a key of 64 hexadecimal digits. Raises ValueError, whose text names the path."""
    if not os.path.lexists(path):
        raise ValueError(
            f"{path}: no such file; `queuectl token key` makes one, and `make run` those of etc/dev"
        )
    content = read_secret(path, _MAX_FILE_OCTETS).strip()
    if not _HEX.fullmatch(content):
        raise ValueError(
            f"{path} has no key of 64 hexadecimal digits: it has {len(content)} characters; "
            "`queuectl token key` makes one"
        )
    return KeyFile(path, bytes.fromhex(content.decode()))


def _read(value: Any, info: ValidationInfo) -> KeyFile:
    if not isinstance(value, str) or not value:
        raise ValueError("expected the path of a file with 64 hexadecimal digits")
    folder = (info.context or {}).get(FOLDER)
    return read_key(str(folder / value) if folder else value)


def _key_id(value: Any) -> str:
    if isinstance(value, int | str) and KEY_ID.fullmatch(str(value)):
        return str(value)
    raise ValueError(f"{value!r} is no name of a key: expected up to 32 of a-z, 0-9 and . _ -")


class TokenKeyFile(Section):
    """Name a key of tokens, and its file."""

    id: Annotated[str, BeforeValidator(_key_id)] = Field(
        description="name of the key; mail that waits names its key by it"
    )
    file: Annotated[KeyFile, BeforeValidator(_read), WithJsonSchema({"type": "string"})] = Field(
        description="file with 64 hexadecimal digits, relative to this one, which others can't "
        "read; `queuectl token key` makes one"
    )


class TokenKeys(Section):
    """Name the keys of signed tokens by purpose. The first one signs, and all of them verify."""

    activate: list[TokenKeyFile] = Field(default=[], description="keys of links that activate")
    recover: list[TokenKeyFile] = Field(default=[], description="keys of links for recovery")
    unsubscribe: list[TokenKeyFile] = Field(
        default=[], description="keys of links that unsubscribe from campaigns"
    )

    @field_validator("activate", "recover", "unsubscribe")
    @classmethod
    def _distinct(cls, keys: list[TokenKeyFile]) -> list[TokenKeyFile]:
        ids = [key.id for key in keys]
        for each in ids:
            if ids.count(each) > 1:
                raise ValueError(f"two keys are called {each!r}")
        return keys

    @model_validator(mode="after")
    def _one_purpose(self) -> TokenKeys:
        known: dict[bytes, str] = {}
        for purpose, keys in self.purposes():
            for key in keys:
                other = known.setdefault(key.file.secret, f"{purpose}: {key.id}")
                if other != f"{purpose}: {key.id}":
                    raise ValueError(f"{purpose}: {key.id} is the same key as {other}")
        return self

    def purposes(self) -> Iterator[tuple[str, list[TokenKeyFile]]]:
        """Yield each purpose with its keys."""
        yield "activate", self.activate
        yield "recover", self.recover
        yield "unsubscribe", self.unsubscribe

"""Section `tokens`: the keys of signed tokens, which queued.yaml and web.yaml share."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    ValidationInfo,
    WithJsonSchema,
    model_validator,
)

from pgmta.config.types import FOLDER, Section, refuse_twice
from pgmta.secret_file import read_secret

_KEY_ID = re.compile(r"[a-z0-9](?:[a-z0-9._-]{0,31})", re.ASCII)
_HEX = re.compile(rb"[0-9A-Fa-f]{64}")
_MAX_FILE_OCTETS = 1024


@dataclass(frozen=True, slots=True)
class KeyFile:
    """A key of 32 octets. Rows of the queue name their key by `id`."""

    id: str
    """The name of its file without the ending: `activate` of activate.key."""
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
    return KeyFile(Path(path).stem, bytes.fromhex(content.decode()))


def _read(value: Any, info: ValidationInfo) -> KeyFile:
    if not isinstance(value, str) or not value:
        raise ValueError("expected the path of a file with 64 hexadecimal digits")
    folder = (info.context or {}).get(FOLDER)
    if not _KEY_ID.fullmatch(name := Path(value).stem):
        raise ValueError(
            f"{name!r}, the name of the file, is no name of a key: expected up to 32 of a-z, 0-9 "
            "and . _ -"
        )
    return read_key(str(folder / value) if folder else value)


def _distinct(keys: list[KeyFile]) -> list[KeyFile]:
    refuse_twice("keys", [key.id for key in keys])
    return keys


type TokenKeyFile = Annotated[KeyFile, BeforeValidator(_read), WithJsonSchema({"type": "string"})]
TokenKeyFiles = Annotated[list[TokenKeyFile], AfterValidator(_distinct)]


class TokenKeys(Section):
    """Name the files with the keys of signed tokens by purpose.

    The first one signs, and all of them verify.
    """

    activate: TokenKeyFiles = Field(
        default=[],
        description="keys of links that activate: files with 64 hexadecimal digits, relative to "
        "this one, which others can't read; mail names its key by the file's name without ending",
    )
    recover: TokenKeyFiles = Field(default=[], description="keys of links for recovery, likewise")
    confirm: TokenKeyFiles = Field(
        default=[], description="keys of links of all other actions, likewise"
    )
    unsubscribe: TokenKeyFiles = Field(
        default=[], description="keys of links that unsubscribe, likewise"
    )

    @model_validator(mode="after")
    def _one_purpose(self) -> TokenKeys:
        known: dict[bytes, str] = {}
        for purpose, keys in self.purposes():
            for key in keys:
                other = known.setdefault(key.secret, f"{purpose}: {key.id}")
                if other != f"{purpose}: {key.id}":
                    raise ValueError(f"{purpose}: {key.id} is the same key as {other}")
        return self

    def purposes(self) -> Iterator[tuple[str, list[TokenKeyFile]]]:
        """Yield each purpose with its keys."""
        yield "activate", self.activate
        yield "recover", self.recover
        yield "confirm", self.confirm
        yield "unsubscribe", self.unsubscribe

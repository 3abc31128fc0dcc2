"""Tokens of keys, `pgmta_ID_SECRET`: the database has the id, and a digest of the secret."""

from __future__ import annotations

import base64
import hashlib
import re
import secrets
from dataclasses import dataclass

_ID_CHARACTERS = 12
_SECRET_OCTETS = 32
_TOKEN = re.compile(r"pgmta_([a-z0-9]{12})_([a-z2-7]{52})")


@dataclass(frozen=True, slots=True)
class Token:
    """A token. Whoever has it may do what its key may."""

    secret_id: str
    secret: str

    def __str__(self) -> str:
        return f"pgmta_{self.secret_id}_{self.secret}"

    def __repr__(self) -> str:
        return f"Token({self.secret_id})"

    @property
    def digest(self) -> bytes:
        """The SHA-256 of the secret: 256 random bits need no slow hash."""
        return hashlib.sha256(self.secret.encode()).digest()


def new_token() -> Token:
    """Return a token that nobody has."""
    return Token(_letters(_ID_CHARACTERS), _letters(-(-_SECRET_OCTETS * 8 // 5)))


def parse_token(text: str) -> Token | None:
    """Return the token of a text; None if it is none."""
    found = _TOKEN.fullmatch(text)
    return Token(found[1], found[2]) if found else None


def _letters(number: int) -> str:
    """Return random letters and digits, 5 bits each: a double click selects all of a token."""
    octets = secrets.token_bytes(-(-number * 5 // 8))
    return base64.b32encode(octets).decode().lower().rstrip("=")[:number]

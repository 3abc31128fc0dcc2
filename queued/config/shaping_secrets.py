"""Passwords, other secrets, and keys of VERP addresses: each is the only line of a file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field

from pgmta.config.types import Period, Section, checked, listed
from pgmta.mail.address import parse_mailbox
from pgmta.mail.text import unsafe
from pgmta.secret_file import read_secret

_MAX_PASSWORD_OCTETS = 1024
_MIN_KEY_OCTETS = 32
_DAY_S = 86400.0
_MAX_AGE_S = 365 * _DAY_S  # an address has its day modulo 1,024


def read_password(path: Path) -> str:
    """Return the password in a file.

    Raises ValueError if the file can't be read, gives others too many rights, or has no password.
    """
    content = read_secret(path, _MAX_PASSWORD_OCTETS + 2)
    line = content.removesuffix(b"\n").removesuffix(b"\r")
    if not line:
        raise ValueError(f"{path} is empty")
    if len(line) > _MAX_PASSWORD_OCTETS:
        raise ValueError(f"{path} has more than {_MAX_PASSWORD_OCTETS} octets")
    try:
        password = line.decode()
    except UnicodeDecodeError:
        raise ValueError(f"{path} is not UTF-8") from None
    if any(unsafe(char) for char in password):
        raise ValueError(f"{path} has more than one line, or a control character")
    return password


def _age(seconds: float) -> float:
    if seconds % _DAY_S or not seconds:
        raise ValueError("should be whole days, such as 14d")
    if seconds > _MAX_AGE_S:
        raise ValueError("an age is at most 365d")
    return seconds


def _forward(value: Any) -> Any:
    if value is None or value == "sender":
        return value
    expected = "expected an address, sender or null: "
    return checked(expected, parse_mailbox, str(value), utf8=True)[0]


class ShapingVerp(Section):
    """VERP addresses of all routes."""

    keys: Annotated[list[Path], BeforeValidator(listed)] = Field(
        default=[],
        max_length=2,
        description="one or two files, relative to shaping.yaml, that other users can't read: the "
        "first makes addresses, both are believed",
    )
    age: Annotated[Period, AfterValidator(_age)] = Field(
        default=14 * 86400.0, description="mail to an older address fails; whole days"
    )
    forward: Annotated[str | None, BeforeValidator(_forward)] = Field(
        default=None,
        description="address that gets what comes back; sender: that of the message; null: it is "
        "only recorded",
    )


def read_verp_key(path: Path) -> bytes:
    """Return the key in a file. Raises ValueError, as `read_password`, and if it is too short."""
    key = read_password(path).encode()
    if len(key) < _MIN_KEY_OCTETS:
        raise ValueError(
            f"{path} has fewer than {_MIN_KEY_OCTETS} octets: run `openssl rand -hex 32`"
        )
    return key

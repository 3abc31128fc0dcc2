"""One of `logins` in shaping.yaml: a name and a password for next hops."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field

from pgmta.config.types import Section
from pgmta.secret_file import read_secret
from pgmta.text import unsafe

type Mechanism = Literal["SCRAM-SHA-256", "PLAIN", "LOGIN"]

_MOST = 1024  # octets of a password


class ShapingLogin(Section):
    """A user of next hops. Its password is in a file, so that no configuration shows it."""

    user: str = Field(min_length=1, max_length=255, description="the name that next hops know")
    password_file: Path = Field(
        description="file whose only line is the password, relative to shaping.yaml; other users "
        "must not be able to read it"
    )
    mechanisms: list[Mechanism] = Field(
        default=["SCRAM-SHA-256", "PLAIN", "LOGIN"],
        min_length=1,
        description="the first that the next hop offers is used",
    )


def read_password(path: Path) -> str:
    """Return the password in a file.

    Raises ValueError if the file can't be read, gives others too many rights, or has no password.
    """
    content = read_secret(path, _MOST + 2)
    line = content.removesuffix(b"\n").removesuffix(b"\r")
    if not line:
        raise ValueError(f"{path} is empty")
    if len(line) > _MOST:
        raise ValueError(f"{path} has more than {_MOST} octets")
    try:
        password = line.decode()
    except UnicodeDecodeError:
        raise ValueError(f"{path} is not UTF-8") from None
    if any(unsafe(char) for char in password):
        raise ValueError(f"{path} has more than one line, or a control character")
    return password

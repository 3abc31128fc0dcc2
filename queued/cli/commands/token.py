"""`queuectl token`: keys of signed tokens, and their check."""

from __future__ import annotations

import os
import secrets
import sys
from pathlib import Path

import click

from pgmta.command import EXIT_FAILURE, print_line, reporting
from pgmta.compose.token import SECRET_OCTETS, KeyRing, Purpose, TokenKey
from pgmta.config.token_keys import read_key
from pgmta.errors import ConfigError


@click.group()
def token() -> None:
    """Make keys of signed tokens, and verify tokens without a database."""


@token.command()
@click.option(
    "--out", type=click.Path(dir_okay=False, path_type=Path), help="File that only you can read."
)
@reporting
def key(out: Path | None) -> None:
    """Make a key, and write it to a new file or print it."""
    if out is None:
        print_line(secrets.token_hex(SECRET_OCTETS))
        return
    try:
        _write_key(out)
    except OSError as error:
        raise ConfigError([f"{out}: {error.strerror}"]) from None
    print_line(f"a key is in {out}")


@token.command()
@click.argument("text", metavar="TOKEN")
@click.option(
    "--purpose",
    type=click.Choice([each.value for each in Purpose]),
    default=Purpose.ACTIVATE.value,
    show_default=True,
    help="Purpose of the token.",
)
@click.option("--action", default="", help="Name of the action of --purpose confirm.")
@click.option("--code", default="", help="Code, if the action has one.")
@click.option("--key", "files", multiple=True, required=True, type=click.Path(),
              help="File with a key; may be repeated.")  # fmt: skip
@reporting
def verify(text: str, purpose: str, action: str, code: str, files: tuple[str, ...]) -> None:
    """Say whether one of the keys signed TOKEN: exit 0 if it is valid, 1 if not.

    It asks no database, so it knows neither expiry nor use.
    """
    if (purpose == Purpose.CONFIRM.value) != bool(action):
        raise ConfigError(["--action: --purpose confirm needs it, and the others have none"])
    try:
        keys = [TokenKey(file, read_key(file).secret) for file in files]
    except ValueError as error:
        raise ConfigError([str(error)]) from None
    if KeyRing(Purpose(purpose), keys, action).verify(text, code) is None:
        print_line("invalid", err=True)
        sys.exit(EXIT_FAILURE)
    print_line("valid")


def make_keys(directory: Path, *more: str) -> None:
    """Make the keys of tokens, and `more`, that are missing; configurations name their files."""
    folder = directory / "keys"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    for name in (*Purpose, *more):
        path = folder / f"{name}.key"
        if not path.exists():
            _write_key(path)


def _write_key(path: Path) -> None:
    """Write a new key to a new file, which others can't read. Raises OSError."""
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(f"{secrets.token_hex(SECRET_OCTETS)}\n")

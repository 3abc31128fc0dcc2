"""Options of commands that fill a template: the values of its words."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import IO, Any

import click

from pgmta.errors import ConfigError
from queued.cli.options.queue_command import parse_pairs

PARAM = click.option("--param", multiple=True, metavar="WORD=VALUE", help="The value of a word.")
"""The option of one word."""

PARAMS_FILE = click.option(
    "--params-file",
    type=click.File("rb"),
    metavar="FILE",
    help="A JSON object with values by word; - is standard input.",
)
"""The option of a file with words."""


def read_words(param: Iterable[str], file: IO[bytes] | None) -> dict[str, Any]:
    """Return the values of words; `param` goes before the file. Raises ConfigError.

    Numbers in the file are texts as they are written there.
    """
    words: dict[str, Any] = {}
    if file is not None:
        try:
            words = json.load(file, parse_int=str, parse_float=str)
        except (ValueError, RecursionError) as error:
            raise ConfigError([f"--params-file {file.name}: it is no JSON: {error}"]) from None
        if not isinstance(words, dict):
            raise ConfigError([f"--params-file {file.name}: it is no JSON object of words"])
    return {**words, **parse_pairs(param, "--param")}

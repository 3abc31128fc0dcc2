"""Options of commands that give the words of a template their values."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any, NoReturn, TextIO

import click

from pgmta.errors import ConfigError
from queued.cli.options.queue_command import parse_pairs

_PARAM = click.option("--param", multiple=True, metavar="WORD=VALUE", help="The value of a word.")
_PARAMS_FILE = click.option(
    "--params-file",
    type=click.File(encoding="utf-8"),
    metavar="JSON",
    help="A JSON object with values by word; - is standard input.",
)


def word_options[F: Callable[..., Any]](function: F) -> F:
    """Give a command these options; `read_words` reads them."""
    return _PARAM(_PARAMS_FILE(function))


def read_words(param: Iterable[str], file: TextIO | None) -> dict[str, Any]:
    """Return the values by word; --param goes before the file. Raises ConfigError.

    Numbers in the file are texts as they are written there, so that none is rounded.
    """
    pairs = parse_pairs(param, "--param")
    if file is None:
        return dict(pairs)
    try:
        words = json.load(file, parse_int=str, parse_float=str, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise ConfigError([f"--params-file {file.name}: no JSON: {error}"]) from None
    if not isinstance(words, dict):
        raise ConfigError([f"--params-file {file.name}: expected an object with values by word"])
    return {**words, **pairs}


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no value of JSON")

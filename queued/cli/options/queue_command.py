"""A command of queuectl: its decorator, its database, and values that several read or print."""

from __future__ import annotations

import getpass
import socket
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from pgmta.command import (
    age,
    config_option,
    json_option,
    print_json,
    print_line,
    print_table,
    reporting,
)
from pgmta.config.loader import load
from pgmta.config.rates import parse_rate
from pgmta.errors import ConfigError
from pgmta.postgres.locate import existing, resolve
from queued.config import QueuedConfig

CONFIG = "queued.yaml"
"""The name of the configuration of every command."""


class _Command(click.Command):
    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:  # click compares the dashes too
            name = error.option_name.strip("-")
            near = [each for each in error.possibilities or ()
                    if get_close_matches(name, [each.strip("-")])]  # fmt: skip
            raise click.NoSuchOption(error.option_name, possibilities=near, ctx=ctx) from None


def command(
    group: click.Group | None = None,
    name: str | None = None,
    *,
    json: bool = False,
    needed: bool = True,
) -> Callable[[Callable[..., Any]], click.Command]:
    """Return the decorator of a command: --config, its own options, --json, and short errors.

    The file of --config has to be there if it is `needed` in each case.
    """

    def decorate(function: Callable[..., Any]) -> click.Command:
        wrapped = config_option(CONFIG, needed=needed)(reporting(function))
        if json:
            wrapped = json_option(wrapped)
        made = (group or click).command(name, cls=_Command)(wrapped)
        if json:
            made.params.append(made.params.pop(0))  # the last one in the help
        return made

    return decorate


def who() -> str:
    """Return the operator's name for the audit table and for held rows."""
    return f"{getpass.getuser()}@{socket.gethostname()}"


def database_of(config: Path) -> str:
    """Return the URI of the database of a queued.yaml. Raises ConfigError, StoreUnavailable."""
    return existing(load(config, QueuedConfig).environment)


def database_to_migrate(config: Path) -> str:
    """Return the same; without `--config` and without the default file, that of the defaults.

    So `queuectl migrate` works in an empty folder: it makes the embedded PostgreSQL there. All
    other commands need the file, because in a wrong folder they would make an empty queue.
    """
    source = click.get_current_context().get_parameter_source("config")
    if config.exists() or source is not ParameterSource.DEFAULT:
        return resolve(load(config, QueuedConfig).environment)
    environment = QueuedConfig().environment
    directory = environment.directory.resolve()
    print_line(
        f"{config} does not exist: the defaults hold, with an embedded PostgreSQL in {directory}",
        err=True,
    )
    return resolve(environment)


def parse_pairs(texts: Iterable[str], flag: str = "--metadata") -> dict[str, str]:
    """Return the pairs `key=value` that were given to a flag. Raises ConfigError."""
    pairs = {}
    for text in texts:
        key, sign, value = text.partition("=")
        if not (key and sign):
            raise ConfigError([f"{flag} {text!r}: expected key=value"])
        pairs[key] = value
    return pairs


def read_rate(text: str, flag: str) -> float:
    """Return the rate per second that was given to a flag. Raises ConfigError."""
    try:
        return parse_rate(text)
    except ValueError as error:
        raise ConfigError([f"{flag}: {error}"]) from None


_SKEW = 60.0  # seconds by which the clocks of two hosts may differ

type Column = str | Callable[[Any], Any]
"""The key of a value, or a function of the row."""


def print_rows(
    rows: Sequence[Any], columns: Mapping[str, Column], *, as_json: bool = False
) -> None:
    """Print a table with a line for each row, or the rows themselves as JSON."""
    if as_json:
        print_json(rows)
        return
    values = [
        [row[of] if isinstance(of, str) else of(row) for of in columns.values()] for row in rows
    ]
    print_table(list(columns), values)


def instant(moment: datetime) -> str:
    """Return a time as commands print it."""
    return f"{moment:%Y-%m-%d %H:%M:%S%z}"


def age_of(moment: datetime) -> str:
    """Return the age of something that happened then; - if it is still to come."""
    seconds = (datetime.now(UTC) - moment).total_seconds()
    return "-" if seconds < -_SKEW else age(seconds)


def time_to(moment: datetime) -> str:
    """Return the time span until then."""
    return age((moment - datetime.now(UTC)).total_seconds())

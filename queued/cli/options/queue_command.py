"""A command of queuectl: its decorator, its database, and values that several read or print."""

from __future__ import annotations

import functools
import getpass
import shutil
import socket
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from difflib import get_close_matches
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource
from pydantic import BaseModel

from pgmta.command import (
    age,
    ago,
    config_option,
    json_option,
    print_csv,
    print_json,
    print_line,
    print_table,
    reporting,
    shorten,
)
from pgmta.config.environment import DatabasePlace, QueueDatabase, environment_field
from pgmta.config.loader import load
from pgmta.config.types import parse_duration
from pgmta.errors import AddressError, ConfigError
from pgmta.mail.address import parse_recipient, with_domain
from pgmta.mail.metadata import parse_time
from pgmta.mail.text import printable
from pgmta.postgres.locate import existing
from queued.cli.options.fitted_widths import fitted_widths

if TYPE_CHECKING:
    from queued.config import QueuedConfig

SET_ASIDE_TEXT = "is set aside and counts no more, because its condition takes too long"
"""What became of a rule or order with `slow_at`."""

CONFIG_NAME = "queued.yaml"
"""The name of the configuration file of every command."""


class _Command(click.Command):
    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:  # because click's own hint compares the dashes too
            name = error.option_name.strip("-")
            near = [each for each in error.possibilities or ()
                    if get_close_matches(name, [each.strip("-")])]  # fmt: skip
            raise click.NoSuchOption(error.option_name, possibilities=near, ctx=ctx) from None


def command(
    group: click.Group | None = None,
    name: str | None = None,
    *,
    json: bool = False,
    rows: bool = False,
    needed: bool = True,
) -> Callable[[Callable[..., Any]], click.Command]:
    """Return the decorator of a command: --config, its own options, --json, and short errors.

    One that prints `rows` has --wide, --json and --csv, and gets a Form. The file of --config has
    to be there if it is `needed` in each case.
    """

    def decorate(function: Callable[..., Any]) -> click.Command:
        wrapped = config_option(CONFIG_NAME, needed=needed)(reporting(function))
        if json or rows:
            wrapped = json_option(wrapped) if json else _form_options(wrapped)
        made = (group or click).command(name, cls=_Command)(wrapped)
        last = len(_FORM_OPTIONS) if rows else int(json)
        # so that these options are the last ones in the help
        made.params = made.params[last:] + made.params[:last][::-1]
        return made

    return decorate


def who() -> str:
    """Return the operator's name for the audit table and for held rows."""
    return f"{getpass.getuser()}@{socket.gethostname()}"


class _CommandEnvironment(DatabasePlace):
    database: QueueDatabase = QueueDatabase()
    hostname: Any = None  # not the default, which may ask name servers and which no command needs


class _CommandFile(BaseModel):
    environment: _CommandEnvironment = environment_field()


def database_of(config: Path) -> str:
    """Return the URI of the database of a queued.yaml. Raises ConfigError, StoreUnavailable.

    Of the file it reads `environment` alone: a mistake elsewhere keeps no operator from the queue.
    """
    return existing(place_of(config))


def place_of(config: Path) -> DatabasePlace:
    """Return where the database of a queued.yaml is. Raises ConfigError."""
    read = load(config, _CommandFile)
    if "environment" not in read.model_fields_set:  # the section may be misspelt
        return whole_config(config).environment
    return read.environment


def whole_config(config: Path) -> QueuedConfig:
    """Return the whole of a queued.yaml, whose model takes long to import. Raises ConfigError."""
    from queued.config import whole_model

    return load(config, whole_model())


def place_to_make(config: Path) -> DatabasePlace:
    """Return the same; without `--config` and without the default file, that of the defaults.

    So an embedded PostgreSQL and its schema can be made in an empty folder. All other commands
    need the file.
    """
    source = click.get_current_context().get_parameter_source("config")
    if config.exists() or source is not ParameterSource.DEFAULT:
        return place_of(config)
    place = DatabasePlace()
    directory = place.directory.resolve()
    print_line(
        f"{config} does not exist: the defaults hold, with an embedded PostgreSQL in {directory}",
        err=True,
    )
    return place


def parse_pairs(
    texts: Iterable[str], flag: str = "--metadata", form: str = "key=value"
) -> dict[str, str]:
    """Return the pairs of this form that were given to a flag. Raises ConfigError."""
    pairs = {}
    for text in texts:
        key, sign, value = text.partition("=")
        if not (key and sign):
            raise ConfigError([f"{flag} {text!r}: expected {form}"])
        pairs[key] = value
    return pairs


def read_duration(text: str, flag: str) -> float:
    """Return the seconds of the duration that was given to a flag. Raises ConfigError."""
    try:
        return parse_duration(text)
    except ValueError as error:
        raise ConfigError([f"{flag}: {error}"]) from None


def read_time(
    text: str | None, flag: str, *, whole_days: bool = False, zone: str | None = None
) -> datetime | None:
    """Return the time that was given to a flag, and say it on stderr if people wrote it.

    It is of RFC 3339, or one of `parse_written_time`, in `zone` or that of this host. Raises
    ConfigError.
    """
    from queued.cli.options.written_time import named_zone, parse_written_time, shown_time

    if text is None:
        return None
    try:
        return parse_time(text)
    except ValueError:
        pass
    try:
        local = named_zone(zone, short=True) if zone else None
        found = parse_written_time(text, datetime.now(UTC), local, whole_days=whole_days)
    except ValueError as error:
        raise ConfigError([f"{flag} {text!r}: {error}"]) from None
    print_line(f"{flag}: {shown_time(found)}", err=True)
    return found


def read_since(text: str | None) -> datetime | None:
    """Return the time of --since: one as `read_time` has it, or so long ago. Raises ConfigError."""
    if text is None:
        return None
    now = datetime.now(UTC)
    try:
        return now - timedelta(seconds=parse_duration(text))
    except ValueError:
        pass
    try:
        found = read_time(text, "--since", whole_days=True)
    except ConfigError as error:
        raise ConfigError([f"{each}; or say how long ago: 3h" for each in error.problems]) from None
    if found and found > now:
        raise ConfigError([f"--since {text!r}: that is to come"])
    return found


def read_since_s(text: str) -> float:
    """Return how many seconds ago that is. Raises ConfigError."""
    found = read_since(text)
    return (datetime.now(UTC) - found).total_seconds() if found else 0.0


def read_begin(text: str | None, zone: str | None = None) -> datetime | None:
    """Return the time of --at as `read_time` does, and say on stderr if it is over."""
    found = read_time(text, "--at", zone=zone)
    if found and found < datetime.now(UTC):
        print_line(f"--at {text!r}: this time is over, so it may go at once", err=True)
    return found


def read_address(text: str) -> str:
    """Return an address with its domain in A-labels, or a telephone number. Raises ConfigError."""
    try:
        return with_domain(*parse_recipient(text.strip()))
    except AddressError as error:
        raise ConfigError([str(error)]) from None


_NUMBER_TYPES = int | float | None
_MAX_CLOCK_SKEW_S = 60.0  # between two hosts


class Form(StrEnum):
    """How a list is printed: its columns, cut or whole, or its rows for machines."""

    TABLE = "table"
    WIDE = "wide"
    JSON = "json"
    CSV = "csv"

    @property
    def for_machines(self) -> bool:
        """Whether no words for people may be beside the rows."""
        return self in (Form.JSON, Form.CSV)


_FORM_OPTIONS = (
    click.option("--wide", "form", flag_value="wide", help="Cut no column."),
    click.option("--json", "form", flag_value="json", help="Output for machines."),
    click.option("--csv", "form", flag_value="csv", help="The values of --json, a line per row."),
)


def _form_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that choose a Form, as keyword `form`."""

    @functools.wraps(function)
    def wrapper(*args: Any, form: str | None, **options: Any) -> Any:
        return function(*args, form=Form(form or Form.TABLE), **options)

    for option in _FORM_OPTIONS:
        wrapper = option(wrapper)
    return wrapper


type Value = str | Callable[[Any], Any]
"""The key of a value, or a function of the row."""


@dataclass(frozen=True, slots=True)
class Cut:
    """A value of which a table has at most `width` characters, unless it is wide."""

    of: Value
    width: int = 60


type Column = Value | Cut
"""Where a column of a table has its values."""


def print_rows(
    rows: Sequence[Any],
    columns: Mapping[str, Column],
    form: Form = Form.TABLE,
    *,
    values: Sequence[dict[str, Any]] | None = None,
) -> None:
    """Print a table with a line for each row, or the rows themselves for machines.

    `values` are the rows as machines get them, if these are others. On a terminal the lines fit it.
    """
    if form.for_machines:
        (print_json if form == Form.JSON else print_csv)(rows if values is None else values)
        return
    wide = form == Form.WIDE
    table = [[_shown(row, column, wide) for column in columns.values()] for row in rows]
    if not wide and sys.stdout.isatty():
        _print_fitted(columns, table, shutil.get_terminal_size().columns)
    else:
        print_table(list(columns), table, wide=wide)


def _print_fitted(columns: Mapping[str, Column], table: list[list[Any]], room: int) -> None:
    header = list(columns)
    numbers = {
        n for n in range(len(header)) if all(isinstance(row[n], _NUMBER_TYPES) for row in table)
    }
    texts = [["" if value is None else printable(str(value)) for value in row] for row in table]
    least = [n for n, column in enumerate(columns.values()) if isinstance(column, Cut)]
    widths = fitted_widths(header, texts, room, numbers, least)
    fitted = [
        [values[n] if n in numbers else shorten(words[n], width) for n, width in widths.items()]
        for values, words in zip(table, texts, strict=True)
    ]
    print_table([header[n] for n in widths], fitted)
    if left_out := [name for n, name in enumerate(header) if n not in widths]:
        print_line(f"--wide also shows {', '.join(left_out)}", err=True)


def _shown(row: Any, column: Column, wide: bool) -> Any:
    if isinstance(column, Cut):
        whole = str(_shown(row, column.of, wide))
        return whole if wide else shorten(whole, column.width)
    return row[column] if isinstance(column, str) else column(row)


def age_of(moment: datetime) -> str:
    """Return the age of something that happened then; - if it is still to come."""
    seconds = (datetime.now(UTC) - moment).total_seconds()
    return "-" if seconds < -_MAX_CLOCK_SKEW_S else age(seconds)


def ago_of(moment: datetime) -> str:
    """Return how long ago that happened: `3h ago`, or `now`."""
    return ago((datetime.now(UTC) - moment).total_seconds())


def time_to(moment: datetime) -> str:
    """Return the time span until then."""
    return age((moment - datetime.now(UTC)).total_seconds())

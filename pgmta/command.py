"""Parts that all commands share: the config option, exit codes, errors on stderr, output."""

from __future__ import annotations

import functools
import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

import click
import psycopg

from pgmta.config.config_place import LOCAL, SYSTEM, VARIABLE, config_places, find_config
from pgmta.errors import ConfigError, PgmtaError
from pgmta.mail.text import json_escaped, printable, printable_lines

EXIT_FAILURE = 1
EXIT_USAGE = 2
ERROR = "error: "
"""The beginning of each error of a command on stderr."""

EXIT_PIPE = 128 + signal.SIGPIPE
_WIDEST = 120  # characters of a column
_SHOW = 2.0  # seconds between two lines of progress


def config_option(
    name: str, *, needed: bool = True
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return the option -c / --config for the file `name`, which is found if it is not given.

    A `needed` file has to be in one of its places (`config_places`). One that is not needed is then
    the last of them.
    """

    def find(context: click.Context, parameter: click.Parameter, value: Path | None) -> Path:
        found = value or find_config(name)
        if found:
            return found
        places = config_places(name)
        if needed or VARIABLE in os.environ:
            where = f" ({VARIABLE})" if VARIABLE in os.environ else ""
            looked = " and ".join(map(str, places))
            raise click.UsageError(f"there is no {looked}{where}: give -c FILE")
        return places[-1]

    return click.option(
        "-c",
        "--config",
        type=click.Path(dir_okay=False, path_type=Path),
        callback=find,
        help=f"Configuration file.  [default: {name} in {VARIABLE}, else {SYSTEM}, else {LOCAL}]",
    )


def version_option(name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return the option --version of the command `name`: the version of the installed pgmta."""
    return click.version_option(
        package_name="pgmta", prog_name=name, message="%(prog)s (pgmta) %(version)s"
    )


attached_option = click.option(
    "--attached", is_flag=True, hidden=True, help="End when standard input ends."
)
"""The option --attached: children of `queuectl up` end together with it."""

json_option = click.option("--json", "as_json", is_flag=True, help="Output for machines.")
"""The option --json."""


_RIGHTS = (
    "docs/sql.md has the roles. A login with pgmta_submit has `queuectl submit`, `queuectl send`, "
    "`queuectl cancel` and `queuectl status` for its own mail. pgmta_reader looks at all mail, but "
    "`queuectl show` needs pgmta_operator. So do changes, `queuectl template put` and "
    "`queuectl user failures`; migrations and partitions need the owner."
)


def reporting[**P, R](command: Callable[P, R]) -> Callable[P, R]:
    """Return the command with errors as lines on stderr: exit 2 for a wrong configuration, else 1.

    A traceback comes only with an error of the program.
    """

    @functools.wraps(command)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return command(*args, **kwargs)
        except ConfigError as error:
            for problem in error.problems:
                print_text(f"{ERROR}{problem}", err=True)
            sys.exit(EXIT_USAGE)
        except psycopg.errors.UndefinedTable:
            print_line("error: the database has no queue yet: run `queuectl migrate`", err=True)
        except (PgmtaError, psycopg.Error) as error:
            print_text(f"error: {error}", err=True)
            if isinstance(error.__cause__ or error, psycopg.errors.InsufficientPrivilege):
                print_line(_RIGHTS, err=True)
        except BrokenPipeError:  # of stdout: its reader has seen enough
            _end_quietly()
        except OSError as error:  # stdout, for one
            place = f"{error.filename}: " if error.filename else ""
            print_line(f"error: {place}{error.strerror or error}", err=True)
        except (click.ClickException, click.exceptions.Exit, click.Abort):
            raise
        except Exception:  # Python would print its message unescaped
            print_text(traceback.format_exc().rstrip(), err=True)
        sys.exit(EXIT_FAILURE)

    return wrapper


def _end_quietly() -> NoReturn:
    """Exit with the code that a shell sees after SIGPIPE, and write no more.

    The signal itself would leave out the end of the process, which may stop the embedded server.
    """
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())  # buffered output would be an error again
    sys.exit(EXIT_PIPE)


@contextmanager
def progress(label: str, length: int) -> Iterator[Callable[[int], None]]:
    """Show the progress of long work on stderr: a bar on a terminal, else a line now and then.

    The caller gets a function that takes the number of steps since its last call.
    """
    if sys.stderr.isatty():
        with click.progressbar(length=length, label=label, file=sys.stderr) as bar:
            yield bar.update
        return
    done = 0
    shown = time.monotonic()

    def advance(steps: int) -> None:
        nonlocal done, shown
        done += steps
        if time.monotonic() - shown > _SHOW:
            shown = time.monotonic()
            print_line(f"{label}: {done} of {length}", err=True)

    yield advance


def print_line(text: str, *, err: bool = False) -> None:
    """Write one line, to stderr if `err`; characters that a terminal may obey are replaced.

    All output of commands goes through this function, `redraw_line`, `print_text` or `print_json`.
    """
    click.echo(printable(text), err=err)


def redraw_line(text: str, *, err: bool = False) -> None:
    """Write one line in place of the present one of a terminal; '' leaves it empty."""
    click.echo(f"\r{printable(text)}\x1b[K", nl=False, err=err)


def print_text(text: str, *, err: bool = False) -> None:
    """Write a text of several lines in the same way; blanks replace a tab."""
    click.echo(printable_lines(text.expandtabs(4)), err=err)


def print_json(value: Any) -> None:
    """Write a value for machines; characters that a terminal may obey are escaped."""
    click.echo(json_escaped(json.dumps(value, default=str, ensure_ascii=False, indent=2)))


def print_table(header: list[str], rows: list[list[Any]]) -> None:
    """Write aligned columns; numbers to the right.

    A very long value stands out of its column and widens no other line.
    """
    cells = [["" if value is None else printable(str(value)) for value in row] for row in rows]
    widths = [
        min(_WIDEST, max(len(row[i]) for row in [header, *cells])) for i in range(len(header))
    ]
    numeric = [
        bool(rows) and all(isinstance(row[i], int | float | None) for row in rows)
        for i in range(len(header))
    ]
    for line in [header, *cells]:
        parts = [
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(line, widths, numeric, strict=True)
        ]
        print_line("  ".join(parts).rstrip())


def age(seconds: float) -> str:
    """Return a time span for people: 45s, 12m, 3h, 2d; a span below a second is `now`."""
    if seconds < 1:
        return "now"
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f}{unit}"
    return f"{seconds:.0f}s"


def shorten(text: str, width: int = 60) -> str:
    """Return the text in at most `width` characters."""
    return text if len(text) <= width else text[: width - 1] + "…"

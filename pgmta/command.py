"""Parts that all commands share: the config option, exit codes, errors on stderr, output."""

from __future__ import annotations

import asyncio
import csv
import functools
import io
import json
import os
import re
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NoReturn

import click
import psycopg

from pgmta.config.config_place import (
    CONFIG_VARIABLE,
    LOCAL_FOLDER,
    SYSTEM_FOLDER,
    config_paths,
    find_config,
)
from pgmta.console.journal import marked_words
from pgmta.errors import ConfigError, PgmtaError
from pgmta.mail.text import json_escaped, printable, printable_lines

EXIT_FAILURE = 1
EXIT_USAGE = 2
ERROR = "error: "
"""The beginning of each error of a command on stderr."""

EXIT_PIPE = 128 + signal.SIGPIPE
_MAX_COLUMN_CHARACTERS = 120
_FORMULA = re.compile(r"[=+\-@\t\r\n]")
_NUMBER = re.compile(r"[-+]?[0-9]+(\.[0-9]+)?([eE][-+]?[0-9]+)?")
_STATEMENT_PART = re.compile(r"\n(?:QUERY|CONTEXT):")
# each character takes one column of the terminal
_NARROW_TEXT = re.compile(r"[ -\u02ff\u2010-\u2027]*")
_PROGRESS_INTERVAL_S = 2.0


def config_option(
    name: str, *, needed: bool = True
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return the option -c / --config for the file `name`, which is found if it is not given.

    A `needed` file has to be in one of its paths (`config_paths`). One that is not needed has the
    last of them.
    """

    def find(context: click.Context, parameter: click.Parameter, value: Path | None) -> Path:
        path = value or find_config(name)
        if path:
            return path
        paths = config_paths(name)
        if needed or CONFIG_VARIABLE in os.environ:
            where = f" ({CONFIG_VARIABLE})" if CONFIG_VARIABLE in os.environ else ""
            looked = " nor ".join(map(str, paths))
            both = "neither" if len(paths) > 1 else "no"
            raise click.UsageError(f"there is {both} {looked}{where}: give -c FILE")
        return paths[-1]

    return click.option(
        "-c",
        "--config",
        type=click.Path(dir_okay=False, path_type=Path),
        callback=find,
        help=f"Configuration file.  [default: {name} in {CONFIG_VARIABLE}, "
        f"else {SYSTEM_FOLDER}, else {LOCAL_FOLDER}]",
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

any_login_option = click.option(
    "--any-login", is_flag=True, hidden=True, help="The login need not be that of the daemon."
)
"""The option --any-login: `queuectl doctor` runs a check for an operator."""

json_option = click.option("--json", "as_json", is_flag=True, help="Output for machines.")
"""The option --json."""


_MISSING_RIGHTS_HINT = (
    "docs/programs/sql.md has the roles. A login with pgmta_submit has `queuectl send --raw`, "
    "`queuectl send`, `queuectl cancel` and `queuectl status` for its own mail. "
    "pgmta_reader looks at all mail, but `queuectl show` needs pgmta_operator. So do changes, "
    "`queuectl template put` and `queuectl user failures`; migrations and partitions need the "
    "owner."
)


def reporting[**P](command: Callable[P, Any]) -> Callable[P, Any]:
    """Return the command with errors as lines on stderr: exit 2 for a wrong configuration, else 1.

    A traceback comes only with an error of the program. If the command is a coroutine, it is run.
    """

    @functools.wraps(command)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> Any:
        try:
            result = command(*args, **kwargs)
            return _run(result) if asyncio.iscoroutine(result) else result
        except ConfigError as error:
            for problem in error.problems:
                print_text(f"{ERROR}{problem}", err=True)
            sys.exit(EXIT_USAGE)
        except (PgmtaError, psycopg.Error) as error:
            if _lacks_the_queue(error):
                reason = "the database has no queue yet: run `queuectl database migrate`"
                print_line(f"error: {reason}", err=True)
                sys.exit(EXIT_FAILURE)
            # PostgreSQL appends the statement to an error within a function
            message = (
                _STATEMENT_PART.split(str(error))[0] if isinstance(error, psycopg.Error) else error
            )
            print_text(f"error: {message}", err=True)
            if isinstance(error.__cause__ or error, psycopg.errors.InsufficientPrivilege):
                print_line(_MISSING_RIGHTS_HINT, err=True)
        except BrokenPipeError:  # the reader of stdout has seen enough
            _end_quietly()
        except OSError as error:  # stdout, for one
            place = f"{error.filename}: " if error.filename else ""
            print_line(f"error: {place}{error.strerror or error}", err=True)
        except (click.ClickException, click.exceptions.Exit, click.Abort):
            raise
        except Exception:  # Python itself would print the message without escapes
            print_text(traceback.format_exc().rstrip(), err=True)
        sys.exit(EXIT_FAILURE)

    return wrapper


def _run[R](work: Coroutine[Any, Any, R]) -> R:
    """Run the coroutine of a command. Ctrl-C cancels what it waits for.

    asyncio's own handler cancels alone: a prompt, or a read from a pipe, would go on until a second
    Ctrl-C. So one that comes while the coroutine itself runs is a KeyboardInterrupt there.
    """
    interrupted = False

    def interrupt(*_: object) -> None:
        nonlocal interrupted
        if interrupted or asyncio.current_task(loop):
            raise KeyboardInterrupt
        interrupted = True
        task.cancel()
        loop.call_soon_threadsafe(lambda: None)  # the loop may wait for a socket

    with asyncio.Runner() as runner:
        loop = runner.get_loop()
        task = loop.create_task(work)
        before = signal.getsignal(signal.SIGINT)
        ours = (
            before is signal.default_int_handler
            and threading.current_thread() is threading.main_thread()
        )
        if ours:
            signal.signal(signal.SIGINT, interrupt)
        try:
            return loop.run_until_complete(task)
        except asyncio.CancelledError:
            if interrupted:
                raise KeyboardInterrupt from None
            raise
        finally:
            if ours:
                signal.signal(signal.SIGINT, before)


def _lacks_the_queue(error: Exception) -> bool:
    """Say whether a statement of ours, not one within a function, names what is not there."""
    errors = psycopg.errors
    lacks = (errors.UndefinedTable, errors.UndefinedFunction, errors.InvalidSchemaName)
    return isinstance(error, lacks) and not error.diag.context


def _end_quietly() -> NoReturn:
    """Exit with the code that a shell sees after SIGPIPE, and write no more.

    The signal itself would leave out the end of the process, which may stop the embedded server.
    """
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())  # to flush buffered output would fail again
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
    shown = begun = time.monotonic()

    def advance(steps: int) -> None:
        nonlocal done, shown
        done += steps
        if time.monotonic() - shown > _PROGRESS_INTERVAL_S:
            shown = time.monotonic()
            print_line(f"{label}: {done} of {length}", err=True)

    yield advance
    if shown != begun:
        print_line(f"{label}: {done} of {length}", err=True)


def print_line(text: str, *, err: bool = False) -> None:
    """Write one line, to stderr if `err`; characters that a terminal may obey are replaced.

    All output of commands goes through this function, `redraw_line`, `print_text` or `print_json`.
    """
    click.echo(_worded(printable(text), err), err=err)


def redraw_line(text: str, *, err: bool = False) -> None:
    """Write one line in place of the present one of a terminal; '' leaves it empty."""
    click.echo(f"\r{printable(text)}\x1b[K", nl=False, err=err)


def print_text(text: str, *, err: bool = False) -> None:
    """Write a text of several lines in the same way; blanks replace a tab."""
    click.echo(_worded(printable_lines(text.expandtabs(4)), err), err=err)


def _worded(text: str, err: bool) -> str:
    return marked_words(text) if err else text


def print_json(value: Any, *, line: bool = False) -> None:
    """Write a value for machines, or as one line; what a terminal may obey is escaped."""
    indent = None if line else 2
    click.echo(json_escaped(json.dumps(value, default=_plain, ensure_ascii=False, indent=indent)))


def _plain(value: Any) -> str:
    """Return a value that JSON has no form for; a time is that of RFC 3339, in UTC."""
    if not isinstance(value, datetime):
        return str(value)
    moment = value.astimezone(UTC) if value.tzinfo else value
    return moment.isoformat().replace("+00:00", "Z")


def print_csv(rows: Sequence[Mapping[str, Any]], *, head: bool = True) -> None:
    """Write a line with the names of the values, and a line per row (RFC 4180, but for the LF).

    The former is left out without `head`. Objects and lists are JSON; no value is an empty field.
    Without rows there are no names. A `'` stands before a text that a spreadsheet would take for a
    formula (CWE-1236).
    """
    names = list(dict.fromkeys(name for row in rows for name in row))
    for row in [dict(zip(names, names, strict=True)), *rows] if rows and head else rows:
        line = io.StringIO()
        csv.writer(line, lineterminator="").writerow([_field(row.get(name)) for name in names])
        click.echo(printable_lines(line.getvalue()))


def _field(value: Any) -> Any:
    if isinstance(value, str):
        return f"'{value}" if _FORMULA.match(value) and not _NUMBER.fullmatch(value) else value
    if isinstance(value, datetime):
        return _plain(value)
    plain = value is None or not isinstance(value, dict | list | tuple | bool)
    return value if plain else json.dumps(value, default=_plain, ensure_ascii=False)


def print_table(header: list[str], rows: list[list[Any]], *, wide: bool = False) -> None:
    """Write aligned columns; numbers to the right.

    A very long value stands out of its column and widens no other line, unless the table is `wide`.
    """
    most = sys.maxsize if wide else _MAX_COLUMN_CHARACTERS
    cells = [["" if value is None else printable(str(value)) for value in row] for row in rows]
    lines = [header, *cells]
    widths = [min(most, max(columns(line[i]) for line in lines)) for i in range(len(header))]
    numeric = [
        bool(rows) and all(isinstance(row[i], int | float | None) for row in rows)
        for i in range(len(header))
    ]
    for line in lines:
        rooms = [" " * (width - columns(cell)) for cell, width in zip(line, widths, strict=True)]
        parts = [
            room + cell if right else cell + room
            for cell, room, right in zip(line, rooms, numeric, strict=True)
        ]
        print_line("  ".join(parts).rstrip())


def instant(moment: datetime) -> str:
    """Return a time as commands print it."""
    return f"{moment:%Y-%m-%d %H:%M:%S%z}"


def age(seconds: float) -> str:
    """Return a time span for people: 45s, 12m, 3h, 2d; a span below a second is `now`."""
    if seconds < 1:
        return "now"
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f}{unit}"
    return f"{seconds:.0f}s"


def ago(seconds: float) -> str:
    """Return for people how long ago something was: `3h ago`, or `now`."""
    found = age(seconds)
    return found if found == "now" else f"{found} ago"


def columns(text: str) -> int:
    """Return how many columns of a terminal the text takes: 2 for 漢, none for a combining mark."""
    if _NARROW_TEXT.fullmatch(text):
        return len(text)
    from rich.cells import cell_len  # here, because its import takes 30 ms

    return cell_len(text)


def shorten(text: str, width: int = 60) -> str:
    """Return the text in at most `width` columns of a terminal."""
    if columns(text) <= width:
        return text
    if _NARROW_TEXT.fullmatch(text):
        return text[: width - 1] + "…"
    from rich.cells import set_cell_size

    return set_cell_size(text, width - 1) + "…"

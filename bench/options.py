"""Options, exit codes and the place of work that the commands share."""

import atexit
import json
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
import psycopg

from bench.daemons import DaemonError
from bench.database import DatabaseError, Server, open_server
from bench.helper import HelperError
from bench.progress import log

WRONG, FAILED, MISSED = 1, 2, 3
"""Exit codes: mail was lost, doubled or altered; could not run; a limit was not kept."""

EXIT_CODES_HELP = (
    "Exit code: 0 all well; 1 something was lost, duplicated or altered; 2 could not run; 3 "
)
HELP_SETTINGS = {"show_default": True, "help_option_names": ["-h", "--help"]}


FAILURES: tuple[type[Exception], ...] = (
    DaemonError,
    DatabaseError,
    HelperError,
    OSError,
    psycopg.Error,
    subprocess.SubprocessError,
)


RELAY = (
    click.Option(["--messages"], default=10000, type=click.IntRange(1), help="Messages."),
    click.Option(["--sessions"], default=20, type=click.IntRange(1), help="SMTP sessions at once."),
    click.Option(["--size"], default=4096, type=click.IntRange(16), help="Bytes of body."),
    click.Option(["--recipients"], default=1, type=click.IntRange(1), help="Each message's."),
    click.Option(
        ["--domains"], default=1, type=click.IntRange(1), help="Domains of the recipients."
    ),
    click.Option(
        ["--reuse/--no-reuse"], default=True, help="Keep sessions, or one message in each."
    ),
    click.Option(
        ["--processes"], type=click.IntRange(1), help="smtpd processes  [default: smtpd's own]"
    ),
    click.Option(["--workers"], default=1, type=click.IntRange(1), help="queued processes."),
    click.Option(
        ["--backlog"], default=0, type=click.IntRange(0), help="Other rows, for a dead host."
    ),
    click.Option(
        ["--rate"], default=0.0, help="Messages per second, evenly; 0: as fast as possible."
    ),
    click.Option(["--uri"], help="A PostgreSQL server to use, instead of a new embedded one."),
    click.Option(["--stall"], default=20.0, help="Give up if nothing moves for this many seconds."),
    click.Option(["--keep"], is_flag=True, help="Keep the directory, and databases made at --uri."),
    click.Option(
        ["--commands"],
        type=click.Path(exists=True, file_okay=False, path_type=Path, resolve_path=True),
        help="Where smtpd, queued and queuectl are  [default: beside this Python]",
    ),
)
SHARED = tuple(str(option.name) for option in RELAY)
"""Names of the options that bench/relay shares with other commands."""


def relay_options(*names: str) -> Callable[[click.Command], click.Command]:
    """Give a command these options of bench/relay."""

    def decorate(command: click.Command) -> click.Command:
        command.params += [option for option in RELAY if option.name in names]
        return command

    return decorate


def workplace(keep: bool) -> Path:
    """Make a temporary directory; at exit it is removed unless it is to be kept.

    The embedded server in it stops at exit too, and first: functions registered later run earlier.
    """
    directory = Path(tempfile.mkdtemp(prefix="pgmta-bench-"))
    directory.chmod(0o755)  # because for root PostgreSQL runs as another user
    if keep:
        atexit.register(log, f"kept: {directory}")
    else:
        atexit.register(shutil.rmtree, directory, ignore_errors=True)
    return directory


def filesystem(directory: Path) -> str:
    """Return the type of the file system the directory is on."""
    best, kind = "", "?"
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _, point, this = line.split()[:3]
        if len(point) >= len(best) and directory.is_relative_to(point):
            best, kind = point, this
    return kind


def hardware() -> str:
    """Return the number of cores, their model, and the kernel."""
    found = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    cores = f"{len(os.sched_getaffinity(0))} cores ({found[1] if found else platform.machine()})"
    return f"{cores}, {platform.system()} {platform.release()}"


@contextmanager
def failing(*more: type[Exception]) -> Iterator[None]:
    """Turn FAILURES and `more` into a line and an exit code; SIGTERM counts as Ctrl-C."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    except (*FAILURES, *more) as error:
        log(f"bench: {error}")
        sys.exit(FAILED)
    except KeyboardInterrupt:
        log("bench: interrupted")
        sys.exit(FAILED)


def commands_of(given: Path | None) -> Path:
    """Return where smtpd, queued and queuectl are: as given, or beside this Python."""
    return given or Path(sys.executable).parent


def opened(uri: str | None, keep: bool = False, what: str = "") -> tuple[Path, Server, str]:
    """Return a directory, the server, and a line that says `what` is measured and where."""
    directory = workplace(keep)
    server = open_server(uri, directory)
    place = "given server" if uri else f"embedded, on {filesystem(directory)}"
    about = f"{what}PostgreSQL {server.version} ({place}), commits durable"
    log(about)
    return directory, server, about


def finish(problems: list[str], misses: list[str]) -> None:
    """Say what went wrong and what missed its limit, and exit accordingly."""
    for problem in problems:
        log(f"WRONG: {problem}")
    for miss in misses:
        log(f"MISSED: {miss}")
    sys.exit(WRONG if problems else MISSED if misses else 0)


def dump(value: Any) -> str:
    """Return the JSON that --json prints."""
    return json.dumps(value, indent=2)
